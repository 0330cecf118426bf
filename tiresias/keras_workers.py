"""Keras 3 under MultiWorkerMirroredStrategy: the step functions that its ``fit`` lacks.

Keras 3.15 reduces a whole batch and each scalar log along an axis they do not have, and fails
(keras-team/keras#20585). Keras lets a model bring its own step functions; these do what Keras
means: one step on each worker, logs averaged over all of them.
"""

from collections.abc import Callable
from typing import Any

from tiresias.errors import UsageError


def is_multi_worker(model: Any) -> bool:
    """Whether this model trains in several processes that mirror one another."""
    import tensorflow as tf  # noqa: PLC0415

    return isinstance(model.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy)


def build_from_spec(model: Any, element_spec: Any) -> None:
    """Make the variables of a Keras 3 model, its metrics and optimizer, without reading data."""
    with model.distribute_strategy.scope():
        model._symbolic_build(data_batch=element_spec)  # noqa: SLF001 - Keras has no public way


def bring_step_functions(model: Any) -> None:
    """Let ``fit`` and ``evaluate`` of a Keras 3 model run in several workers."""
    if model.steps_per_execution != 1:
        raise UsageError(
            f"steps_per_execution is {model.steps_per_execution}: several workers need 1"
        )
    model._maybe_symbolic_build = _is_built_already  # noqa: SLF001 - this is the part that fails
    model.train_function = _on_all_workers(model, model.train_step)
    model.test_function = _on_all_workers(model, model.test_step)


def _is_built_already(iterator: Any = None, data_batch: Any = None) -> None: ...


def _on_all_workers(model: Any, step: Callable[[Any], Any]) -> Any:
    import tensorflow as tf  # noqa: PLC0415

    strategy = model.distribute_strategy

    def one_step(iterator: Any) -> dict[str, Any]:
        logs = strategy.run(step, args=(next(iterator),))
        return {name: strategy.reduce("MEAN", value, axis=None) for name, value in logs.items()}

    return tf.function(one_step, autograph=False)
