"""Rules that hold whatever happens to a cluster, in whatever order."""

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.schemas.views import JobView
from scheduler_svc.core.scheduler import Scheduler
from tests.property.conftest import examples
from tests.property.program import Life, ended_states, served_gpu_ms, steps, worlds


def born(world) -> Life:
    cluster, core_settings, is_lazy = world
    return Life(cluster, core_settings, is_lazy=is_lazy)


def live(world, program) -> Life:
    life = born(world)
    for step in program:
        life.take(step)
    return life


@settings(max_examples=examples(60))
@given(worlds, steps)
def test_more_passes_change_nothing(world, program):
    life = born(world)
    for step in program:
        life.take(step)
        life.assert_passes_change_nothing()


@settings(max_examples=examples(60))
@given(worlds, steps, st.integers(0, 200))
def test_the_same_inputs_give_the_same_outputs_from_any_snapshot(world, program, cut):
    life = live(world, program)
    cut %= len(life.log) + 1
    replayed = Scheduler(life.settings)
    for seq, (message, at_ms) in enumerate(life.log, start=1):
        if seq - 1 == cut:
            replayed = Scheduler.restore(replayed.snapshot())
        assert replayed.handle(seq, message, at_ms) == life.outputs[seq - 1]
        replayed.take_changed_views()
    assert replayed.snapshot() == life.core.snapshot()
    assert replayed.all_views() == life.core.all_views()


@settings(max_examples=examples(60))
@given(worlds, steps)
def test_attained_service_is_gpus_times_running_time_of_all_runs(world, program):
    life = live(world, program)
    served = served_gpu_ms(life)
    for view in life.core.all_views():
        if isinstance(view, JobView):
            life.views[view.job_id] = view
    for job_id, view in life.views.items():
        running_ms = view.as_of_ms - view.runs[-1].running_at_ms if view.counting else 0
        assert view.attained_gpu_ms == served.get(job_id, 0) + view.gpus * running_ms


@settings(max_examples=examples(60))
@given(worlds, steps)
def test_every_job_is_in_one_state_and_ends_at_most_once(world, program):
    life = live(world, program)
    ended = ended_states(life)
    active = {v.job_id: v.state for v in life.core.all_views() if isinstance(v, JobView)}
    for job_id in life.job_ids:
        state = life.views[job_id].state
        assert state.is_terminal == (job_id in ended)
        assert ended.get(job_id, state) is state
        assert job_id in ended or not active[job_id].is_terminal


@settings(max_examples=examples(60))
@given(worlds, steps)
def test_every_job_that_fits_ends_once_everything_is_healed(world, program):
    life = live(world, program)
    life.settle()
    for job_id in life.job_ids:
        view = life.views[job_id]
        fits = sum(gpus // view.gpus_per_worker for gpus in life.node_gpus.values()) >= view.workers
        assert view.state.is_terminal or not fits, (view, life.core.explain(job_id))
