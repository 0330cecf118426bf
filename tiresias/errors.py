"""The errors of the job side. They have their own root, so training code can catch them all.

Messages start in lower case and name the thing, the value seen, and the limit or the remedy.
"""


class TiresiasJobError(Exception):
    """Root of all errors this package raises on purpose; its text is fit to show to a user."""


class EnvironmentVariableError(TiresiasJobError):
    """A TIRESIAS_* variable cannot be read."""

    def __init__(self, name: str, value: str, expected: str) -> None:
        super().__init__(f"{name} is {value!r}, expected {expected}")
        self.name = name


class CheckpointError(TiresiasJobError):
    """A save did not complete. Earlier saves are whole."""


class CorruptCheckpointError(TiresiasJobError):
    """A save on disk is not what was written; the reader takes an earlier one."""


class CheckpointMismatchError(TiresiasJobError):
    """A whole save does not fit this training: other model, other number of workers."""


class UsageError(TiresiasJobError):
    """This package is called in a way that cannot work; the text says what to do instead."""
