"""The example in docs/explanation/2das.md, replayed on the scheduler's core, minute by minute."""

import re
from pathlib import Path

import pytest

from broker.schemas.base import Input, Output
from broker.schemas.command import PreemptRun, PrepareRun
from broker.schemas.fact import JobDemoted, RunRunning
from broker.schemas.job import JobSpec, JobSubmitted
from broker.schemas.node import GpuInfo, NodeJoined
from broker.schemas.operator import ClockAdvanced, Settings
from broker.schemas.run import (
    InventoryReported,
    RunExited,
    RunStarted,
    StopReason,
    TaskExit,
)
from scheduler_svc.core.scheduler import Scheduler

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "2das.md"
MINUTE_MS = 60_000
START_MS = 1_700_000_000_000


class Cluster:
    """One node whose launcher obeys at once, and jobs that need a known time to run."""

    def __init__(self, settings: Settings) -> None:
        self.scheduler = Scheduler(settings)
        self.now_ms = START_MS
        self.seq = 0
        self.names: dict[int, str] = {}
        self.remaining_ms: dict[int, int] = {}
        self.running_since_ms: dict[int, int] = {}
        self.submitted_ms: dict[str, int] = {}
        self.ended_ms: dict[str, int] = {}
        self.starts: list[tuple[int, str]] = []
        self.demotions: list[tuple[int, str]] = []
        self.specs: dict[int, PrepareRun] = {}
        gpus = tuple(GpuInfo(gpu_id=f"GPU-{i}", index=i) for i in range(4))
        self.say(NodeJoined(node="n1", boot_id="b", host="127.0.0.1", gpus=gpus))
        self.say(InventoryReported(node="n1", boot_id="b"))

    @property
    def minute(self) -> int:
        return (self.now_ms - START_MS) // MINUTE_MS

    def submit(self, at_minute: int, name: str, gpus: int, minutes: int) -> None:
        self.advance_to(START_MS + at_minute * MINUTE_MS)
        job_id = self.seq + 1
        self.names[job_id], self.remaining_ms[job_id] = name, minutes * MINUTE_MS
        self.submitted_ms[name] = self.now_ms
        self.say(JobSubmitted(user="ada", spec=JobSpec(name=name, run="x", gpus_per_worker=gpus)))

    def advance_to(self, target_ms: int) -> None:
        """Let jobs end and deadlines fall due, each at its own time."""
        while (due := self._next_event()) and due[0] <= target_ms:
            self.now_ms, job_id = max(self.now_ms, due[0]), due[1]
            self.say(self._finished(job_id) if job_id else ClockAdvanced())
        self.now_ms = target_ms

    def say(self, message: Input) -> None:
        self.seq += 1
        for output in self.scheduler.handle(self.seq, message, self.now_ms):
            self._obey(output)

    def _next_event(self) -> tuple[int, int] | None:
        ends = [
            (since_ms + self.remaining_ms[job_id], job_id)
            for job_id, since_ms in self.running_since_ms.items()
        ]
        deadline_ms = self.scheduler.next_deadline_ms()
        return min([*ends, *([] if deadline_ms is None else [(deadline_ms, 0)])], default=None)

    def _obey(self, output: Output) -> None:
        match output:
            case PrepareRun(run_id=run_id):
                self.specs[output.job_id] = output
                assert output.is_whole_gang
                self.say(RunStarted(node="n1", run_id=run_id, pids={"worker-0": 1}))
            case PreemptRun(run_id=run_id):
                job_id = int(run_id.partition("-")[0])
                self.remaining_ms[job_id] -= self.now_ms - self.running_since_ms.pop(job_id)
                self.say(exited(run_id, 75, StopReason.PREEMPT))
            case RunRunning(job_id=job_id):
                self.running_since_ms[job_id] = self.now_ms
                self.starts.append((self.minute, self.names[job_id]))
            case JobDemoted(job_id=job_id):
                self.demotions.append((self.minute, self.names[job_id]))

    def _finished(self, job_id: int) -> Input:
        del self.running_since_ms[job_id]
        self.ended_ms[self.names[job_id]] = self.now_ms
        return exited(self.specs[job_id].run_id, 0, None)


def exited(run_id: str, code: int, asked: StopReason | None) -> RunExited:
    task = TaskExit(task="worker-0", rank=0, exit_code=code, stopped_by_us=asked is not None)
    return RunExited(node="n1", run_id=run_id, tasks=(task,), asked=asked)


def replay(settings: Settings) -> Cluster:
    cluster = Cluster(settings)
    cluster.submit(0, "train", 4, 30)
    cluster.submit(10, "tune", 2, 10)
    cluster.submit(12, "eval", 1, 5)
    cluster.advance_to(START_MS + 120 * MINUTE_MS)
    return cluster


def minutes_told(column: int) -> dict[str, int]:
    """A column of the page's table: 1 is 2DAS, 2 is first come, first served."""
    rows = re.findall(r"^\| `(\w+)` \| (\d+) min \| (\d+) min \|$", PAGE.read_text(), re.MULTILINE)
    return {row[0]: int(row[column]) for row in rows}


@pytest.mark.parametrize(("policy", "column"), [("las", 1), ("fifo", 2)])
def test_the_table_on_the_page_is_what_the_core_does(policy: str, column: int) -> None:
    cluster = replay(Settings(policy=policy, queue_limits_gpu_ms=(3_600_000,)))
    took = {
        name: (ended_ms - cluster.submitted_ms[name]) // MINUTE_MS
        for name, ended_ms in cluster.ended_ms.items()
    }
    assert took == minutes_told(column)
    assert len(took) == 3


def test_the_story_on_the_page_is_what_the_core_does() -> None:
    cluster = replay(Settings(queue_limits_gpu_ms=(3_600_000,)))
    assert cluster.demotions == [(15, "train")]
    assert cluster.starts == [(0, "train"), (15, "tune"), (15, "eval"), (25, "train")]
