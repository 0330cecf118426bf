"""Replay of known services in virtual time: exact finishes, free preemption, honest counts."""

import pytest

from broker.schemas.operator import Settings
from scheduler_svc.core.errors import InvariantError
from simulator.replay import TraceJob, fifo_jct_ms, make_cluster, replay

ONE_NODE = {"a": 2}


def trace(*rows, **fields):
    """Jobs numbered from 0; a row is (submit, GPUs, duration)."""
    return [
        TraceJob(job_id=i, submit_ms=submit, workers=gpus, duration_ms=duration, **fields)
        for i, (submit, gpus, duration) in enumerate(rows)
    ]


def las(*limits, **fields):
    return Settings(**{"queue_limits_gpu_ms": limits, "preempt_exempt_ms": 0, **fields})


def finishes(jobs, nodes, settings):
    finish_ms = replay(jobs, nodes, settings).finish_ms
    return [finish_ms[job.job_id] for job in jobs]


def test_a_job_alone_takes_its_time():
    assert finishes(trace((7, 2, 30)), ONE_NODE, las()) == [37]


def test_jobs_wait_for_gpus_and_smaller_ones_pass():
    jobs = trace((0, 2, 10), (1, 2, 10), (2, 1, 5))
    assert finishes(jobs, ONE_NODE, las()) == [10, 20, 25]
    assert finishes(trace((0, 1, 10), (1, 2, 10), (2, 1, 5)), ONE_NODE, las()) == [10, 20, 7]


def test_a_demoted_job_is_put_aside_for_a_new_one_and_goes_on_where_it_stopped():
    result = replay(trace((0, 2, 30), (15, 2, 5)), ONE_NODE, las(20))
    assert result.finish_ms == {0: 35, 1: 20}
    assert (result.preemptions, result.promotions) == (1, 0)


def test_the_finish_a_job_would_have_had_before_it_was_put_aside_counts_no_more():
    jobs = trace((0, 1, 30), (0, 1, 30), (25, 1, 50))
    assert finishes(jobs, ONE_NODE, las(20)) == [30, 35, 75]


def test_a_starving_job_is_promoted_and_counted():
    jobs = trace((0, 2, 12), (10, 2, 50))
    result = replay(jobs, ONE_NODE, las(20, promote_knob=0.5, promote_floor_ms=0))
    assert result.promotions == 1
    assert result.finish_ms == {0: 22, 1: 62}


def test_completions_come_before_submissions_of_the_same_instant():
    assert finishes(trace((0, 2, 10), (10, 2, 5)), ONE_NODE, las()) == [10, 15]


def test_only_free_gpus_are_given_to_a_gang_that_must_be_on_one_node():
    jobs = trace((0, 1, 10), (0, 1, 20), (0, 1, 30), (0, 1, 40), (5, 2, 10))
    settings = las(consolidate="require")
    assert finishes(jobs, {"a": 2, "b": 2}, settings) == [10, 20, 30, 40, 30]


def test_a_gang_is_not_started_on_the_part_of_its_nodes_that_is_held_for_it():
    fillers = ((0, 1, 10), (0, 1, 20), (0, 1, 12), (0, 1, 40))
    jobs = trace(*fillers, (5, 2, 10), (13, 1, 5), (14, 1, 100))
    settings = las(consolidate="require")
    assert finishes(jobs, {"a": 2, "b": 2}, settings) == [10, 20, 12, 40, 30, 18, 118]


def test_a_victim_may_go_on_elsewhere_in_the_same_instant():
    jobs = trace((0, 1, 100), (0, 1, 10), (0, 2, 14), (20, 2, 30))
    result = replay(jobs, {"a": 2, "b": 2}, las(10, consolidate="require"))
    assert result.finish_ms[0] == 100


def test_an_exempt_job_is_put_aside_when_its_least_time_is_over():
    jobs = trace((0, 2, 30), (12, 2, 5))
    result = replay(jobs, ONE_NODE, las(20, preempt_exempt_ms=15))
    assert result.finish_ms == {0: 35, 1: 20}


def test_a_job_that_never_fits_is_an_error_that_names_it():
    with pytest.raises(InvariantError, match="1 jobs never finish, first: job 1"):
        replay(trace((0, 1, 5), (0, 3, 5)), ONE_NODE, las())


def test_completion_times_are_counted_from_submission():
    jobs = trace((5, 2, 10), (6, 2, 10))
    assert replay(jobs, ONE_NODE, las()).jct_ms(jobs) == {0: 10, 1: 19}
    assert fifo_jct_ms(jobs, ONE_NODE) == {0: 10, 1: 19}


def test_under_fifo_nobody_passes_the_head():
    jobs = trace((0, 1, 10), (1, 2, 10), (2, 1, 5))
    assert fifo_jct_ms(jobs, ONE_NODE) == {0: 10, 1: 19, 2: 23}


def test_a_made_up_cluster_is_ready_for_work():
    cluster = make_cluster({"a": 2, "b": 1})
    assert cluster.usable_gpus() == 3
    assert all(gpu.info.simulated for gpu in cluster.node("a").gpus.values())
