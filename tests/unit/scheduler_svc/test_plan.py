"""Passes: who gets GPUs, who gives them up, who is promised them, why the others wait."""

from broker.schemas.fact import RunStopping
from broker.schemas.job import JobCancelRequested, JobHoldRequested, JobReleaseRequested
from broker.schemas.node import NodeCordonRequested, NodeSilent, NodeUncordonRequested
from scheduler_svc.core import plan
from tests.unit.scheduler_svc.mesh import Mesh

DEMOTE_MS = 1_000


def mesh_of(nodes, **settings):
    """A mesh with two queues: a job with W GPUs is demoted after 1000 / W ms."""
    return Mesh(nodes, **{"queue_limits_gpu_ms": (DEMOTE_MS,), **settings})


def demoted(mesh, *gpus, **fields):
    """Jobs that run in the second queue."""
    job_ids = [mesh.submit(count, **fields) for count in gpus]
    mesh.advance(DEMOTE_MS)
    return job_ids


def stopped(mesh):
    return [fact.job_id for fact in mesh.kinds([RunStopping])]


def nodes_of(mesh, job_id):
    return {node: len(gpus) for node, gpus in mesh.view(job_id).placement.items()}


def reason(mesh, job_id):
    return mesh.view(job_id).reason


def test_jobs_are_all_or_nothing_and_lower_ones_may_fill_the_rest():
    mesh = mesh_of({"a": 4})
    jobs = [mesh.submit(n) for n in (3, 2, 1)]
    assert mesh.states(*jobs) == ["RUNNING", "QUEUED", "RUNNING"]
    assert (reason(mesh, jobs[1]), mesh.core.explain(jobs[1]).message) == (
        "Resources",
        "needs 2 GPUs; 0 left by the jobs ahead of it",
    )


def test_one_gpu_wanted_stops_exactly_one_job():
    mesh = mesh_of({"a": 8, "b": 3})
    low = demoted(mesh, *[1] * 11)
    high = mesh.submit(1)
    assert mesh.state(high) == "RUNNING"
    assert stopped(mesh) == [low[-1]]


def test_the_lowest_running_jobs_stop_first():
    mesh = mesh_of({"a": 2})
    first, second = demoted(mesh, 1, 1)
    mesh.submit(1)
    assert mesh.states(first, second) == ["RUNNING", "QUEUED"]


def test_a_preempted_job_resumes_before_one_that_waited_longer_behind_it():
    mesh = mesh_of({"a": 2})
    one, two = demoted(mesh, 1, 1)
    (three,) = demoted(mesh, 1)
    mesh.finish(two)
    four = mesh.submit(1)
    assert mesh.states(one, three, four) == ["RUNNING", "QUEUED", "RUNNING"]
    mesh.cancel(four)
    assert mesh.states(one, three) == ["RUNNING", "RUNNING"]


def test_nobody_stops_for_a_job_of_the_same_priority():
    mesh = mesh_of({"a": 2})
    running = mesh.submit(2)
    assert mesh.state(mesh.submit(1)) == "QUEUED"
    assert mesh.state(running) == "RUNNING"


def test_two_newcomers_do_not_count_on_the_same_victim():
    mesh = mesh_of({"a": 8})
    (low,) = demoted(mesh, 8)
    mesh.deaf.add("a")
    one, two = mesh.submit(8), mesh.submit(8)
    mesh.listen("a")
    assert mesh.states(low, one, two) == ["QUEUED", "RUNNING", "QUEUED"]
    assert reason(mesh, two) == "Resources"


def test_gpus_being_released_are_kept_for_the_job_they_were_taken_for():
    mesh = mesh_of({"a": 2})
    low = demoted(mesh, 1, 1)
    mesh.deaf.add("a")
    high = mesh.submit(2)
    assert reason(mesh, high) == "WaitingForPreemption"
    assert mesh.core.explain(high).message == (
        f"waits for the preemption of job {low[1]}, whose GPUs are held for it"
    )
    late = mesh.submit(1)
    mesh.exit(f"{low[1]}-1", "a", code=75)
    assert mesh.states(high, late) == ["QUEUED", "QUEUED"]
    mesh.listen("a")
    assert mesh.states(high, late) == ["RUNNING", "QUEUED"]


def test_a_job_whose_run_still_stops_is_promised_the_gpus_it_may_go_on_with():
    mesh = mesh_of({"a": 1, "b": 1})
    low = demoted(mesh, 1, 1)
    mesh.deaf = {"a", "b"}
    high = mesh.submit(1)
    mesh.finish(low[0])
    assert mesh.core.explain(low[1]).message == "waits for 1 GPU being released"
    assert mesh.core.explain(high).state == "STARTING"


def test_a_claim_ends_with_its_job():
    mesh = mesh_of({"a": 2})
    (low,) = demoted(mesh, 2)
    mesh.deaf.add("a")
    high = mesh.submit(2)
    late = mesh.submit(1)
    mesh.send(JobCancelRequested(job_id=high))
    assert reason(mesh, late) == "WaitingForPreemption"
    mesh.listen("a")
    assert mesh.states(high, late, low) == ["CANCELLED", "RUNNING", "QUEUED"]


def test_a_job_that_is_exempt_keeps_running_while_its_gpus_are_promised():
    mesh = mesh_of({"a": 2}, preempt_exempt_ms=5_000)
    (low,) = demoted(mesh, 2)
    high = mesh.submit(2)
    assert mesh.states(low, high) == ["RUNNING", "QUEUED"]
    assert reason(mesh, high) == "WaitingForPreemption"
    assert mesh.core.explain(low).message == f"gives its 2 GPUs to job {high}"
    assert mesh.state(mesh.submit(1)) == "QUEUED"
    mesh.advance(5_000 - DEMOTE_MS - 1)
    assert mesh.state(low) == "RUNNING"
    mesh.advance(1)
    assert mesh.states(low, high) == ["QUEUED", "RUNNING"]


def test_a_strict_job_takes_victims_on_one_node_and_as_few_as_will_do():
    mesh = mesh_of({"a": 4, "b": 4})
    low = [mesh.submit(1) for _ in range(4)]
    mesh.advance(DEMOTE_MS // 2)
    low += demoted(mesh, 2, 2)
    high = mesh.submit(4, consolidate="require")
    assert nodes_of(mesh, high) == {"b": 4}
    assert sorted(stopped(mesh)) == low[4:]


def test_who_turns_out_not_to_be_needed_keeps_running():
    mesh = mesh_of({"a": 2, "b": 2, "c": 2})
    pair, lowest = demoted(mesh, 2, 1, consolidate="require")
    high = [mesh.submit(1), mesh.submit(1)]
    assert [nodes_of(mesh, job) for job in (pair, lowest, *high)] == [
        {"a": 2},
        {"b": 1},
        {"b": 1},
        {"c": 1},
    ]
    gang = mesh.submit(2, consolidate="require")
    assert nodes_of(mesh, gang) == {"a": 2}
    assert mesh.states(pair, lowest) == ["QUEUED", "RUNNING"]


def test_gpus_of_a_victim_that_are_out_of_use_are_promised_to_nobody():
    mesh = mesh_of({"a": 1, "b": 1})
    (gang,) = demoted(mesh, 2)
    mesh.send(NodeCordonRequested(node="a"))
    high = mesh.submit(1)
    assert nodes_of(mesh, high) == {"b": 1}
    assert (mesh.state(gang), reason(mesh, gang)) == ("QUEUED", "NodesCordoned")


def test_when_walks_run_out_the_jobs_that_have_a_place_get_it(monkeypatch):
    monkeypatch.setattr(plan, "MAX_REWALKS", 1)
    mesh = mesh_of({"a": 2, "b": 2}, consolidate="require")
    high = [mesh.submit(1) for _ in range(4)]
    mesh.finish(high[1])
    mesh.finish(high[3])
    gang, small = mesh.submit(2), mesh.submit(1)
    assert reason(mesh, gang) == "Fragmented"
    assert mesh.state(small) == "QUEUED"
    assert mesh.state(mesh.submit(1)) == "QUEUED"
    mesh.finish(high[0])
    assert mesh.state(gang) == "RUNNING"


def test_a_victim_that_fits_elsewhere_goes_there_at_once():
    mesh = mesh_of({"a": 4, "b": 4})
    spread = demoted(mesh, 3, 3)
    (small,) = demoted(mesh, 1)
    mesh.finish(spread[1])
    high = mesh.submit(4, consolidate="require")
    assert nodes_of(mesh, high) == {"b": 4}
    assert mesh.states(spread[0], small) == ["RUNNING", "RUNNING"]
    second = mesh.submit(1)
    assert stopped(mesh) == [small]
    mesh.finish(high)
    assert mesh.states(second, small) == ["RUNNING", "RUNNING"]


def test_if_preferred_nodes_are_not_free_the_gang_takes_more_rather_than_stop_somebody():
    mesh = mesh_of({"a": 2, "b": 2}, consolidate="prefer")
    low = demoted(mesh, 1, 1, 1, 1)
    mesh.finish(low[1])
    mesh.finish(low[3])
    high = mesh.submit(2)
    assert nodes_of(mesh, high) == {"a": 1, "b": 1}
    assert stopped(mesh) == []


def test_nobody_is_preempted_for_a_job_that_has_no_place_even_then():
    mesh = mesh_of({"a": 2, "b": 2})
    high = [mesh.submit(1, name="h") for _ in range(4)]
    mesh.finish(high[1])
    mesh.finish(high[3])
    gang = mesh.submit(2, consolidate="require")
    assert mesh.state(gang) == "QUEUED"
    assert stopped(mesh) == []
    assert reason(mesh, gang) == "Reserved"
    assert mesh.core.explain(gang).message == (
        "GPUs on a are held for 2 workers of 1 GPU; not all are free"
    )


def test_nodes_are_held_for_the_highest_waiting_job_so_that_it_starts():
    mesh = mesh_of({"a": 2, "b": 2})
    high = [mesh.submit(1, name="h") for _ in range(4)]
    mesh.finish(high[1])
    mesh.finish(high[3])
    gang = mesh.submit(2, consolidate="require")
    small = [mesh.submit(1) for _ in range(3)]
    assert mesh.states(*small) == ["RUNNING", "QUEUED", "QUEUED"]
    assert nodes_of(mesh, small[0]) == {"b": 1}
    mesh.finish(high[0])
    assert nodes_of(mesh, gang) == {"a": 2}
    assert mesh.states(*small) == ["RUNNING", "QUEUED", "QUEUED"]


def test_only_one_job_has_nodes_held_the_next_is_fragmented():
    mesh = mesh_of({"a": 2, "b": 2, "c": 2, "d": 2})
    high = [mesh.submit(1, name="h") for _ in range(8)]
    for index in (1, 3, 5, 7):
        mesh.finish(high[index])
    one, two = mesh.submit(2, consolidate="require"), mesh.submit(2, consolidate="require")
    assert [reason(mesh, one), reason(mesh, two)] == ["Reserved", "Fragmented"]
    assert mesh.core.explain(two).message == (
        "3 GPUs left, but no set of nodes takes 2 workers of 1 GPU now"
    )


def test_jobs_ahead_are_placed_before_nodes_are_held_for_a_later_one():
    mesh = mesh_of({"a": 4, "b": 4, "c": 4}, queue_limits_gpu_ms=(), consolidate="require")
    mesh.submit(2)
    mesh.send(NodeCordonRequested(node="a"))
    mesh.submit(2)
    mesh.send(NodeCordonRequested(node="b"))
    whole = mesh.submit(4)
    for node in ("a", "b"):
        mesh.send(NodeUncordonRequested(node=node))
    three, four = mesh.submit(3), mesh.submit(4)
    assert [reason(mesh, three), reason(mesh, four)] == ["Reserved", "Resources"]
    mesh.finish(whole)
    assert nodes_of(mesh, three) == {"c": 3}
    assert reason(mesh, four) == "Reserved"


def test_a_gang_with_nothing_idle_to_hold_is_fragmented_and_stops_nobody():
    mesh = mesh_of({"a": 2, "b": 3})
    low = demoted(mesh, 1, 1, 1, 1)
    high = mesh.submit(1)
    gang = mesh.submit(1, gpus_per_worker=3)
    assert mesh.states(*low, high, gang) == ["RUNNING"] * 5 + ["QUEUED"]
    assert mesh.core.explain(gang).message == (
        "4 GPUs left, but no set of nodes takes 1 worker of 3 GPUs now"
    )


def test_unequal_nodes_are_held_only_if_they_can_take_the_gang():
    mesh = mesh_of({"big": 4, "small": 2})
    blocker = mesh.submit(3, consolidate="require")
    gang = mesh.submit(3, consolidate="require")
    assert reason(mesh, gang) == "Reserved"
    assert mesh.core.explain(gang).message.startswith("GPUs on big are held")
    assert nodes_of(mesh, mesh.submit(2, consolidate="require")) == {"small": 2}
    mesh.finish(blocker)
    assert nodes_of(mesh, gang) == {"big": 3}


def test_a_job_that_never_fits_says_so():
    mesh = mesh_of({"a": 4, "b": 2})
    never = mesh.submit(7)
    wide = mesh.submit(1, gpus_per_worker=5)
    assert [reason(mesh, never), reason(mesh, wide)] == ["NoNodeEverFits"] * 2
    assert mesh.core.explain(never).message == (
        "never fits: 7 workers of 1 GPU; the cluster has 6 usable GPUs"
    )


def test_without_nodes_the_reason_is_that_there_are_none():
    mesh = mesh_of({})
    job = mesh.submit(1)
    assert (reason(mesh, job), mesh.core.explain(job).message) == (
        "NoNodes",
        "no node has joined the cluster",
    )


def test_a_gang_that_needs_a_cordoned_node_holds_nothing_meanwhile():
    mesh = mesh_of({"a": 4, "b": 4})
    mesh.send(NodeCordonRequested(node="b"))
    gang = mesh.submit(8)
    small = [mesh.submit(1) for _ in range(4)]
    assert mesh.states(*small) == ["RUNNING"] * 4
    assert (reason(mesh, gang), mesh.core.explain(gang).message) == (
        "NodesCordoned",
        "needs 8 GPUs, only 4 are on nodes in use; the others are cordoned, silent or unhealthy",
    )
    for job in small:
        mesh.finish(job)
    mesh.send(NodeUncordonRequested(node="b"))
    assert nodes_of(mesh, gang) == {"a": 4, "b": 4}


def test_gpus_that_nobody_else_could_use_make_no_victims():
    mesh = mesh_of({"a": 2, "b": 2})
    low = demoted(mesh, 2, 2)
    mesh.send(NodeSilent(node="b", silent_ms=1))
    high = mesh.submit(2)
    assert mesh.states(high, low[1]) == ["RUNNING", "UNKNOWN"]
    other = mesh.submit(2)
    assert (mesh.state(other), reason(mesh, other)) == ("QUEUED", "Resources")
    assert stopped(mesh) == [low[0]]


def test_a_held_job_stops_at_once_even_if_it_is_exempt_and_stays_held():
    mesh = mesh_of({"a": 2}, preempt_exempt_ms=60_000)
    job = mesh.submit(2)
    mesh.send(JobHoldRequested(job_id=job, user="ann"))
    assert (mesh.state(job), reason(mesh, job)) == ("HELD", "Held")
    assert mesh.core.explain(job).message.startswith("held by its user")
    assert mesh.state(mesh.submit(2)) == "RUNNING"
    mesh.send(JobReleaseRequested(job_id=job))
    assert mesh.state(job) == "QUEUED"


def test_a_job_held_while_it_stops_says_that_it_is_held():
    mesh = mesh_of({"a": 2})
    job = mesh.submit(2)
    mesh.deaf.add("a")
    mesh.send(JobHoldRequested(job_id=job))
    assert mesh.core.explain(job).reason == "Held"


def test_fifo_neither_passes_the_head_nor_preempts():
    mesh = Mesh({"a": 4}, policy="fifo")
    first, head, small = mesh.submit(3), mesh.submit(2), mesh.submit(1)
    assert mesh.states(first, head, small) == ["RUNNING", "QUEUED", "QUEUED"]
    assert mesh.core.explain(small).message == "needs 1 GPU; 0 left by the jobs ahead of it"
    mesh.advance(10**9)
    assert mesh.states(first, head) == ["RUNNING", "QUEUED"]
    mesh.finish(first)
    assert mesh.states(head, small) == ["RUNNING", "RUNNING"]


def test_fifo_holds_nodes_for_its_head_without_a_victim():
    mesh = Mesh({"a": 2, "b": 2}, policy="fifo", consolidate="require")
    jobs = [mesh.submit(1) for _ in range(4)]
    mesh.finish(jobs[1])
    mesh.finish(jobs[3])
    head, small = mesh.submit(2), mesh.submit(1)
    assert [reason(mesh, head), reason(mesh, small)] == ["Reserved", "Resources"]
    mesh.finish(jobs[0])
    assert mesh.states(head, small) == ["RUNNING", "RUNNING"]


def test_fifo_passes_who_is_held_or_can_never_run():
    mesh = Mesh({"a": 4}, policy="fifo")
    never, held, job = mesh.submit(9), mesh.submit(4), mesh.submit(1)
    assert mesh.state(held) == "RUNNING"
    mesh.send(JobHoldRequested(job_id=held))
    assert mesh.states(never, held, job) == ["QUEUED", "HELD", "RUNNING"]


def test_fifo_keeps_running_jobs_when_a_node_goes_out_of_use():
    mesh = Mesh({"a": 2, "b": 2}, policy="fifo")
    jobs = [mesh.submit(2), mesh.submit(2)]
    mesh.send(NodeCordonRequested(node="a"))
    assert mesh.states(*jobs) == ["RUNNING", "RUNNING"]
