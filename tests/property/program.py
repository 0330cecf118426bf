"""A random life of a small cluster: steps drawn by Hypothesis, carried out on a checked core."""

from hypothesis import strategies as st

from broker.schemas.base import Input, Output
from broker.schemas.command import Command
from broker.schemas.fact import JobEnded, RunEnded, RunRunning
from broker.schemas.job import (
    JobCancelRequested,
    JobHoldRequested,
    JobReleaseRequested,
    JobSpec,
    JobSubmitted,
    RestartSpec,
)
from broker.schemas.node import (
    GpuFaultReason,
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
from broker.schemas.run import InventoryReported, LauncherLeft, RunExited, RunPrepared, StopReason
from broker.schemas.views import JobState, JobView
from scheduler_svc.core.scheduler import Scheduler
from tests.property.launchers import Launcher
from tests.property.watch import state_of, watch

STEPS = (
    "rest",
    *("submit",) * 10,
    *("advance",) * 8,
    *("obey",) * 4,
    *("finish",) * 4,
    *("fail", "cancel", "hold", "release", "release", "kill_all") * 2,
    *("silence", "hear", "hear", "lose", "rejoin", "rejoin", "reboot", "leave", "restart_launcher"),
    *("break_gpu", "mend_gpu", "mend_gpu", "cordon", "uncordon", "uncordon", "launcher_leaves"),
    *("refuse", "deafen", "listen", "listen", "stale_exit", "stale_prepared", "manner", "laziness"),
    *("skew", "pack_limit", "settings"),
)
ADVANCES_MS = (0, 1, 5, 20, 100, 500, 5_000)
START_MS = 1_000


@st.composite
def settings_sets(draw) -> Settings:
    """Settings whose times are short, so that a few steps reach every deadline."""
    return Settings(
        policy=draw(st.sampled_from(("las", "las", "las", "fifo"))),
        queue_limits_gpu_ms=draw(st.sampled_from(((), (40,), (40, 300), (100, 200, 4_000)))),
        queue_order=draw(st.sampled_from(("running_first", "start_time"))),
        promote_knob=draw(st.sampled_from((None, 0.5, 1.0, 3.0))),
        promote_floor_ms=draw(st.sampled_from((0, 50))),
        pack_limit=0.5,
        consolidate=draw(st.sampled_from(("prefer", "require"))),
        preempt_exempt_ms=draw(st.sampled_from((0, 0, 30))),
        preempt_exempt_costs=draw(st.sampled_from((0, 8))),
        launch_limit_ms=200,
        restart_backoff_ms=draw(st.sampled_from((10, 40))),
    )


clusters = st.lists(st.integers(1, 4), min_size=1, max_size=3)
steps: st.SearchStrategy[list[tuple[str, int, int]]] = st.lists(
    st.tuples(st.sampled_from(STEPS), st.integers(0, 11), st.integers(0, 11)),
    min_size=20,
    max_size=40,
)


worlds = st.tuples(clusters, settings_sets(), st.booleans())
"""A cluster, settings, and whether launchers do only one command at a time, when asked."""


class Life:
    """A core, its launchers, everything it was told and everything it said."""

    def __init__(self, node_gpus: list[int], settings: Settings, *, is_lazy: bool) -> None:
        self.settings = settings
        self.core = Scheduler(settings, is_checked=True)
        watch(self.core)
        self.now_ms = START_MS
        self.log: list[tuple[Input, int]] = []
        self.outputs: list[list[Output]] = []
        self.views: dict[int, JobView] = {}
        self.job_ids: list[int] = []
        self.node_gpus = {f"n{i}": count for i, count in enumerate(node_gpus)}
        self.boots = dict.fromkeys(self.node_gpus, 1)
        self.launchers = {node: Launcher(node) for node in self.node_gpus}
        self.is_lazy = is_lazy
        for node in self.node_gpus:
            self._join(node)

    def take(self, step: tuple[str, int, int]) -> None:
        """Carry out one step; unless launchers are lazy, they then do all they were told."""
        name, x, y = step
        getattr(self, f"_{name}")(x, y)
        if not self.is_lazy:
            self.obey_all()

    def send(self, message: Input) -> int:
        """Give an input to the core, and its commands to the launchers."""
        self.log.append((message, self.now_ms))
        seq = len(self.log)
        outputs = self.core.handle(seq, message, self.now_ms)
        self.outputs.append(outputs)
        for output in outputs:
            if isinstance(output, Command):
                self.launchers[output.node].pending.append(output)
        for view in self.core.take_changed_views():
            if isinstance(view, JobView):
                self._see(view)
        return seq

    def obey_all(self) -> None:
        """Every launcher that hears carries out all its commands."""
        busy = True
        while busy:
            busy = False
            for launcher in self.launchers.values():
                if launcher.pending and not launcher.is_deaf:
                    busy = True
                    self._report(launcher.obey())

    def settle(self) -> None:
        """Heal everything, let everybody obey and every running job finish, until nothing moves."""
        for node, launcher in self.launchers.items():
            launcher.is_deaf = launcher.refuses_next = False
            self.send(NodeUncordonRequested(node=node))
            self._join(node)
            for index in range(self.node_gpus[node]):
                self.send(GpuHealthChanged(node=node, gpu_id=f"{node}-gpu{index}", reason=None))
        for job_id in self.job_ids:
            self.send(JobReleaseRequested(job_id=job_id))
        for _ in range(20 * len(self.job_ids) + 20):
            self.obey_all()
            for launcher in self.launchers.values():
                for run_id in [r for r, run in launcher.runs.items() if run.is_started]:
                    self.send(launcher.exit(run_id, 0, code=0))
            self.obey_all()
            due_ms = self.core.next_deadline_ms()
            if due_ms is not None:
                self.now_ms = max(self.now_ms, due_ms)
            self.send(ClockAdvanced())

    def assert_passes_change_nothing(self) -> None:
        """Five more passes on the same state."""
        before, said = state_of(self.core), len(self.core._world.take_outputs())
        for _ in range(5):
            self.core._pass()
        assert len(self.core._world.take_outputs()) == said
        assert state_of(self.core) == before

    def facts(self, *kinds: type[Output]) -> list[Output]:
        return [o for outputs in self.outputs for o in outputs if isinstance(o, kinds)]

    def _see(self, view: JobView) -> None:
        known = self.views.get(view.job_id)
        assert known is None or not known.state.is_terminal, "a terminal state changed"
        self.views[view.job_id] = view

    def _report(self, reports: list[Input]) -> None:
        for report in reports:
            self.send(report)

    def _some_job(self, x: int) -> int:
        return self.job_ids[-1 - x % len(self.job_ids)] if self.job_ids else 0

    def _node(self, x: int) -> str:
        return f"n{x % len(self.node_gpus)}"

    def _join(self, node: str) -> None:
        gpus = tuple(GpuInfo(gpu_id=f"{node}-gpu{i}", index=i) for i in range(self.node_gpus[node]))
        boot_id = f"boot-{self.boots[node]}"
        self.send(NodeJoined(node=node, boot_id=boot_id, host=node, gpus=gpus))
        self._inventory(node)

    def _inventory(self, node: str) -> None:
        launcher = self.launchers[node]
        boot_id = f"boot-{self.boots[node]}"
        self.send(InventoryReported(node=node, boot_id=boot_id, runs=launcher.reports()))

    def _rest(self, x: int, y: int) -> None:
        """Nothing happens: what failing programs shrink to."""

    def _submit(self, x: int, y: int) -> None:
        spec = JobSpec(
            name=f"model-{y % 3}",
            run=("train",),
            workers=(1, 1, 2, 3, 4, 8)[x % 6],
            gpus_per_worker=(1, 1, 1, 2)[y % 4],
            ps=(0, 0, 0, 1)[(x + y) % 4],
            time_limit=(None, None, None, "300ms")[(x * y) % 4],
            consolidate=(None, "require", "prefer")[(x + y) % 3],
            restart=RestartSpec(max=y % 3),
            grace="1s",
        )
        self.job_ids.append(self.send(JobSubmitted(user="ann", spec=spec)))

    def _advance(self, x: int, y: int) -> None:
        target_ms = self.now_ms + ADVANCES_MS[x % len(ADVANCES_MS)]
        while (due_ms := self.core.next_deadline_ms()) is not None and due_ms <= target_ms:
            if y % 4 == 0:
                break
            self.now_ms = max(self.now_ms, due_ms)
            self.send(ClockAdvanced())
        self.now_ms = target_ms
        self.send(ClockAdvanced())

    def _obey(self, x: int, y: int) -> None:
        launcher = self.launchers[self._node(x)]
        for _ in range(1 + y % 4):
            if launcher.pending and not launcher.is_deaf:
                self._report(launcher.obey())

    def _end(self, x: int, y: int, code: int) -> None:
        for launcher in self.launchers.values():
            started = [run_id for run_id, run in launcher.runs.items() if run.is_started]
            if started:
                self.send(launcher.exit(started[x % len(started)], 0, code=code))
                if y % 2:
                    return

    def _finish(self, x: int, y: int) -> None:
        self._end(x, y, 0)

    def _fail(self, x: int, y: int) -> None:
        self._end(x, y, (1, 2, 75)[y % 3])

    def _kill_all(self, x: int, y: int) -> None:
        """A launcher that ends and takes its tasks with it."""
        launcher = self.launchers[self._node(x)]
        for run_id, run in list(launcher.runs.items()):
            run.stop_reason = run.stop_reason or StopReason.SHUTDOWN
            self.send(launcher.exit(run_id, y % 5))

    def _cancel(self, x: int, y: int) -> None:
        self.send(JobCancelRequested(job_id=self._some_job(x), force=y % 3 == 0))

    def _hold(self, x: int, y: int) -> None:
        self.send(JobHoldRequested(job_id=self._some_job(x)))

    def _release(self, x: int, y: int) -> None:
        self.send(JobReleaseRequested(job_id=self._some_job(x)))

    def _silence(self, x: int, y: int) -> None:
        self.send(NodeSilent(node=self._node(x), silent_ms=1))

    def _hear(self, x: int, y: int) -> None:
        self.send(NodeHeard(node=self._node(x)))
        self._inventory(self._node(x))

    def _lose(self, x: int, y: int) -> None:
        """Its launcher stops everything by its lease before the node is given up."""
        node = self._node(x)
        self.launchers[node].runs.clear()
        self.send(NodeSilent(node=node, silent_ms=1))
        self.send(NodeLost(node=node, silent_ms=2))

    def _leave(self, x: int, y: int) -> None:
        self.send(NodeLeft(node=self._node(x)))

    def _launcher_leaves(self, x: int, y: int) -> None:
        self.send(LauncherLeft(node=self._node(x)))

    def _rejoin(self, x: int, y: int) -> None:
        self._join(self._node(x))

    def _reboot(self, x: int, y: int) -> None:
        node = self._node(x)
        self.boots[node] += 1
        self.launchers[node].runs.clear()
        self._join(node)

    def _restart_launcher(self, x: int, y: int) -> None:
        """Its supervisors may have died with it."""
        node = self._node(x)
        if y % 2:
            self.launchers[node].runs.clear()
        self._inventory(node)

    def _break_gpu(self, x: int, y: int) -> None:
        reason = (GpuFaultReason.XID, GpuFaultReason.LOST)[y % 2]
        self._gpu_health(x, y, reason)

    def _mend_gpu(self, x: int, y: int) -> None:
        self._gpu_health(x, y, None)

    def _gpu_health(self, x: int, y: int, reason: GpuFaultReason | None) -> None:
        node = self._node(x)
        gpu_id = f"{node}-gpu{y % self.node_gpus[node]}"
        self.send(GpuHealthChanged(node=node, gpu_id=gpu_id, reason=reason))

    def _cordon(self, x: int, y: int) -> None:
        self.send(NodeCordonRequested(node=self._node(x)))

    def _uncordon(self, x: int, y: int) -> None:
        self.send(NodeUncordonRequested(node=self._node(x)))

    def _refuse(self, x: int, y: int) -> None:
        self.launchers[self._node(x)].refuses_next = True

    def _deafen(self, x: int, y: int) -> None:
        self.launchers[self._node(x)].is_deaf = True

    def _listen(self, x: int, y: int) -> None:
        self.launchers[self._node(x)].is_deaf = False

    def _stale_exit(self, x: int, y: int) -> None:
        """A report twice, late, or of a run that nobody knows; with leftover processes, too."""
        run_id = f"{self._some_job(x)}-{y}" if y else "old-run"
        alive = any(run_id in launcher.runs for launcher in self.launchers.values())
        if not alive:
            pids = (7,) if x == y else ()
            self.send(RunExited(node=self._node(x), run_id=run_id, leftover_pids=pids, lost=True))

    def _stale_prepared(self, x: int, y: int) -> None:
        job_id = self._some_job(x)
        self.send(RunPrepared(node=self._node(y), run_id=f"{job_id}-0", ports={}))

    def _manner(self, x: int, y: int) -> None:
        self.launchers[self._node(x)].manner = y % 5

    def _laziness(self, x: int, y: int) -> None:
        self.is_lazy = y % 2 == 0

    def _skew(self, x: int, y: int) -> None:
        self.send(SkewMeasured(job_id=self._some_job(x), skew=y / 11))

    def _pack_limit(self, x: int, y: int) -> None:
        self.send(PackLimitChanged(pack_limit=y / 11))

    def _settings(self, x: int, y: int) -> None:
        self.send(
            SettingsChanged(
                settings=Settings(
                    policy=("las", "las", "fifo")[x % 3],
                    queue_limits_gpu_ms=((), (40,), (10, 70))[y % 3],
                    preempt_exempt_ms=(0, 30)[x % 2],
                    promote_knob=(None, 1.0)[y % 2],
                    promote_floor_ms=0,
                    launch_limit_ms=200,
                    restart_backoff_ms=10,
                    queue_order=("running_first", "start_time")[(x + y) % 2],
                )
            )
        )


def served_gpu_ms(life: Life) -> dict[int, int]:
    """Service of each job from its facts: W x (gang up to all over), summed over its runs."""
    up: dict[str, int] = {}
    served: dict[int, int] = {}
    for fact in life.facts(RunRunning, RunEnded):
        if isinstance(fact, RunRunning):
            up[fact.run_id] = fact.at_ms
        elif fact.run_id in up:
            gpus = life.views[fact.job_id].gpus
            ran_ms = fact.at_ms - up.pop(fact.run_id)
            served[fact.job_id] = served.get(fact.job_id, 0) + gpus * ran_ms
    return served


def ended_states(life: Life) -> dict[int, JobState]:
    """The state each job ended in; asserts that no job ended twice."""
    ends = [(fact.job_id, fact.state) for fact in life.facts(JobEnded)]
    assert len(ends) == len({job_id for job_id, _ in ends}), "a job ended twice"
    return dict(ends)
