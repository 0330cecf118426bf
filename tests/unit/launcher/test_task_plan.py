"""The command and the environment that a run's supervisor gets."""

import json

from broker.schemas.command import TaskPlacement
from broker.schemas.job import CheckpointSpec
from launcher.core.task_plan import LONG_SCRIPT_BYTES, LogLimits, NodePaths, RunPlan, build_plan
from tests.unit.launcher.samples import NODE, prepare, worker

PATHS = NodePaths(
    run_dir="/state/runs/7-1", job_socket="/run/job.sock", bell="/run/bell", checkpoint_dir="/ck/7"
)


def plan_of(command, cluster=None) -> RunPlan:
    return build_plan(command, cluster or {"worker": ("h:1",)}, PATHS, LogLimits())


def test_a_script_runs_in_a_strict_shell_that_waits_for_its_child():
    plan = plan_of(prepare(run="python train.py"))
    assert plan.argv == ("bash", "-euo", "pipefail", "-c", "trap : TERM; python train.py")
    assert plan.script == ""


def test_a_long_script_runs_from_a_file():
    script = "é" * (LONG_SCRIPT_BYTES // 2)
    plan = plan_of(prepare(run=script))
    assert plan.argv == ("bash", "-euo", "pipefail", "/state/runs/7-1/script.sh")
    assert plan.script == f"trap : TERM; {script}"


def test_a_list_is_executed_as_it_is():
    plan = plan_of(prepare(run=("python", "train.py", "a b")))
    assert plan.argv == ("python", "train.py", "a b")


def test_the_environment_tells_a_task_who_it_is():
    command = prepare(
        "7-2",
        worker(1, "GPU-a", "GPU-b"),
        workers=2,
        workdir="/home/ada",
        checkpoint=CheckpointSpec(every_steps=10, keep=3),
    )
    plan = plan_of(command, {"worker": ("h0:5000", "h1:5001")})
    (task,) = plan.tasks
    assert plan.env | task.env == {
        "TIRESIAS_JOB_ID": "7",
        "TIRESIAS_JOB_NAME": "näme",
        "TIRESIAS_RUN_ID": "7-2",
        "TIRESIAS_ATTEMPT": "2",
        "TIRESIAS_USER": "ada",
        "TIRESIAS_TASK": "worker-1",
        "TIRESIAS_ROLE": "worker",
        "TIRESIAS_INDEX": "1",
        "TIRESIAS_RANK": "1",
        "TIRESIAS_WORLD_SIZE": "2",
        "TIRESIAS_NODE": NODE,
        "TIRESIAS_RUN_DIR": "/state/runs/7-1",
        "TIRESIAS_CHECKPOINT_DIR": "/ck/7",
        "TIRESIAS_CHECKPOINT_KEEP": "3",
        "TIRESIAS_CHECKPOINT_EVERY_STEPS": "10",
        "TIRESIAS_GRACE_MS": "60000",
        "TIRESIAS_SOCKET": "/run/job.sock",
        "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "PYTHONUNBUFFERED": "1",
        "MASTER_ADDR": "h0",
        "MASTER_PORT": "5000",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "TF_CONFIG": json.dumps(
            {
                "cluster": {"worker": ["h0:5000", "h1:5001"]},
                "task": {"type": "worker", "index": 1},
            }
        ),
    }
    assert plan.workdir == "/home/ada"


def test_a_lone_task_has_no_cluster_and_a_cpu_task_an_empty_mask():
    parameter_server = TaskPlacement(role="ps", index=0, rank=2, node=NODE)
    (alone,) = plan_of(prepare()).tasks
    assert "TF_CONFIG" not in alone.env
    cluster = {"worker": ("h:1",), "chief": ("h:2",), "ps": ("h:3",)}
    (task,) = plan_of(prepare("7-1", parameter_server), cluster).tasks
    assert task.env["CUDA_VISIBLE_DEVICES"] == ""
    assert "RANK" not in task.env
    assert json.loads(task.env["TF_CONFIG"])["task"] == {"type": "ps", "index": 0}


def test_the_jobs_environment_never_replaces_ours():
    plan = plan_of(prepare(env={"TIRESIAS_RUN_ID": "0-0", "CUDA_VISIBLE_DEVICES": "all", "A": "b"}))
    (task,) = plan.tasks
    both = plan.env | task.env
    assert (both["TIRESIAS_RUN_ID"], both["CUDA_VISIBLE_DEVICES"]) == ("7-1", "G0")
    assert both["A"] == "b"


def test_only_the_tasks_of_this_node_are_planned():
    plan = plan_of(prepare("7-1", worker(0), worker(1, node="n2"), workers=2), {"ps": ()})
    assert [task.name for task in plan.tasks] == ["worker-0"]
    assert "MASTER_ADDR" not in plan.tasks[0].env
