"""What training code imports to be preempted and resumed without loss.

Keras: ``tiresias.keras.fit(...)`` or ``tiresias.keras.Callback()``. Any other loop:
``job = tiresias.init()``. Importing this package loads the standard library only; without the
launcher's variables everything works offline.
"""

from tiresias import keras, tensorflow
from tiresias.errors import (
    CheckpointError,
    CheckpointMismatchError,
    TiresiasJobError,
    UsageError,
)
from tiresias.job import Job, Restored, init
from tiresias.stop import EXIT_STOPPED

__all__ = [
    "EXIT_STOPPED",
    "CheckpointError",
    "CheckpointMismatchError",
    "Job",
    "Restored",
    "TiresiasJobError",
    "UsageError",
    "init",
    "keras",
    "tensorflow",
]
