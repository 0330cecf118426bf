"""The jobs of `tiresias demo`: one that is long and wide, and small ones that come later."""

import importlib.util
import sys
from pathlib import Path

import cli
from broker.schemas.job import JobSpec
from cli.exit_codes import CommandError

ROOT = Path(cli.__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
QUEUE_LIMIT_GPU_S = 240
"""The long job, on 8 GPUs, passes it after 30 seconds of running."""
SCHEDULER_OPTIONS = ("--queue-limits", str(QUEUE_LIMIT_GPU_S), "--preempt-exempt", "5s")
LONG_TRAINING = ("train_digits.py", "--epochs", "8")


def check_installed() -> None:
    """Raise if the demo's scripts or TensorFlow are not there."""
    if not (EXAMPLES / LONG_TRAINING[0]).exists():
        raise CommandError(
            f"the demo's training scripts are not in {EXAMPLES}: "
            "they are part of the source, not of the installed package; clone it and 'make demo'"
        )
    if importlib.util.find_spec("tensorflow") is None:
        raise CommandError("the demo trains with TensorFlow: pip install 'tiresias-mesh[tf]'")


def long_job() -> JobSpec:
    """All 8 GPUs, two all-reduce workers; slowed down a little, as if the model were large."""
    return _job("long", *LONG_TRAINING, "--step-ms", "100", workers=2, gpus_per_worker=4)


def small_jobs() -> list[JobSpec]:
    """Jobs that nobody wants to see behind the long one."""
    loops = [_job(f"small-{n}", "plain_loop.py", "--steps", str(40 + 20 * n)) for n in range(3)]
    return [*loops, _job("parameter-server", "train_ps.py", workers=2, ps=1)]


def reference_job() -> JobSpec:
    """The long job's training again, never interrupted: must reach the same loss."""
    return _job("reference", *LONG_TRAINING, workers=2)


def _job(
    name: str, script: str, *arguments: str, workers: int = 1, gpus_per_worker: int = 1, ps: int = 0
) -> JobSpec:
    return JobSpec(
        name=name,
        run=(sys.executable, str(EXAMPLES / script), *arguments),
        workers=workers,
        gpus_per_worker=gpus_per_worker,
        ps=ps,
        workdir=str(EXAMPLES),
        grace="60s",
        env={"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
