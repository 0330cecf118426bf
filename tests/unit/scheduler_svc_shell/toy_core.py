"""A core small enough to see through: two outputs for each job, one deadline a second later."""

import json

import msgspec

from broker.schemas.base import Input, Output
from broker.schemas.command import PrepareRun
from broker.schemas.fact import JobDemoted, JobEnded, JobQueued, JobRejected, NodeDown, NodeUp
from broker.schemas.job import JobCancelRequested, JobRefused, JobSubmitted
from broker.schemas.node import NodeHeard, NodeJoined, NodeLost, NodeSilent
from broker.schemas.operator import Settings, SettingsChanged
from broker.schemas.views import Explanation, JobState, JobView, NodeView

DEADLINE_MS = 1_000
BOOM = "boom"


class ToyCore:
    """The API of the scheduler core over plain dicts."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.now_ms = 0
        self.jobs: dict[str, dict] = {}
        self.nodes: dict[str, str] = {}
        self.changed: list = []

    def handle(self, seq: int, message: Input, at_ms: int) -> list[Output]:
        assert at_ms >= self.now_ms
        self.now_ms = at_ms
        outputs = self._due() + self._act(seq, message)
        return [
            msgspec.structs.replace(output, cause_seq=seq, index=index, at_ms=at_ms)
            for index, output in enumerate(outputs)
        ]

    def _due(self) -> list[Output]:
        outputs = []
        for job_id, job in self.jobs.items():
            if job["due_ms"] is not None and job["due_ms"] <= self.now_ms:
                job["due_ms"] = None
                outputs.append(JobDemoted(job_id=int(job_id), queue_index=1, attained_gpu_ms=0))
        return outputs

    def _act(self, seq: int, message: Input) -> list[Output]:
        match message:
            case JobSubmitted():
                if message.spec.name == BOOM:
                    raise RuntimeError("the toy broke")
                self.jobs[str(seq)] = {
                    "name": message.spec.name,
                    "due_ms": self.now_ms + DEADLINE_MS,
                }
                self._show_job(str(seq), JobState.QUEUED)
                return [JobQueued(job_id=seq, queue_index=0), self._prepare(seq, message)]
            case JobRefused():
                return [JobRejected(job_id=seq, problems=message.problems)]
            case JobCancelRequested() if str(message.job_id) in self.jobs:
                self._show_job(str(message.job_id), JobState.CANCELLED)
                del self.jobs[str(message.job_id)]
                return [JobEnded(job_id=message.job_id, state=JobState.CANCELLED, reason="Cancel")]
            case SettingsChanged():
                self.settings = message.settings
            case _ if hasattr(message, "node"):
                return self._act_on_node(message)
        return []

    def _act_on_node(self, message: Input) -> list[Output]:
        states = {NodeJoined: "up", NodeHeard: "up", NodeSilent: "silent", NodeLost: "lost"}
        state = states[type(message)]
        self._show_node(message.node, state)
        if state == "up":
            return [NodeUp(node=message.node, gpus=0)]
        return [NodeDown(node=message.node, state=state)]

    @staticmethod
    def _prepare(seq: int, message: JobSubmitted) -> PrepareRun:
        return PrepareRun(
            node="n1",
            run_id=f"{seq}-1",
            job_id=seq,
            attempt=1,
            user=message.user,
            spec=message.spec,
            tasks=(),
        )

    def _show_job(self, job_id: str, state: JobState) -> None:
        name = self.jobs[job_id]["name"]
        self.changed.append(JobView(job_id=int(job_id), name=name, user="ada", state=state))

    def _show_node(self, node: str, state: str) -> None:
        self.nodes[node] = state
        self.changed.append(NodeView(node=node, state=state))

    def next_deadline_ms(self) -> int | None:
        return min(
            (j["due_ms"] for j in self.jobs.values() if j["due_ms"] is not None), default=None
        )

    def take_changed_views(self) -> list:
        taken, self.changed = self.changed, []
        return taken

    def all_views(self) -> list:
        for job_id in self.jobs:
            self._show_job(job_id, JobState.QUEUED)
        for node, state in self.nodes.items():
            self._show_node(node, state)
        return self.take_changed_views()

    def explain(self, job_id: int, now_ms: int = 0) -> Explanation | None:
        if str(job_id) not in self.jobs:
            return None
        return Explanation(
            job_id=job_id,
            state=JobState.QUEUED,
            reason="Resources",
            message="",
            queue_index=0,
            attained_gpu_ms=0,
            next_limit_gpu_ms=None,
            position=1,
            ahead_gpus=0,
            capacity_gpus=0,
            waited_ms=0,
            promoted_at_waited_ms=None,
        )

    def snapshot(self) -> bytes:
        settings = msgspec.to_builtins(self.settings)
        return json.dumps([settings, self.now_ms, self.jobs, self.nodes]).encode()

    @classmethod
    def restore(cls, data: bytes) -> "ToyCore":
        core = cls()
        settings, core.now_ms, core.jobs, core.nodes = json.loads(data)
        core.settings = msgspec.convert(settings, Settings)
        return core
