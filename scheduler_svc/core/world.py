"""The scheduler's whole state, and the outputs of the input being handled."""

from typing import Any

from broker.schemas.base import Output
from broker.schemas.fact import JobFact, NodeFact
from broker.schemas.operator import Settings
from broker.schemas.views import JobView
from scheduler_svc.core.cluster import Cluster
from scheduler_svc.core.engine import Engine
from scheduler_svc.core.record import JobRecord, Run
from scheduler_svc.core.verdict import Verdict

MAX_REMEMBERED_SKEWS = 10_000
MAX_JOB_ID_DIGITS = 20


class World:
    """What the handlers in `jobs`, `runs` and `nodes` change. Only they do."""

    def __init__(self, settings: Settings) -> None:
        self.now_ms = 0
        self.cluster = Cluster()
        self.engine = Engine(settings, self.cluster)
        self.jobs: dict[int, JobRecord] = {}
        self.skews: dict[str, float] = {}
        """``user/name`` of a job -> skew measured last."""
        self.ended: list[int] = []
        """Jobs that ended with the present input; forgotten at the next."""
        self.verdicts: list[tuple[JobRecord, Verdict]] = []
        """Runs that are over, and whose jobs have not been told yet."""
        self.rejected: list[JobView] = []
        self.changed_jobs: set[int] = set()
        self.changed_nodes: set[str] = set()
        self._seq = 0
        self._outputs: list[Output] = []

    @property
    def settings(self) -> Settings:
        return self.engine.settings

    def begin(self, seq: int) -> None:
        """Outputs from now on are caused by the input with this log sequence."""
        self._seq = seq
        self._outputs = []

    def take_outputs(self) -> list[Output]:
        return self._outputs

    def emit(self, output_type: type[Output], **fields: Any) -> None:
        """Add an output, stamped with its cause, its place and the time; note whom it is about."""
        output = output_type(
            cause_seq=self._seq, index=len(self._outputs), at_ms=self.now_ms, **fields
        )
        self._outputs.append(output)
        if isinstance(output, JobFact):
            self.touch(output.job_id)
        elif isinstance(output, NodeFact):
            self.changed_nodes.add(output.node)

    def tell(self, job: JobRecord, what: str, detail: str = "") -> None:
        """Add a line to the job's story and mark its view."""
        job.tell(self.now_ms, f"{what}: {detail}" if detail else what)
        self.touch(job.job_id)

    def touch(self, job_id: int) -> None:
        """The job's view has changed, and those of the nodes it runs on."""
        self.changed_jobs.add(job_id)
        job = self.jobs.get(job_id)
        if job is not None and job.run is not None:
            self.changed_nodes.update(job.run.nodes)

    def find_run(self, run_id: str, node: str) -> tuple[JobRecord, Run] | None:
        """The live run a report from ``node`` is about; None for stale and foreign ones."""
        job_id = run_id.partition("-")[0]
        is_number = job_id.isdecimal() and len(job_id) <= MAX_JOB_ID_DIGITS
        job = self.jobs.get(int(job_id)) if is_number else None
        if job is None or job.run is None or job.run.run_id != run_id:
            return None
        return (job, job.run) if node in job.run.nodes else None

    def remember_skew(self, job: JobRecord, skew: float) -> None:
        """Keep a job's skew for itself and for the next job of its name."""
        job.skew = skew
        self.skews.pop(skew_key(job.user, job.spec.name), None)
        self.skews[skew_key(job.user, job.spec.name)] = skew
        while len(self.skews) > MAX_REMEMBERED_SKEWS:
            del self.skews[next(iter(self.skews))]


def skew_key(user: str, name: str) -> str:
    return f"{user}/{name}"
