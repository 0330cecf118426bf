"""Tables of what a job and a run may do next, and the errors where they may not."""

import pytest

from broker.errors import TiresiasError
from scheduler_svc.core.errors import InvalidTransition, InvariantError
from scheduler_svc.core.lifecycle import (
    JOB_TRANSITIONS,
    RUN_TRANSITIONS,
    SHOWN_STATE,
    JobPhase,
    RunPhase,
    next_job_phase,
    next_run_phase,
)


def test_steps_of_the_tables_are_taken():
    assert next_job_phase("job 1", JobPhase.QUEUED, "place", ()) is JobPhase.ACTIVE
    assert next_run_phase("run 1-1", RunPhase.PREPARING, "stop", ()) is RunPhase.STOPPING


def test_a_step_the_table_lacks_names_the_thing_its_state_and_its_story():
    with pytest.raises(InvalidTransition, match=r"job 1 in state .*held.* 'place'; story: a | b"):
        next_job_phase("job 1", JobPhase.HELD, "place", ("a", "b"))
    with pytest.raises(InvalidTransition, match=r"run 1-1 .* story: none") as caught:
        next_run_phase("run 1-1", RunPhase.ENDED, "stop", ())
    assert (caught.value.what, caught.value.state) == ("run 1-1", "ended")
    assert caught.value.event == "stop"
    assert issubclass(InvariantError, TiresiasError)


@pytest.mark.parametrize(
    ("table", "phases"), [(JOB_TRANSITIONS, JobPhase), (RUN_TRANSITIONS, RunPhase)]
)
def test_every_phase_but_the_last_can_be_left_and_the_last_cannot(table, phases):
    left = {phase for phase, _ in table}
    assert left == set(phases) - {phases.ENDED}
    assert set(table.values()) | {phases(next(iter(phases)))} == set(phases)


def test_a_run_can_be_over_in_any_phase():
    """A machine may be lost at any moment."""
    for phase in set(RunPhase) - {RunPhase.ENDED}:
        assert next_run_phase("run", phase, "all_exited", ()) is RunPhase.ENDED


def test_every_phase_of_a_run_has_a_word_for_people():
    assert set(SHOWN_STATE) == set(RunPhase)
