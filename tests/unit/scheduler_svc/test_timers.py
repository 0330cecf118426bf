"""One timer per job and kind, the earliest first, in order of submission within an instant."""

from scheduler_svc.core.timers import TimerKind, Timers


def drain(timers, now_ms):
    return list(iter(lambda: timers.pop_due(now_ms), None))


def test_the_earliest_timer_comes_first():
    timers = Timers()
    timers.set(1, TimerKind.DEMOTE, 30)
    timers.set(2, TimerKind.LAUNCH, 20)
    assert timers.next_ms() == 20
    assert timers.pop_due(19) is None
    assert drain(timers, 30) == [(2, TimerKind.LAUNCH), (1, TimerKind.DEMOTE)]
    assert timers.next_ms() is None


def test_timers_of_one_instant_come_in_order_of_submission_then_of_kind():
    timers = Timers()
    timers.set(2, TimerKind.BACKOFF, 10)
    timers.set(1, TimerKind.PROMOTE, 10)
    timers.set(1, TimerKind.DEMOTE, 10)
    assert drain(timers, 10) == [
        (1, TimerKind.DEMOTE),
        (1, TimerKind.PROMOTE),
        (2, TimerKind.BACKOFF),
    ]


def test_setting_a_timer_again_moves_it_and_none_clears_it():
    timers = Timers()
    timers.set(1, TimerKind.DEMOTE, 10)
    timers.set(1, TimerKind.DEMOTE, 10)
    timers.set(1, TimerKind.DEMOTE, 40)
    timers.set(2, TimerKind.DEMOTE, 20)
    timers.set(2, TimerKind.DEMOTE, None)
    timers.set(3, TimerKind.DEMOTE, None)
    assert timers.next_ms() == 40
    assert timers.entries() == [(1, TimerKind.DEMOTE, 40)]


def test_clearing_a_job_drops_all_its_timers():
    timers = Timers()
    for kind in TimerKind:
        timers.set(1, kind, 10)
    timers.set(2, TimerKind.EXEMPT, 99)
    timers.clear(1)
    assert drain(timers, 100) == [(2, TimerKind.EXEMPT)]
