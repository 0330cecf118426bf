"""exit-codes.md: what the command's codes mean to scripts, and a job's codes to the scheduler."""

from cli.exit_codes import ExitCode
from launcher.core.outcome import SAVED_EXIT_CODE
from scripts.reference.markdown import code, page, table
from scripts.reference.structs import members_of

OF_A_JOB = (
    (
        "0",
        "Done. The job has succeeded when all workers have (or the chief, where there is one).",
    ),
    (str(SAVED_EXIT_CODE), "Saved, and stopped because it was asked to. Not a failure."),
    ("killed by SIGTERM or SIGKILL", "After a request: stopped without a save. Not a failure."),
    ("anything else", "The job's own failure: counts against `restart.max`."),
)
NOTES = f"""\
Code {SAVED_EXIT_CODE} and the two signals count so only after a request to stop; without one they
are failures. A shell's 143 and 137 are then read as the signals they stand for.

A `run` given as text ends at the first command that fails, with that command's code, and a pipe
fails if any part of it does (`bash -euo pipefail`)."""


def exit_codes_page() -> str:
    """Both tables."""
    rows = [(code(value), ExitCode(int(value)).name, text) for value, text in members_of(ExitCode)]
    return page(
        "Exit codes",
        "## Of the command `tiresias`",
        table(("code", "name", "meaning"), rows),
        "## Of a job's tasks",
        table(("code", "what the scheduler makes of it"), [(code(c), t) for c, t in OF_A_JOB]),
        NOTES,
    )
