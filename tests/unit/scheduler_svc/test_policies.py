"""Orders of the policies, and when a job changes its place in them."""

import pytest

from broker.schemas.operator import Settings
from scheduler_svc.core.job import Job
from scheduler_svc.core.policy.fifo import Fifo
from scheduler_svc.core.policy.las import LeastAttainedService
from scheduler_svc.core.policy.table import make_policy
from scheduler_svc.core.timers import TimerKind, Timers

HELD = {"n": [["g"]]}


def jobs(count, **fields):
    return [Job(job_id=i, workers=1, gpus_per_worker=1, **fields) for i in range(1, count + 1)]


def las(limits=(100, 400), **fields):
    return LeastAttainedService(Settings(queue_limits_gpu_ms=limits, **fields))


def order(policy):
    return [job.job_id for job in policy.order()]


def added(policy, *members):
    for job in members:
        policy.add(job)
    return policy


def test_the_settings_name_the_policy():
    assert isinstance(make_policy(Settings(policy="fifo")), Fifo)
    assert isinstance(make_policy(Settings(policy="las")), LeastAttainedService)


def test_queues_come_in_order_and_a_demoted_job_goes_to_the_tail_of_the_next():
    one, two, three = jobs(3)
    policy = added(las(), one, two, three)
    policy.on_timer(two, TimerKind.DEMOTE, 0)
    policy.on_timer(one, TimerKind.DEMOTE, 0)
    assert order(policy) == [3, 2, 1]
    assert [job.queue_index for job in (one, two, three)] == [1, 1, 0]


@pytest.mark.parametrize(
    ("workers", "limit", "due_ms"), [(1, 100, 1_100), (3, 100, 1_034), (7, 1, 1_001)]
)
def test_the_crossing_time_is_the_first_millisecond_at_or_above_the_limit(workers, limit, due_ms):
    job = Job(job_id=1, workers=workers, gpus_per_worker=1)
    job.start_counting(1_000)
    timers = Timers()
    added(las((limit,)), job).arm(job, timers, 1_000)
    assert timers.entries() == [(1, TimerKind.DEMOTE, due_ms)]
    assert job.gpus * (due_ms - 1_000) >= limit > job.gpus * (due_ms - 1_001)


def test_a_job_past_the_limit_of_its_queue_is_demoted_at_once_even_if_it_waits():
    waiting, new = jobs(2)
    waiting.executed_ms = 100
    timers = Timers()
    policy = added(las(), waiting, new)
    policy.arm(waiting, timers, 7)
    policy.arm(new, timers, 7)
    assert timers.entries() == [(1, TimerKind.DEMOTE, 7)]


def test_one_queue_means_no_demotion():
    (job,) = jobs(1)
    job.start_counting(0)
    timers = Timers()
    policy = added(las(()), job)
    policy.arm(job, timers, 0)
    assert timers.entries() == []
    assert policy.limit_gpu_ms(job) is None


def test_running_first_puts_jobs_that_hold_or_claim_gpus_ahead_and_keeps_both_orders():
    members = jobs(5)
    policy = added(las(()), *members)
    members[1].placement = HELD
    members[4].claim = HELD
    policy.settle()
    assert order(policy) == [2, 5, 1, 3, 4]
    policy.settle()
    assert order(policy) == [2, 5, 1, 3, 4]


def test_running_first_sinks_a_job_that_is_being_put_aside():
    one, two = jobs(2, placement=HELD)
    policy = added(las(()), one, two)
    one.is_releasing = True
    policy.settle()
    assert order(policy) == [2, 1]


def test_start_time_orders_by_first_start_then_by_submission():
    members = jobs(4)
    policy = added(las((), queue_order="start_time"), *members)
    members[2].first_placed_at_ms, members[3].first_placed_at_ms = 50, 20
    policy.settle()
    assert order(policy) == [4, 3, 1, 2]


def test_start_time_counts_a_promise_as_a_start_while_it_lasts():
    members = jobs(3)
    policy = added(las((), queue_order="start_time"), *members)
    members[1].claim, members[1].claimed_at_ms = HELD, 10
    members[2].first_placed_at_ms = 20
    assert order(policy) == [2, 3, 1]
    members[1].claim = None
    assert order(policy) == [3, 1, 2]


def starving(executed_ms=100, **fields):
    (job,) = jobs(1, queue_index=1, executed_ms=executed_ms, **fields)
    job.start_waiting(1_000)
    return job


@pytest.mark.parametrize(
    ("knob", "floor_ms", "due_ms"),
    [(1.0, 0, 1_100), (0.5, 0, 1_050), (0.001, 0, 1_001), (1.0, 300, 1_300), (None, 0, None)],
)
def test_a_waiting_job_is_promoted_when_it_waited_knob_times_as_long_as_it_ran(
    knob, floor_ms, due_ms
):
    job, timers = starving(), Timers()
    policy = added(las(promote_knob=knob, promote_floor_ms=floor_ms), job)
    policy.arm(job, timers, 1_000)
    assert timers.next_ms() == due_ms


@pytest.mark.parametrize(
    "fields",
    [
        {"placement": HELD},
        {"claim": HELD},
        {"is_held": True},
        {"executed_ms": 0},
    ],
)
def test_who_holds_or_claims_gpus_is_held_or_never_ran_is_not_promoted(fields):
    job, timers = starving(**fields), Timers()
    policy = added(las(promote_knob=1.0, promote_floor_ms=0), job)
    policy.arm(job, timers, 1_000)
    assert timers.entries() == []


def test_who_is_in_the_first_queue_is_not_promoted():
    job = starving(executed_ms=50)
    job.queue_index = 0
    assert added(las(promote_knob=1.0), job).promotion_wait_ms(job) is None


def test_a_promotion_leads_to_the_tail_of_the_first_queue_and_resets_the_clocks():
    job, other = starving(), jobs(2)[1]
    policy = added(las(promote_knob=1.0, promote_floor_ms=0), job, other)
    assert policy.on_timer(job, TimerKind.PROMOTE, 1_100)
    assert order(policy) == [2, 1]
    assert (job.queue_index, job.executed_ms, job.waited_at(1_100)) == (0, 0, 0)


def test_new_limits_keep_the_order_and_the_last_queue_takes_who_has_none_any_more():
    one, two, three = jobs(3)
    policy = added(las(), one, two, three)
    for _ in range(2):
        policy.on_timer(one, TimerKind.DEMOTE, 0)
    policy.on_timer(two, TimerKind.DEMOTE, 0)
    policy.reconfigure(Settings(queue_limits_gpu_ms=(50,)))
    assert order(policy) == [3, 2, 1]
    assert one.queue_index == 1


def test_a_removed_job_is_in_no_queue():
    one, two = jobs(2)
    for policy in (added(las(), one, two), added(Fifo(), one, two)):
        policy.remove(one)
        assert order(policy) == [2]


def test_fifo_is_the_order_of_submission_whoever_runs():
    one, two = jobs(2)
    two.placement = HELD
    policy = added(Fifo(), two, one)
    policy.settle()
    policy.reconfigure(Settings(policy="fifo"))
    assert order(policy) == [1, 2]


def test_fifo_knows_neither_demotion_nor_promotion():
    (job,) = jobs(1, executed_ms=10**9)
    timers = Timers()
    timers.set(1, TimerKind.DEMOTE, 5)
    timers.set(1, TimerKind.PROMOTE, 5)
    policy = added(Fifo(), job)
    policy.arm(job, timers, 0)
    assert timers.entries() == []
    assert not policy.on_timer(job, TimerKind.DEMOTE, 5)
    assert policy.limit_gpu_ms(job) is None
    assert policy.promotion_wait_ms(job) is None
