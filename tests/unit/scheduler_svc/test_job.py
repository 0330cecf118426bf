"""Clocks of a job: executed, attained, waited; and what a promotion resets."""

from scheduler_svc.core.job import Job, gpus_of


def job(**fields):
    return Job(job_id=1, workers=2, gpus_per_worker=3, **fields)


def test_gpus_of_a_placement_are_listed_in_order():
    assert gpus_of({"b": [["g1", "g0"]], "a": [["g2"]]}) == [("b", "g1"), ("b", "g0"), ("a", "g2")]


def test_the_gang_is_workers_times_gpus_of_each():
    assert job().gpus == 6


def test_service_grows_by_gpus_only_while_the_gang_is_up():
    one = job()
    one.start_waiting(100)
    assert (one.executed_at(150), one.service_at(150), one.waited_at(150)) == (0, 0, 50)
    one.start_counting(150)
    assert (one.executed_at(160), one.service_at(160), one.queued_at(160)) == (10, 60, 50)
    one.start_waiting(170)
    assert (one.executed_at(900), one.service_at(900)) == (20, 120)


def test_waiting_before_the_first_run_is_no_starvation():
    one = job()
    one.start_waiting(0)
    one.start_counting(70)
    assert (one.waited_at(80), one.queued_at(80)) == (0, 70)
    one.start_waiting(80)
    one.start_counting(95)
    assert (one.waited_at(99), one.queued_at(99)) == (15, 85)


def test_starting_a_clock_twice_changes_nothing():
    one = job()
    one.start_waiting(10)
    one.start_waiting(20)
    assert one.waited_at(30) == 20
    one.start_counting(30)
    one.start_counting(40)
    assert one.executed_at(50) == 20


def test_a_promotion_resets_executed_and_waited_but_not_what_a_life_adds_up_to():
    one = job()
    one.start_waiting(0)
    one.start_counting(10)
    one.start_waiting(30)
    one.reset_service(50)
    assert (one.executed_at(60), one.waited_at(60)) == (0, 10)
    assert (one.service_at(60), one.queued_at(60)) == (120, 40)


def test_a_promotion_while_running_resets_no_clock_that_stands_still():
    one = job()
    one.start_counting(0)
    one.reset_service(10)
    assert (one.waiting_since_ms, one.waited_ms) == (None, 0)


def test_after_the_end_no_clock_grows():
    one = job()
    one.start_counting(0)
    one.stop_clocks(10)
    assert (one.service_at(99), one.queued_at(99), one.waited_at(99)) == (60, 0, 0)


def test_a_job_is_scheduled_while_it_holds_gpus_or_is_promised_some():
    placement = {"n": [["g"]]}
    assert not job().is_scheduled
    assert job(claim=placement).is_scheduled
    assert job(placement=placement).is_scheduled
    assert not job(placement=placement, is_releasing=True).is_scheduled
