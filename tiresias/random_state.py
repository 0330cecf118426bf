"""The state of Python's and NumPy's global random generators, as JSON.

Frameworks keep their own generators: TensorFlow's is in ``tiresias.tensorflow.snapshot``.
"""

import random
import sys
from typing import Any


def capture() -> dict[str, Any]:
    """Return the state of Python's generator, and of NumPy's if NumPy is loaded."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {"python": [version, list(words), gauss]}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        state["numpy"] = [name, keys.tolist(), position, has_gauss, cached]
    return state


def put_back(state: dict[str, Any]) -> None:
    """Continue both generators where `capture` found them."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    if "numpy" in state:
        import numpy as np  # noqa: PLC0415 - only if the saving process used it

        name, keys, position, has_gauss, cached = state["numpy"]
        np.random.set_state((name, np.array(keys, np.uint32), position, has_gauss, cached))  # noqa: NPY002
