"""Replay on clusters of real nodes: whole gangs, fragments, consolidation, exemptions."""

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.schemas.operator import Settings
from simulator.replay import TraceJob, replay
from tests.property.conftest import examples

traces = st.lists(
    st.tuples(
        st.integers(0, 60),
        st.integers(1, 5),
        st.integers(1, 2),
        st.integers(1, 80),
        st.sampled_from((None, 0.1, 0.9)),
    ),
    min_size=1,
    max_size=12,
)
settings_sets = st.builds(
    Settings,
    policy=st.sampled_from(("las", "las", "las", "fifo")),
    queue_limits_gpu_ms=st.sampled_from(((), (20,), (20, 100))),
    queue_order=st.sampled_from(("running_first", "start_time")),
    promote_knob=st.sampled_from((None, 1.0)),
    promote_floor_ms=st.just(0),
    consolidate=st.sampled_from(("prefer", "require")),
    preempt_exempt_ms=st.sampled_from((0, 15)),
)


@settings(max_examples=examples(150))
@given(traces, st.lists(st.integers(2, 4), min_size=3, max_size=4), settings_sets)
def test_every_job_finishes_not_before_it_has_run_its_time(rows, node_gpus, core_settings):
    fitting = [row for row in rows if sum(n // row[2] for n in node_gpus) >= row[1]]
    trace = [
        TraceJob(
            job_id=job_id,
            submit_ms=submit,
            workers=workers,
            gpus_per_worker=gpus_per_worker,
            duration_ms=duration,
            skew=skew,
        )
        for job_id, (submit, workers, gpus_per_worker, duration, skew) in enumerate(fitting)
    ]
    result = replay(trace, {f"n{i}": n for i, n in enumerate(node_gpus)}, core_settings)
    jct_ms = result.jct_ms(trace)
    assert all(jct_ms[job.job_id] >= job.duration_ms for job in trace)
    work = sum(job.workers * job.gpus_per_worker * job.duration_ms for job in trace)
    assert max(result.finish_ms.values(), default=0) * sum(node_gpus) >= work
