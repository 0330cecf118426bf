"""All ranks of a gang stop and save at one common step, whoever was asked first."""

import threading

from tiresias.agreement import Agreement, Decision


class Gang:
    """Ranks in threads that add their numbers together, as an all-reduce does."""

    def __init__(self, ranks):
        self.barrier = threading.Barrier(ranks, timeout=5)
        self.values = [None] * ranks
        self.rounds = 0

    def sum_of(self, rank):
        def sum_over_ranks(values):
            self.values[rank] = values
            self.barrier.wait()
            result = [sum(column) for column in zip(*self.values, strict=True)]
            if self.barrier.wait() == 0:
                self.rounds += 1
            return result

        return sum_over_ranks


def run_gang(steps, *, stop_at, step_s=1.0, busy=(), due=(), every=None):
    """Run two ranks step by step; return each rank's decisions and the number of sums."""
    gang, decisions = Gang(2), [[], []]

    def rank_main(rank):
        now_s = [0.0]
        agreement = Agreement(gang.sum_of(rank), rank=rank, clock=lambda: now_s[0])
        for step in range(1, steps + 1):
            now_s[0] += step_s
            decision = agreement.decide(
                stop=stop_at[rank] is not None and step >= stop_at[rank],
                save_due=step in due,
                is_busy=(rank, step) in busy,
                steps_to_save=None if every is None else every - step % every,
            )
            decisions[rank].append(decision)

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return decisions, gang.rounds


def test_all_ranks_stop_at_the_step_where_the_first_was_asked():
    decisions, _ = run_gang(6, stop_at=(5, 3))
    assert decisions[0] == decisions[1]
    assert [d.should_stop for d in decisions[0]] == [False, False, True, True, True, True]


def test_a_save_waits_until_no_writer_is_busy():
    decisions, _ = run_gang(5, stop_at=(None, None), due={2, 3, 4}, busy={(1, 2), (1, 3)})
    assert decisions[0] == decisions[1]
    assert [d.should_save for d in decisions[0]] == [False, False, False, True, False]


def test_fast_steps_agree_about_ten_times_a_second():
    decisions, rounds = run_gang(200, stop_at=(None, 70), step_s=0.01)
    first = next(i for i, decision in enumerate(decisions[1]) if decision.should_stop)
    assert 69 <= first <= 80
    assert rounds <= 22
    assert decisions[0] == decisions[1]


def test_a_sum_is_held_at_every_step_that_saves():
    decisions, _ = run_gang(60, stop_at=(None, None), step_s=0.01, every=7, due={14, 28})
    assert [i + 1 for i, d in enumerate(decisions[1]) if d.should_save] == [14, 28]


def test_a_clock_that_stands_still_means_a_sum_at_each_step():
    _, rounds = run_gang(5, stop_at=(None, None), step_s=0.0)
    assert rounds == 5


def test_between_two_sums_the_decision_is_to_go_on():
    agreement = Agreement(lambda _values: (0, 0, 0, 3), rank=1)
    options = {"stop": True, "save_due": False, "is_busy": False, "steps_to_save": None}
    assert [agreement.decide(**options) for _ in range(3)] == [Decision()] * 3
