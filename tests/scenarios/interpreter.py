"""The words of the scripts, carried out on a checked core with obedient launchers.

    settings KEY=VALUE...               as in `Settings`: times as 90s, queue_limits in GPU seconds
    node NODE gpus=4                    agent and launcher come up
    rejoin NODE [gpus=4]                its agent restarts
    reboot NODE                         its machine restarts
    submit JOB gpus=8 [KEY=VALUE...]    keys of the job file; max_restarts; skew, as if known before
    cancel JOB [force] | hold JOB | release JOB
    finish JOB [task=TASK] [node=NODE]  its tasks exit 0; with `task`, the others of that node
                                        are stopped by their supervisor
    fail JOB [code=1] [signal=9] [task=TASK] [node=NODE]
    resumed JOB                         its first step after a start is done
    skew JOB 0.7 | pack-limit 0.4       measured, refitted by the profiler
    advance 90s                         time passes; deadlines act
    cordon NODE | uncordon NODE
    gpu-fault NODE INDEX REASON [detail]   | gpu-mended NODE INDEX
    node-silent NODE | node-heard NODE | node-left NODE
    node-lost NODE                      its launcher's lease has ended what ran there
    stray-exit NODE RUN                 a run ends there that the scheduler does not know
    launcher-left NODE
    launcher-reports NODE [has=RUN]     the runs it has, or only RUN, or has=nothing
    deaf NODE                           its launcher gets commands and does nothing yet
    obey NODE [code=3] [signal=15]      a deaf launcher carries out one command; so its tasks end
    refuse NODE REASON [owner=RUN]      a deaf launcher refuses the next run that it shall prepare
    hear NODE                           it carries out all it was told, and reports its runs
    show | nodes | order | why JOB | counts JOB

Settings that a script leaves out are the product's, except preempt_exempt=0s, restart_backoff=1s.
After each block, five more passes change nothing; invariants are checked after every input.
"""

import shlex
from collections import defaultdict, deque

import msgspec

from broker.schemas.command import Command, PreemptRun, PrepareRun, StopRun
from broker.schemas.job import (
    JobCancelRequested,
    JobHoldRequested,
    JobReleaseRequested,
    RestartSpec,
    duration_ms,
)
from broker.schemas.node import (
    GpuHealthChanged,
    GpuInfo,
    NodeCordonRequested,
    NodeHeard,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeSilent,
    NodeUncordonRequested,
)
from broker.schemas.operator import (
    ClockAdvanced,
    PackLimitChanged,
    Settings,
    SettingsChanged,
    SkewMeasured,
)
from broker.schemas.run import (
    InventoryReported,
    LauncherLeft,
    RunExited,
    RunPrepareRefused,
    RunReport,
    RunResumed,
    StopReason,
    TaskExit,
)
from scheduler_svc.core.world import skew_key
from tests.scenarios import tables
from tests.scenarios.wording import line_of, named
from tests.unit.scheduler_svc.mesh import Mesh

USER = "ann"
NOBODYS_JOB = 10**9
SIGTERM = 15


class Interpreter:
    """One scheduler and its cluster; `run` carries out commands and returns what came out."""

    def __init__(self) -> None:
        self.mesh = Mesh()
        self.names: dict[int, str] = {}
        self._pending: defaultdict[str, deque[Command]] = defaultdict(deque)
        self._boots: dict[str, int] = {}
        self._told = 0
        self._lines: list[str] = []

    def run(self, commands: list[str]) -> list[str]:
        self._lines = []
        for command in commands:
            try:
                self._carry_out(command)
            except Exception as error:
                error.add_note(f"in the command: {command}")
                raise
        self._check_that_it_rests()
        return self._lines or ["nothing"]

    def _carry_out(self, command: str) -> None:
        word, *arguments = shlex.split(command)
        plain = [argument for argument in arguments if "=" not in argument]
        options = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
        getattr(self, f"do_{word.replace('-', '_')}")(*plain, **options)
        self._collect()

    def do_settings(self, **options: str) -> None:
        names = Settings.__struct_fields__
        changes: dict[str, object] = {}
        for key, value in options.items():
            if key == "queue_limits":
                limits = tuple(int(part) * 1_000 for part in value.split(",") if part)
                changes["queue_limits_gpu_ms"] = limits
            elif f"{key}_ms" in names:
                changes[f"{key}_ms"] = duration_ms(value)
            else:
                changes[key] = value
        present = msgspec.to_builtins(self.mesh.core.settings)
        settings = msgspec.convert(present | changes, Settings, strict=False)
        self.mesh.send(SettingsChanged(settings=settings))

    def do_node(self, node: str, gpus: str) -> None:
        self._boots[node] = 1
        self.mesh.join(node, int(gpus))

    def do_rejoin(self, node: str, gpus: str | None = None) -> None:
        count = len(self._node(node).gpus) if gpus is None else int(gpus)
        infos = tuple(GpuInfo(gpu_id=f"{node}-gpu{i}", index=i) for i in range(count))
        boot_id = f"boot-{self._boots[node]}"
        self.mesh.send(NodeJoined(node=node, boot_id=boot_id, host="", gpus=infos))

    def do_reboot(self, node: str) -> None:
        self._boots[node] += 1
        self._drop_runs(node)
        self.mesh.join(node, len(self._node(node).gpus), f"boot-{self._boots[node]}")

    def do_submit(self, name: str, gpus: str = "1", **options: str) -> None:
        per_worker = int(options.pop("gpus_per_worker", "1"))
        fields: dict[str, object] = {"name": name, "gpus_per_worker": per_worker, **options}
        if "max_restarts" in fields:
            fields["restart"] = RestartSpec(max=int(str(fields.pop("max_restarts"))))
        if "skew" in fields:
            self.mesh.core._world.skews[skew_key(USER, name)] = float(str(fields.pop("skew")))
        if "ps" in fields:
            fields["ps"] = int(options["ps"])
        self.names[self.mesh.seq + 1] = name
        self.mesh.submit(int(gpus) // per_worker, **fields)

    def do_cancel(self, job: str, force: str = "") -> None:
        self.mesh.send(JobCancelRequested(job_id=self._id(job), user=USER, force=bool(force)))

    def do_hold(self, job: str) -> None:
        self.mesh.send(JobHoldRequested(job_id=self._id(job), user=USER))

    def do_release(self, job: str) -> None:
        self.mesh.send(JobReleaseRequested(job_id=self._id(job), user=USER))

    def do_finish(self, job: str, task: str = "", node: str = "") -> None:
        self._end_tasks(job, 0, None, task, node)

    def do_fail(
        self, job: str, code: str = "1", signal: str = "", task: str = "", node: str = ""
    ) -> None:
        if signal:
            self._end_tasks(job, None, int(signal), task, node)
        else:
            self._end_tasks(job, int(code), None, task, node)

    def do_resumed(self, job: str) -> None:
        view = self.mesh.view(self._id(job))
        assert view.run_id is not None, job
        self.mesh.send(RunResumed(node=next(iter(view.placement)), run_id=view.run_id, step=1))

    def do_skew(self, job: str, skew: str) -> None:
        self.mesh.send(SkewMeasured(job_id=self._id(job), skew=float(skew)))

    def do_pack_limit(self, pack_limit: str) -> None:
        self.mesh.send(PackLimitChanged(pack_limit=float(pack_limit)))

    def do_advance(self, duration: str) -> None:
        self.mesh.advance(duration_ms(duration))

    def do_cordon(self, node: str) -> None:
        self.mesh.send(NodeCordonRequested(node=node, user=USER))

    def do_uncordon(self, node: str) -> None:
        self.mesh.send(NodeUncordonRequested(node=node, user=USER))

    def do_gpu_fault(self, node: str, index: str, reason: str, detail: str = "") -> None:
        self._gpu_health(node, index, reason=reason, detail=detail)

    def do_gpu_mended(self, node: str, index: str) -> None:
        self._gpu_health(node, index, reason=None, detail="")

    def do_node_silent(self, node: str) -> None:
        self.mesh.send(NodeSilent(node=node, silent_ms=0))

    def do_node_heard(self, node: str) -> None:
        self.mesh.send(NodeHeard(node=node))

    def do_node_left(self, node: str) -> None:
        self.mesh.send(NodeLeft(node=node))

    def do_node_lost(self, node: str) -> None:
        self._drop_runs(node)
        self.mesh.send(NodeLost(node=node, silent_ms=0))

    def do_stray_exit(self, node: str, run_id: str) -> None:
        self.mesh.send(RunExited(node=node, run_id=run_id))

    def do_launcher_left(self, node: str) -> None:
        self.mesh.send(LauncherLeft(node=node))

    def do_launcher_reports(self, node: str, has: str = "") -> None:
        run_ids = [] if has == "nothing" else [self._run_id(has)] if has else self._runs_at(node)
        self.mesh.send(
            InventoryReported(
                node=node,
                boot_id=f"boot-{self._boots[node]}",
                runs=tuple(RunReport(run_id=run_id, phase="running") for run_id in run_ids),
            )
        )

    def do_deaf(self, node: str) -> None:
        self.mesh.deaf.add(node)

    def do_obey(self, node: str, code: str = "", signal: str = "") -> None:
        command = self._pending[node].popleft()
        if not (code or signal):
            self.mesh.obey(command)
            return
        assert isinstance(command, PreemptRun | StopRun), command
        self.mesh.exit(
            command.run_id,
            node,
            code=int(code) if code else None,
            signal=int(signal) if signal else None,
            asked=StopReason.PREEMPT if isinstance(command, PreemptRun) else command.reason,
        )

    def do_refuse(self, node: str, reason: str, owner: str = "") -> None:
        command = self._pending[node].popleft()
        while not isinstance(command, PrepareRun):
            self.mesh.obey(command)
            command = self._pending[node].popleft()
        gpu_id = command.tasks[0].gpu_ids[0]
        refusal = {"node": node, "run_id": command.run_id, "reason": reason}
        owners = {gpu_id: owner} if owner else {}
        self.mesh.send(msgspec.convert({**refusal, "owners": owners}, RunPrepareRefused))

    def do_hear(self, node: str) -> None:
        while self._pending[node]:
            self.mesh.obey(self._pending[node].popleft())
            self._collect()
        self.mesh.deaf.remove(node)
        self.mesh.report(node)

    def do_show(self) -> None:
        self._lines += tables.jobs(self.mesh, self.names)

    def do_nodes(self) -> None:
        self._lines += tables.nodes(self.mesh, self.names)

    def do_order(self) -> None:
        self._lines += tables.order(self.mesh, self.names)

    def do_why(self, job: str) -> None:
        explanation = self.mesh.core.explain(self._id(job), self.mesh.now_ms)
        self._lines += [named(line, self.names) for line in tables.why(job, explanation)]

    def do_counts(self, job: str) -> None:
        self._lines.append(tables.counts(job, self.mesh.view(self._id(job))))

    def _collect(self) -> None:
        """Tell the new outputs; keep the commands of deaf launchers for later."""
        for output in self.mesh.outputs[self._told :]:
            self._lines.append(line_of(output, self.names))
            if isinstance(output, Command) and output.node in self.mesh.deaf:
                self._pending[output.node].append(output)
        self._told = len(self.mesh.outputs)

    def _check_that_it_rests(self) -> None:
        """Neither the clock nor more passes change anything without a new reason.

        A `ClockAdvanced` with nothing due makes no pass; a request about a job that nobody knows
        does.
        """
        before = self._decisions()
        for _ in range(5):
            self.mesh.send(ClockAdvanced())
            self.mesh.send(JobCancelRequested(job_id=NOBODYS_JOB))
        assert self.mesh.outputs[self._told :] == []
        assert self._decisions() == before

    def _decisions(self) -> tuple[object, ...]:
        """Who holds and is promised what, in which order, why others wait, and what is due."""
        engine = self.mesh.core._world.engine
        jobs = [
            (
                job.job_id,
                job.queue_index,
                job.placement,
                job.claim,
                job.wait and (job.wait.reason, job.wait.for_job),
            )
            for job in engine.order()
        ]
        return jobs, engine.timers.entries()

    def _end_tasks(
        self, job: str, code: int | None, signal: int | None, task: str, node: str
    ) -> None:
        """All tasks of the run, or of one node, end so; or one, and its supervisor stops others."""
        view = self.mesh.view(self._id(job))
        assert view.run_id is not None, job
        if task:
            node = view.tasks[task]
            prepared = self.mesh.tasks.pop(f"{view.run_id}/{node}")
            exits = tuple(
                TaskExit(task=other.name, rank=other.rank, exit_code=code, signal=signal)
                if other.name == task
                else TaskExit(task=other.name, rank=other.rank, signal=SIGTERM, stopped_by_us=True)
                for other in prepared.tasks
            )
            self.mesh.send(RunExited(node=node, run_id=view.run_id, tasks=exits))
            return
        for place in [node] if node else list(view.placement):
            if f"{view.run_id}/{place}" in self.mesh.tasks:
                self.mesh.exit(view.run_id, place, code=code, signal=signal)

    def _gpu_health(self, node: str, index: str, *, reason: str | None, detail: str) -> None:
        fields = {"node": node, "gpu_id": f"{node}-gpu{index}", "reason": reason, "detail": detail}
        self.mesh.send(msgspec.convert(fields, GpuHealthChanged))

    def _runs_at(self, node: str) -> list[str]:
        places = (key.split("/") for key in self.mesh.tasks)
        return [run_id for run_id, place in places if place == node]

    def _drop_runs(self, node: str) -> None:
        for run_id in self._runs_at(node):
            del self.mesh.tasks[f"{run_id}/{node}"]

    def _node(self, node: str):
        return self.mesh.core._world.cluster.nodes[node]

    def _id(self, job: str) -> int:
        return next(job_id for job_id, name in self.names.items() if name == job)

    def _run_id(self, run: str) -> str:
        job, _, attempt = run.rpartition("-")
        return run if job.isdecimal() else f"{self._id(job)}-{attempt}"
