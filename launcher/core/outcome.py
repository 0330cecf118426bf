"""How the end of one task bears on its run; also read by the supervisor, so it imports nothing.

A return code is an exit code, or minus the number of the signal that killed the process.
"""

SAVED_EXIT_CODE = 75
"""EX_TEMPFAIL: the task saved its state and stopped because it was asked to."""
PEER_GRACE_LIMIT_MS = 10_000
"""Longest wait for the other tasks once one task has decided the run."""
_SHELL_SIGNAL_BASE = 128
_STOP_SIGNALS = (9, 15)


def ends_run(role: str, return_code: int) -> bool:
    """Whether this end decides the whole run: any failure, or the end of the chief."""
    return return_code != 0 or role == "chief"


def peer_grace_ms(return_code: int, grace_ms: int) -> int:
    """Time the other tasks get after a deciding one: all of it where they may be saving too."""
    if return_code == SAVED_EXIT_CODE:
        return grace_ms
    return min(grace_ms, PEER_GRACE_LIMIT_MS)


def seen_through_shell(return_code: int, *, was_asked: bool) -> int:
    """Read a shell's 143 or 137 after a request to stop as the signal its command died of."""
    signal_number = return_code - _SHELL_SIGNAL_BASE
    if was_asked and signal_number in _STOP_SIGNALS:
        return -signal_number
    return return_code
