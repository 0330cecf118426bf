"""From a placement to the tasks of a gang; a job's story and its record of attempts."""

import pytest

from broker.schemas.views import Attempt, RunOutcome
from scheduler_svc.core.errors import InvalidTransition
from scheduler_svc.core.lifecycle import JobPhase
from scheduler_svc.core.record import STORY_LENGTH, JobRecord, Run, task_placements
from tests.unit.scheduler_svc.mesh import spec


def record(**fields):
    return JobRecord(
        job_id=7,
        workers=1,
        gpus_per_worker=1,
        user="ann",
        spec=spec(),
        submitted_at_ms=0,
        **fields,
    )


def test_workers_are_where_their_gpus_are():
    tasks = task_placements(spec(3), {"a": [["a0"]], "b": [["b0"], ["b1"]]})
    assert [(t.name, t.rank, t.node, t.gpu_ids) for t in tasks] == [
        ("worker-0", 0, "a", ("a0",)),
        ("worker-1", 1, "b", ("b0",)),
        ("worker-2", 2, "b", ("b1",)),
    ]


def test_parameter_servers_go_round_the_nodes_and_a_chief_is_on_the_first():
    tasks = task_placements(spec(2, ps=3), {"a": [["a0"]], "b": [["b0"]]})
    assert [(t.name, t.rank, t.node, t.gpu_ids) for t in tasks[2:]] == [
        ("chief-0", 2, "a", ()),
        ("ps-0", 3, "a", ()),
        ("ps-1", 4, "b", ()),
        ("ps-2", 5, "a", ()),
    ]


def test_a_run_knows_its_nodes_and_those_that_are_left():
    run = Run(run_id="7-1", tasks=task_placements(spec(3), {"b": [["0"], ["1"]], "a": [["0"]]}))
    assert run.nodes == ["b", "a"]
    run.exits["b"] = None
    assert run.nodes_left() == ["a"]
    assert [task.name for task in run.tasks_on("b")] == ["worker-0", "worker-1"]


def test_the_story_keeps_the_newest_lines():
    job = record()
    for minute in range(STORY_LENGTH + 5):
        job.tell(minute, "x")
    assert len(job.story) == STORY_LENGTH
    assert job.story[-1] == f"{STORY_LENGTH + 4} x"


def test_a_wrong_step_is_told_with_the_story():
    job = record()
    job.tell(3, "submitted")
    with pytest.raises(InvalidTransition, match=r"job 7 .*3 submitted"):
        job.step("release")
    job.step("hold")
    assert job.phase is JobPhase.HELD


def test_a_note_changes_only_the_newest_attempt():
    job = record(history=[Attempt(run_id="7-1"), Attempt(run_id="7-2")])
    job.note_attempt(outcome=RunOutcome.FAILED)
    assert [attempt.outcome for attempt in job.history] == [None, RunOutcome.FAILED]
