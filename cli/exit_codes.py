"""What the command's exit codes mean; the table that the documentation repeats."""

from enum import IntEnum

from broker.errors import BusError, TiresiasError
from broker.schemas.views import JobState, JobView


class ExitCode(IntEnum):
    """Every code that `tiresias` ends with."""

    DONE = 0
    """Done; when waiting or following: the job succeeded."""
    ERROR = 1
    """Anything that has no code of its own; the message says what."""
    USAGE = 2
    """Bad usage, or a bad job file; nothing was sent."""
    NOT_FOUND = 3
    """No such job, task, attempt or node."""
    WRONG_STATE = 4
    """The thing is in a state that does not allow this, or the request contradicts another."""
    NOT_ALLOWED = 5
    """This user may not do that."""
    UNREACHABLE = 6
    """A service does not answer; what was asked may or may not have been stored."""
    WAIT_RAN_OUT = 7
    """It is not so yet; what was asked stays in force, and jobs go on."""
    JOB_FAILED = 100
    """The job failed, or was rejected."""
    JOB_CANCELLED = 101
    """The job was cancelled."""
    JOB_TIMED_OUT = 102
    """The job reached its time limit."""
    INTERRUPTED = 130
    """The user pressed Ctrl-C in a view or a wait; jobs go on."""


class CommandError(TiresiasError):
    """A command cannot do what was asked; carries the exit code."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.ERROR) -> None:
        super().__init__(message)
        self.exit_code = exit_code


_OF_STATE = {
    JobState.SUCCEEDED: ExitCode.DONE,
    JobState.FAILED: ExitCode.JOB_FAILED,
    JobState.REJECTED: ExitCode.JOB_FAILED,
    JobState.CANCELLED: ExitCode.JOB_CANCELLED,
    JobState.TIMED_OUT: ExitCode.JOB_TIMED_OUT,
}


def of_job(view: JobView) -> ExitCode:
    """Return the code that tells how a finished job ended."""
    return _OF_STATE[view.state]


def of_error(error: TiresiasError) -> ExitCode:
    """Return the code that an error of ours ends the command with."""
    if isinstance(error, CommandError):
        return error.exit_code
    return ExitCode.UNREACHABLE if isinstance(error, BusError) else ExitCode.ERROR
