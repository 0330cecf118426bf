"""The guardian of one run's processes on one node: starts, watches, logs and stops them.

Its process is forked by the spawner, detached from the launcher, and outlives both. Being
single-threaded and a subreaper it knows every descendant: when it has no child left, nothing of the
run is left. Only then, and with everything closed that was the run's, may the process see to
another run. What happens is appended to the run's status file, the single source of truth; standard
library only, because there is one such process per run.
"""

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from launcher import process_tree, run_folder
from launcher.control import ControlPipe
from launcher.core.outcome import PEER_GRACE_LIMIT_MS, ends_run, peer_grace_ms
from launcher.log_writer import LogWriter
from launcher.task_process import StartFailure, enter_workdir, start_task

_KILL_PERIOD_MS = 50.0
_KILL_LIMIT_S = 10.0
_READ_BYTES = 65_536
_LAST_READ_BYTES = 1024 * 1024
"""The most a pipe can hold: what lies in it when the last process is gone."""


class _Task:
    """A task process. ``output`` is None once its pipe is closed by all that hold it."""

    def __init__(self, launch: Mapping[str, Any], log: LogWriter) -> None:
        self.name: str = launch["name"]
        self.role: str = launch["role"]
        self.rank: int = launch["rank"]
        self.launch = launch
        self.log = log
        self.pid = 0
        self.output: int | None = None
        self.return_code: int | None = None
        self.is_stopped_by_us = False
        self.is_noted = False


class Supervisor:
    """One run. `run` returns when nothing of it is left, or what is left cannot be killed."""

    def __init__(self, plan: Mapping[str, Any], control: ControlPipe) -> None:
        self._plan = plan
        self._dir: str = plan["run_dir"]
        self._control = control
        self._grace_ms: int = plan["grace_ms"]
        self._poll = select.poll()
        self._actions: dict[int, Callable[[], object]] = {}
        self._tasks: list[_Task] = []
        self._asked_at: float | None = None
        self._is_stopping = False
        self._is_rest_asked = False
        self._is_terminated = False
        self._has_children = False
        self._kill_at: float | None = None
        self._give_up_at: float | None = None
        self._left: list[int] = []
        self._status = -1

    def run(self) -> bool:
        """Do everything, unless the run already has or had a supervisor.

        Return whether nothing is left: no process of the run, and no trace of it in this process.
        """
        status = run_folder.lock_status(self._dir)
        if status is None:
            return True
        self._status = status
        if os.fstat(status).st_size == 0:
            self._supervise()
        os.close(status)
        return not (self._left or self._has_children or self._is_terminated)

    def _supervise(self) -> None:
        self._note("supervising", pid=os.getpid())
        process_tree.adopt_orphans()
        self._control.move_to(self._dir)
        self._watch(self._control.file, self._on_control)
        woken = self._catch_signals()
        self._spawn_tasks()
        self._note(
            "started",
            pids={task.name: task.pid for task in self._tasks if task.pid},
            boot_ms=process_tree.boot_ms(),
        )
        self._ring()
        while not self._is_finished():
            self._turn()
        self._end()
        _let_signals_go()
        os.chdir("/")
        for file in {woken, *self._actions} - {self._control.file}:
            os.close(file)
        for task in self._tasks:
            task.log.close()

    def _catch_signals(self) -> int:
        """Have signals wake the poll; return the end of the pipe into which they are written."""
        wake, woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._watch(wake, lambda: os.read(wake, _READ_BYTES))
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGTERM, self._on_term)
        return woken

    def _watch(self, file: int, action: Callable[[], object]) -> None:
        self._actions[file] = action
        self._poll.register(file, select.POLLIN)

    def _spawn_tasks(self) -> None:
        work = os.path.join(self._dir, run_folder.WORK)
        if not self._plan["workdir"]:
            os.mkdir(work, 0o700)
        if script := self._plan["script"]:
            path = os.path.join(self._dir, run_folder.SCRIPT)
            with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o700)) as file:
                file.write(script.encode("utf-8", "surrogateescape"))
        limits = self._plan["log_limits"]
        self._tasks = [
            _Task(launch, LogWriter(self._dir, launch["name"], **limits))
            for launch in self._plan["tasks"]
        ]
        obstacle = enter_workdir(self._plan, work)
        failures = [(task, obstacle or self._spawn(task)) for task in self._tasks]
        for task, failure in failures:
            if failure is not None:
                task.log.write(failure.line)
                self._on_gone(task, failure.exit_code)

    def _spawn(self, task: _Task) -> StartFailure | None:
        output, tasks_end = os.pipe()
        started = start_task(self._plan, task.launch, tasks_end)
        os.close(tasks_end)
        if isinstance(started, StartFailure):
            os.close(output)
            return started
        os.set_blocking(output, False)
        task.pid, task.output = started, output
        self._has_children = True
        self._watch(output, lambda: self._pump(task))
        return None

    def _turn(self) -> None:
        self._reap()
        for file, _ in self._poll.poll(self._wait_ms()):
            self._actions[file]()
        if self._is_terminated:
            self._on_ask("Shutdown", self._grace_ms)
        self._reap()
        for task in self._tasks:
            if task.return_code is not None and task.output is None:
                self._note_exit(task)
        self._press()

    def _wait_ms(self) -> float | None:
        if not self._has_children:
            return 0
        if self._kill_at is None:
            return None
        if self._give_up_at is not None:
            return _KILL_PERIOD_MS
        return max(0.0, (self._kill_at - time.monotonic()) * 1000 + 1)

    def _pump(self, task: _Task) -> bool:
        """Move output into the log; return whether there may be more."""
        if task.output is None:
            return False
        try:
            data = os.read(task.output, _READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            task.log.write(data)
            return True
        self._poll.unregister(task.output)
        del self._actions[task.output]
        os.close(task.output)
        task.output = None
        return False

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._has_children = False
                return
            if pid == 0:
                return
            for task in self._tasks:
                if task.pid == pid:
                    self._on_gone(task, os.waitstatus_to_exitcode(status))

    def _on_gone(self, task: _Task, return_code: int) -> None:
        task.return_code = return_code
        task.is_stopped_by_us = self._is_stopping
        if not self._is_stopping and ends_run(task.role, return_code):
            self._stop(peer_grace_ms(return_code, self._grace_ms))

    def _on_term(self, _number: int, _frame: FrameType | None) -> None:
        self._is_terminated = True

    def _on_control(self) -> None:
        for request in self._control.requests():
            if request.run_id == self._plan["run_id"]:
                self._on_ask(request.reason, request.grace_ms)

    def _on_ask(self, reason: str, grace_ms: int) -> None:
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            self._note("asked", reason=reason)
        self._stop(grace_ms)

    def _stop(self, grace_ms: int) -> None:
        """Ask every running task once; of several deadlines the earliest holds."""
        if not self._is_stopping:
            self._is_stopping = True
            for task in self._tasks:
                if task.pid and task.return_code is None:
                    _signal_group(task.pid, signal.SIGTERM)
                    _signal_group(task.pid, signal.SIGCONT)
        self._kill_after(grace_ms)

    def _kill_after(self, grace_ms: int) -> None:
        at = time.monotonic() + grace_ms / 1000
        self._kill_at = at if self._kill_at is None else min(self._kill_at, at)

    def _press(self) -> None:
        """Do what is due about processes that are still there."""
        are_tasks_gone = all(task.return_code is not None for task in self._tasks)
        if are_tasks_gone and self._has_children and not self._is_rest_asked:
            self._ask_rest()
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_rest()

    def _ask_rest(self) -> None:
        """The tasks are gone, but not all that they started.

        A task that exited after the request has done its work, so its remains get little time; one
        that the request killed may have been a wrapper whose child is saving.
        """
        self._is_rest_asked = True
        asked_groups = {task.pid for task in self._tasks} if self._is_stopping else set()
        process_tree.signal_all(
            (
                pid
                for pid in process_tree.descendants(os.getpid())
                if process_tree.group_of(pid) not in asked_groups
            ),
            signal.SIGTERM,
        )
        if not self._is_stopping or all((task.return_code or 0) >= 0 for task in self._tasks):
            self._kill_after(min(self._grace_ms, PEER_GRACE_LIMIT_MS))

    def _kill_rest(self) -> None:
        if self._give_up_at is None:
            self._give_up_at = time.monotonic() + _KILL_LIMIT_S
        mark = f"{run_folder.MARK}={self._dir}"
        below = process_tree.descendants(os.getpid())
        self._left = sorted({*below, *process_tree.carrying(mark)})
        process_tree.signal_all(self._left, signal.SIGKILL)

    def _is_finished(self) -> bool:
        if self._give_up_at is None:
            return not self._has_children
        return not self._left or time.monotonic() > self._give_up_at

    def _end(self) -> None:
        self._reap()
        for task in self._tasks:
            for _ in range(_LAST_READ_BYTES // 4096):
                if not self._pump(task):
                    break
            self._note_exit(task)
        ask_to_exit_ms = None
        if self._asked_at is not None:
            ask_to_exit_ms = round((time.monotonic() - self._asked_at) * 1000)
        self._note("ended", leftover_pids=self._left, ask_to_exit_ms=ask_to_exit_ms)
        self._ring()

    def _note_exit(self, task: _Task) -> None:
        if not task.is_noted:
            task.is_noted = True
            self._note(
                "exited",
                task=task.name,
                rank=task.rank,
                return_code=task.return_code,
                stopped_by_us=task.is_stopped_by_us,
            )

    def _note(self, fact: str, **values: object) -> None:
        """Append a fact.

        Nothing is synced: a power cut ends the run, and what the launcher has told of it is in the
        launcher's journal, which is.
        """
        line = json.dumps({"fact": fact, **values, "at_ms": time.time_ns() // 1_000_000})
        os.write(self._status, line.encode() + b"\n")

    def _ring(self) -> None:
        run_folder.write_line(self._plan["bell"], self._plan["run_id"].encode() + b"\n")


def _let_signals_go() -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _signal_group(leader: int, signal_number: signal.Signals) -> None:
    """Signal an unreaped task's group, unless it has become another user's."""
    with contextlib.suppress(PermissionError):
        os.killpg(leader, signal_number)
