"""states.md: what people see of jobs and runs, and the transition tables behind it."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from broker.schemas.run import PrepareRefusal, StopReason
from broker.schemas.views import JobState, RunOutcome, WaitReason
from scheduler_svc.core.lifecycle import (
    JOB_TRANSITIONS,
    RUN_TRANSITIONS,
    SHOWN_STATE,
    JobPhase,
    RunPhase,
)
from scripts.reference.markdown import code, list_section, page, table
from scripts.reference.structs import docstring_of, members_of

P = TypeVar("P", bound=StrEnum)
STATE_TEXT = {
    JobState.QUEUED: "Waits for GPUs; `reason` says what for.",
    JobState.HELD: "Waits until somebody releases it.",
    JobState.STARTING: "GPUs are held for it; its nodes prepare and start the tasks.",
    JobState.RUNNING: "All tasks are up; service is counted.",
    JobState.STOPPING: "Its tasks were asked to stop; it holds its GPUs until they are gone.",
    JobState.UNKNOWN: "A node of its run is silent, and not yet given up.",
    JobState.SUCCEEDED: "Ended well.",
    JobState.FAILED: "Ended by a failure, and no restart was left or allowed.",
    JobState.CANCELLED: "Ended because somebody asked for it.",
    JobState.TIMED_OUT: "Ended because its `time_limit` was used up.",
    JobState.REJECTED: "The request was not a valid job; `problems` lists why.",
}
SHOWN = """\
`state`, `reason` and `message` are always apart: what is so, why (a closed list), and a sentence. A
preempted job is `QUEUED` again; it is its *run*, one attempt of the job, that ended `PREEMPTED`.
Terminal states never change."""


def states_page() -> str:
    """States as shown, the two tables as diagrams, and every closed list of reasons."""
    rows = [
        (code(state), "yes" if state.is_terminal else "", STATE_TEXT[state]) for state in JobState
    ]
    return page(
        "States",
        SHOWN,
        "## States of a job",
        table(("state", "terminal", "meaning"), rows),
        "## Life of a job",
        docstring_of(JobPhase),
        diagram(JOB_TRANSITIONS, JobPhase.QUEUED, JobPhase.ENDED),
        "## Life of a run",
        docstring_of(RunPhase),
        diagram(RUN_TRANSITIONS, RunPhase.PREPARING, RunPhase.ENDED),
        table(
            ("phase", "shown as", "meaning"),
            [(code(p), code(SHOWN_STATE[RunPhase(p)]), text) for p, text in members_of(RunPhase)],
        ),
        "## Reasons",
        *(list_section(part) for part in (WaitReason, RunOutcome, StopReason, PrepareRefusal)),
    )


def diagram(steps: Mapping[tuple[P, str], P], first: P, last: P) -> str:
    """A transition table as a Mermaid state diagram."""
    arrows = [f"    {before} --> {after}: {event}" for (before, event), after in steps.items()]
    lines = [f"    [*] --> {first}", *arrows, f"    {last} --> [*]"]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])
