"""The plain interface: a training loop of any framework that saves, resumes and stops in time.

    job = tiresias.init()
    saved = job.restore()
    step = saved.step if saved else 0
    while step < 1000:
        ...                                  # one training step
        step += 1
        job.step(step, {"loss": loss}, total_steps=1000)
        if job.should_save():
            job.save(step, state())
        job.stop_if_asked(step, state)       # saves and exits with code 75
    job.close()

A gang of several workers calls `Job.agree_with` first, and every rank makes the same calls.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from tiresias import random_state
from tiresias.agreement import Agreement, Decision, SumOverRanks
from tiresias.checkpoint import CheckpointStore
from tiresias.environment import JobEnvironment, read_environment
from tiresias.errors import CheckpointError, UsageError
from tiresias.process import process_age_ms
from tiresias.protocol import FLUSH_S, JobReporter
from tiresias.stop import StopFlag, die_unsaved, exit_stopped, exit_stopped_quickly
from tiresias.writer import BackgroundWriter

SAVE_EVERY_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Restored:
    """A save to go on from. ``first_state`` is what rank 0 saved, the same for every rank."""

    step: int
    state: Any
    first_state: Any
    random: Any

    def put_back_random(self) -> None:
        """Set Python's and NumPy's generators again to where they were at the save."""
        random_state.put_back(self.random)


class Job:
    """This process's side of a run. Use it from the main thread."""

    def __init__(
        self,
        environment: JobEnvironment,
        *,
        save_every_s: float = SAVE_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
        leave: Callable[[], NoReturn] = exit_stopped,
    ) -> None:
        self._leave = leave
        self.environment = environment
        self._clock = clock
        self._save_every_s = save_every_s
        self._stop = StopFlag()
        self._stop.listen()
        self._store = CheckpointStore(
            environment.checkpoint_dir,
            write_token=environment.write_token,
            keep=environment.checkpoint_keep,
            rank=environment.saving_rank,
            ranks=environment.saving_ranks,
        )
        self._writer = BackgroundWriter()
        self._reporter = JobReporter(
            environment.socket,
            run_id=environment.run_id,
            task=environment.task,
            rank=environment.rank,
        )
        self._agreement: Agreement | None = None
        self._decision = Decision()
        self._has_restored = False
        self._has_stepped = False
        self._started_from = 0
        self._restore_ms = 0
        self._saved_step = 0
        self._saved_at_s = clock()

    def agree_with(self, sum_over_ranks: SumOverRanks) -> None:
        """Let a gang stop and save at one common step.

        ``sum_over_ranks`` adds a list of four numbers over all ranks, element by element (an
        all-reduce). Without it, each process decides for itself.
        """
        self._agreement = Agreement(
            sum_over_ranks, rank=self.environment.saving_rank, clock=self._clock
        )
        first_rank_step, *_ = sum_over_ranks(
            [float(self._started_from) * self.is_first_rank, 0.0, 0.0, 0.0]
        )
        if self._has_restored and round(first_rank_step) != self._started_from:
            raise CheckpointError(
                f"this rank restored step {self._started_from}, rank 0 step "
                f"{round(first_rank_step)}: do all nodes see one {self.environment.checkpoint_dir}?"
            )

    @property
    def is_first_rank(self) -> bool:
        """Whether this task saves what is common to all."""
        return self.environment.saving_rank == 0

    @property
    def has_agreement(self) -> bool:
        """Whether this gang decides together."""
        return self._agreement is not None

    def restore(self) -> Restored | None:
        """Return the newest whole save, or None at the first start.

        Python's and NumPy's random generators go on where they were. Call it once, before
        training.
        """
        self._stop.listen()
        if self._has_restored:
            raise UsageError("restore() was called twice: one job trains one model, once")
        self._has_restored = True
        started_s = time.monotonic()
        checkpoint = self._store.newest()
        if checkpoint is None:
            return None
        self._started_from = self._saved_step = checkpoint.step
        self._restore_ms = _elapsed_ms(started_s)
        restored = Restored(
            step=checkpoint.step,
            state=checkpoint.state["state"],
            first_state=checkpoint.first_state["state"],
            random=checkpoint.state["random"],
        )
        restored.put_back_random()
        return restored

    def report_tensors(self, tensor_bytes: Sequence[int]) -> None:
        """Tell the sizes of the trainable tensors, which decide whether the gang may spread."""
        self._reporter.tensors(tensor_bytes)

    def step(
        self,
        step: int,
        metrics: Mapping[str, float] | None = None,
        *,
        total_steps: int | None = None,
    ) -> None:
        """Tell that ``step`` steps are done; call it after every step, before the next one."""
        if not self._has_stepped:
            self._has_stepped = True
            self._stop.listen()  # TensorFlow takes SIGTERM when it sets up its workers
            self._reporter.resumed(
                self._started_from, restore_ms=self._restore_ms, first_step_ms=process_age_ms()
            )
        self._reporter.progress(step, total_steps, metrics or {})
        self.poll(step)

    def poll(self, step: int) -> None:
        """Look for requests where no step was done, for example after a batch of evaluation."""
        save_due, steps_to_save = self._when_to_save(step)
        if self._agreement is not None:
            self._decision = self._agreement.decide(
                stop=self._stop.is_set(),
                save_due=save_due,
                is_busy=self._writer.is_busy,
                steps_to_save=steps_to_save,
            )
        else:
            self._decision = Decision(
                should_stop=self._stop.is_set(),
                should_save=save_due and not self._writer.is_busy,
            )

    def should_stop(self) -> bool:
        """Return whether to save now and leave; in a gang all ranks get the same answer."""
        return self._decision.should_stop or (self._agreement is None and self._stop.is_set())

    def should_save(self) -> bool:
        """Return whether a periodic save is due: each minute, or each N steps if so configured."""
        return self._decision.should_save

    def save(self, step: int, state: Any, *, in_background: bool = False) -> None:
        """Save ``state`` as of step ``step``, with the random generators.

        In the background only snapshots that nobody changes may be given; a failure there is
        told on stderr and training goes on. Otherwise raises `CheckpointError`.
        """
        content = self._content(state)
        self._saved_step, self._saved_at_s = step, self._clock()
        if in_background:
            self._writer.start(lambda: self._save_or_warn(step, content))
        else:
            self._writer.wait()
            self._save(step, content, asked=False)

    def stop_if_asked(self, step: int, state: Any) -> None:
        """If a stop was asked for: save, tell, and leave the program with exit code 75.

        ``state`` is the state, or a function that returns it.
        """
        if self.should_stop():
            self.save_and_exit(step, state() if callable(state) else state)

    def save_and_exit(self, step: int, state: Any) -> NoReturn:
        """Save, acknowledge and leave with exit code 75; if saving fails, end as SIGTERM does."""
        content = self._content(state)
        try:
            self._writer.wait()
            self._save(step, content, asked=True)
        except CheckpointError as error:
            die_unsaved(str(error))
        self.close()
        self._leave()

    def flush(self) -> None:
        """Wait for a save in progress, send the last progress."""
        self._writer.wait()
        self._reporter.flush(FLUSH_S)

    def close(self) -> None:
        """Wait for a save in progress, send the last reports."""
        self._writer.wait()
        self._reporter.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _content(self, state: Any) -> dict[str, Any]:
        if not self._has_restored and self._store.steps():
            raise UsageError(
                f"{self.environment.checkpoint_dir} has saves of earlier training: call "
                "restore() before the first save, or choose an empty folder"
            )
        self._has_restored = True
        return {"state": state, "random": random_state.capture()}

    def _when_to_save(self, step: int) -> tuple[bool, int | None]:
        """Return whether a periodic save is due and, if steps decide, in how many it will be."""
        every = self.environment.checkpoint_every_steps
        if every is None:
            return self._clock() - self._saved_at_s >= self._save_every_s, None
        return step // every > self._saved_step // every, every - step % every

    def _save(self, step: int, content: Any, *, asked: bool) -> None:
        started_s = time.monotonic()
        saved = self._store.save(step, content)
        if self.is_first_rank:
            self._reporter.saved(
                step,
                saved.path,
                save_ms=_elapsed_ms(started_s),
                size_bytes=saved.size_bytes,
                asked=asked,
            )

    def _save_or_warn(self, step: int, content: Any) -> None:
        try:
            self._save(step, content, asked=False)
        except CheckpointError as error:
            sys.stderr.write(f"tiresias: {error}; training goes on\n")


_current_job: Job | None = None


def init(*, checkpoint_dir: str | Path | None = None, save_every_s: float = SAVE_EVERY_S) -> Job:
    """Return this process's job; the first call makes it and starts to listen for SIGTERM.

    ``checkpoint_dir`` is where an offline run saves (default ``./checkpoints``).
    """
    global _current_job  # noqa: PLW0603 - a process is one task of one run
    if _current_job is None:
        environment = read_environment(checkpoint_dir=checkpoint_dir)
        _current_job = Job(environment, save_every_s=save_every_s, leave=exit_stopped_quickly)
    return _current_job


def _elapsed_ms(started_s: float) -> int:
    return round((time.monotonic() - started_s) * 1000)
