"""The engine against a plain reading of the same rules, job by job."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.schemas.operator import Settings
from simulator.replay import TraceJob, replay
from tests.property.conftest import examples
from tests.property.plain_las import finish_times

traces = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 6), st.integers(1, 80)), min_size=1, max_size=14
)


@pytest.mark.parametrize("order", ["running_first", "start_time"])
@settings(max_examples=examples(120))
@given(
    rows=traces,
    limits=st.sampled_from(((), (20,), (50,), (20, 100), (7, 30, 200))),
    knob=st.sampled_from((None, None, 0.5, 1.0, 2.5)),
    floor=st.sampled_from((0, 15)),
)
def test_replay_agrees_with_the_plain_twin_on_every_job(order, rows, limits, knob, floor):
    jobs = [(job_id, *row) for job_id, row in enumerate(rows, start=1)]
    expected = finish_times(jobs, 6, limits, order=order, knob=knob, floor=floor)
    core_settings = Settings(
        queue_limits_gpu_ms=limits,
        queue_order=order,
        promote_knob=knob,
        promote_floor_ms=floor,
        preempt_exempt_ms=0,
        consolidate="prefer",
    )
    trace = [
        TraceJob(job_id=job_id, submit_ms=submit, workers=gpus, duration_ms=duration)
        for job_id, submit, gpus, duration in jobs
    ]
    result = replay(trace, {f"n{i}": 1 for i in range(6)}, core_settings)
    assert result.finish_ms == expected
