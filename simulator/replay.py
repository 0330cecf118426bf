"""Run jobs of known service through the scheduling engine in virtual time.

Preemption is free and starts take no time. Events of one instant act in the order completions,
submissions, demotions and promotions, then one pass.
"""

import heapq
from collections.abc import Mapping, Sequence

import msgspec

from broker.ids import run_id
from broker.schemas.node import GpuInfo
from broker.schemas.operator import Settings
from scheduler_svc.core.cluster import Cluster, Gpu, Node
from scheduler_svc.core.engine import Engine
from scheduler_svc.core.errors import InvariantError
from scheduler_svc.core.job import Job, Placement, gpus_of


class TraceJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job of a trace: when it came, its gang, how long it ran on its GPUs."""

    job_id: int
    submit_ms: int
    workers: int
    gpus_per_worker: int = 1
    duration_ms: int
    skew: float | None = None


class ReplayResult(msgspec.Struct, kw_only=True):
    """Finish time of each job, and how often jobs were put aside."""

    finish_ms: dict[int, int]
    preemptions: int = 0
    promotions: int = 0

    def jct_ms(self, jobs: Sequence[TraceJob]) -> dict[int, int]:
        """Completion time of each job: finish - submit."""
        return {job.job_id: self.finish_ms[job.job_id] - job.submit_ms for job in jobs}


def make_cluster(node_gpus: Mapping[str, int]) -> Cluster:
    """Build nodes with so many GPUs each."""
    nodes = {}
    for name, count in node_gpus.items():
        infos = [GpuInfo(gpu_id=f"{name}-{i}", index=i, simulated=True) for i in range(count)]
        nodes[name] = Node(
            name=name, state="up", gpus={info.gpu_id: Gpu(info=info) for info in infos}
        )
    return Cluster(nodes)


def replay(
    jobs: Sequence[TraceJob], node_gpus: Mapping[str, int], settings: Settings
) -> ReplayResult:
    """Simulate until every job is done; `InvariantError` if some job can never run."""
    return _Replay(jobs, node_gpus, settings).run()


class _Replay:
    def __init__(
        self, jobs: Sequence[TraceJob], node_gpus: Mapping[str, int], settings: Settings
    ) -> None:
        self._engine = Engine(settings, make_cluster(node_gpus))
        self._arrivals = sorted(jobs, key=lambda job: (job.submit_ms, job.job_id), reverse=True)
        self._duration_ms = {job.job_id: job.duration_ms for job in jobs}
        self._left_ms = dict(self._duration_ms)
        self._jobs: dict[int, Job] = {}
        self._began_ms: dict[int, int] = {}
        self._finishes: list[tuple[int, int, int]] = []
        self._result = ReplayResult(finish_ms={})

    def run(self) -> ReplayResult:
        while len(self._result.finish_ms) < len(self._duration_ms):
            now_ms = self._next_ms()
            if now_ms is None:
                missing = sorted(set(self._duration_ms) - set(self._result.finish_ms))
                raise InvariantError(f"{len(missing)} jobs never finish, first: job {missing[0]}")
            self._complete(now_ms)
            self._submit(now_ms)
            self._move(now_ms)
            while self._pass(now_ms):
                pass
        return self._result

    def _next_ms(self) -> int | None:
        while self._finishes and not self._is_current(self._finishes[0]):
            heapq.heappop(self._finishes)
        times = [
            self._arrivals[-1].submit_ms if self._arrivals else None,
            self._finishes[0][0] if self._finishes else None,
            self._engine.timers.next_ms(),
        ]
        return min((time for time in times if time is not None), default=None)

    def _is_current(self, finish: tuple[int, int, int]) -> bool:
        """The run that this finish belongs to has not been put aside meanwhile."""
        _, job_id, began_ms = finish
        return self._began_ms.get(job_id) == began_ms

    def _complete(self, now_ms: int) -> None:
        while self._finishes and self._finishes[0][0] <= now_ms:
            finish = heapq.heappop(self._finishes)
            if self._is_current(finish):
                job = self._jobs.pop(finish[1])
                del self._began_ms[job.job_id]
                self._result.finish_ms[job.job_id] = now_ms
                self._engine.withdraw(job, now_ms)
                self._engine.release(job, run_id(job.job_id, 1), now_ms)

    def _submit(self, now_ms: int) -> None:
        while self._arrivals and self._arrivals[-1].submit_ms <= now_ms:
            row = self._arrivals.pop()
            job = Job(
                job_id=row.job_id,
                workers=row.workers,
                gpus_per_worker=row.gpus_per_worker,
                skew=row.skew,
            )
            self._jobs[job.job_id] = job
            self._engine.submit(job, now_ms)

    def _move(self, now_ms: int) -> None:
        while (due := self._engine.timers.pop_due(now_ms)) is not None:
            job_id, kind = due
            was_waiting = self._jobs[job_id].counting_since_ms is None
            if self._engine.on_timer(self._jobs[job_id], kind, now_ms) and was_waiting:
                self._result.promotions += 1

    def _pass(self, now_ms: int) -> bool:
        """Decide and carry it out; say if somebody was put aside, who may find GPUs elsewhere."""
        plan = self._engine.decide(now_ms)
        for victim, _ in plan.preempts:
            began_ms = self._began_ms.pop(victim.job_id)
            self._left_ms[victim.job_id] -= now_ms - began_ms
            self._result.preemptions += 1
            self._engine.release(victim, run_id(victim.job_id, 1), now_ms)
        for job, placement in (*plan.starts, *self._claims_now_free()):
            self._engine.acquire(job, placement, run_id(job.job_id, 1), now_ms)
            self._engine.begin_service(job, now_ms)
            self._began_ms[job.job_id] = now_ms
            finish_ms = now_ms + self._left_ms[job.job_id]
            heapq.heappush(self._finishes, (finish_ms, job.job_id, now_ms))
        self._engine.settle()
        return bool(plan.preempts)

    def _claims_now_free(self) -> list[tuple[Job, Placement]]:
        """Jobs whose victims have just gone; not those whose nodes are held for a part only."""
        cluster = self._engine.cluster
        return [
            (job, job.claim)
            for job in self._engine.order()
            if job.claim is not None
            and len(gpus := gpus_of(job.claim)) == job.gpus
            and all(cluster.gpu(node, gpu_id).owner is None for node, gpu_id in gpus)
        ]


def fifo_jct_ms(jobs: Sequence[TraceJob], node_gpus: Mapping[str, int]) -> dict[int, int]:
    """JCT of each job if they had come to a strict FIFO scheduler instead."""
    return replay(jobs, node_gpus, Settings(policy="fifo")).jct_ms(jobs)
