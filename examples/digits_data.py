"""Small pictures of digits, made from a seed: nothing is downloaded, only NumPy is needed.

Each digit has a pattern of 8x8 random pixels; a sample is its digit's pattern with noise.
"""

import numpy as np

CLASSES = 10
PIXELS = 64


def make_digits(samples: int = 2000, *, seed: int = 0, noise: float = 2.0):
    """Return (pictures, labels) as float32 of shape (samples, 64) and int32 of (samples,)."""
    generator = np.random.default_rng(seed)
    patterns = generator.normal(size=(CLASSES, PIXELS))
    labels = generator.integers(CLASSES, size=samples)
    pictures = patterns[labels] + noise * generator.normal(size=(samples, PIXELS))
    return pictures.astype(np.float32), labels.astype(np.int32)
