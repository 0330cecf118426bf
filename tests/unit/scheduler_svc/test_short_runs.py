"""A run that is over before its start was told has been up all the same."""

from broker.schemas.command import Command
from broker.schemas.fact import JobEnded, RunRunning
from broker.schemas.run import RunExited, TaskExit
from tests.unit.scheduler_svc.mesh import Mesh


def over_at_once(code: int) -> tuple[Mesh, int]:
    mesh = Mesh({"n": 1})
    mesh.deaf.add("n")
    job_id = mesh.submit()
    mesh.advance(5)
    exit_of_worker = TaskExit(task="worker-0", rank=0, exit_code=code)
    mesh.send(RunExited(node="n", run_id=f"{job_id}-1", tasks=(exit_of_worker,)))
    return mesh, job_id


def test_it_is_told_as_running_and_then_as_ended():
    mesh, job_id = over_at_once(0)
    assert mesh.state(job_id) == "SUCCEEDED"
    assert mesh.view(job_id).started_at_ms == mesh.now_ms
    facts = [type(output) for output in mesh.outputs if not isinstance(output, Command)]
    assert facts.index(RunRunning) < facts.index(JobEnded)


def test_its_failure_is_its_own_and_not_an_aborted_start():
    mesh, job_id = over_at_once(3)
    assert mesh.state(job_id) == "FAILED"
    assert mesh.view(job_id).exit_code == 3
