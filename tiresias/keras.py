"""Keras 3 and tf_keras: training that resumes where it stopped.

`fit` is ``model.fit`` for data given as a function of the epoch. It resumes at the very batch
where the run stopped and ends bit-identical to a run that never stopped. `Callback` works in a
plain ``model.fit``: all variables are put back, but an epoch that was cut short starts again
from its first data, because only `fit` knows how to skip what was used.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tiresias import keras_workers
from tiresias import tensorflow as tensorflow_side
from tiresias.errors import UsageError
from tiresias.job import Job, Restored, init
from tiresias.keras_hooks import KerasHooks

_NO_PARAMETER_SERVERS = (
    "Keras 3 cannot train with fit under parameter servers: use tf_keras "
    "(import tf_keras as keras) or a custom loop with ClusterCoordinator"
)


@dataclass(frozen=True)
class Position:
    """Where training stands: ``batch`` batches of ``epoch`` are done, both from 0."""

    epoch: int = 0
    batch: int = 0


def fit(
    model: Any,
    data: Callable[[int], Any],
    *,
    epochs: int = 1,
    steps_per_epoch: int | None = None,
    callbacks: Iterable[Any] = (),
    verbose: Any = "auto",
    job: Job | None = None,
    **options: Any,
) -> Any:
    """Train like ``model.fit``, resume exactly, stop with exit code 75 when asked; return history.

    ``data(epoch)`` returns that epoch's `tf.data.Dataset` of batches and must give the same
    batches each time it is asked: ``ds.shuffle(size, seed=epoch).batch(32)``. What was used
    before a stop is skipped, which costs reading it once more. ``steps_per_epoch`` is needed
    when the length of the data is not known. ``options`` go to ``model.fit``.

    Not kept over a stop: other callbacks' own state (the patience of EarlyStopping, say), the
    evaluation of an epoch that was stopped after its last batch, and the dropout of tf_keras
    unless ``tf_keras.backend.experimental.enable_tf_random_generator()`` was called first.
    """
    if not callable(data):
        raise UsageError(
            "data must be a function of the epoch that returns a dataset, such as "
            "lambda epoch: ds.shuffle(1000, seed=epoch).batch(32)"
        )
    dataset, steps = _epoch_data(data, 0, steps_per_epoch)
    resume = Callback(job)
    position = resume.prepare(model, dataset.element_spec)
    hooks = _one_training(model, [*callbacks, resume], epochs=epochs, steps=steps, verbose=verbose)
    for epoch in range(position.epoch, epochs):
        dataset, steps = _epoch_data(data, epoch, steps_per_epoch)
        done = position.batch if epoch == position.epoch else 0
        if done >= steps:  # it was stopped after this epoch's last batch
            resume.on_epoch_end(epoch)
            continue
        model.fit(
            dataset.skip(done).take(steps - done),
            initial_epoch=epoch,
            epochs=epoch + 1,
            callbacks=hooks,
            verbose=verbose,
            shuffle=False,
            **options,
        )
        if model.stop_training:
            break
    hooks.end()
    return model.history


class Callback(KerasHooks):
    """Restores at the start, reports progress, saves now and then, stops when asked.

    Saved: weights, optimizer slots and step, batch statistics, dropout's random state, running
    metrics, position, and the global random generators of Python, NumPy and TensorFlow.
    """

    def __init__(self, job: Job | None = None) -> None:
        if tensorflow_side.has_parameter_servers() and "tf_keras" not in sys.modules:
            raise UsageError(_NO_PARAMETER_SERVERS)
        self._job = job or init()
        self._model: Any = None
        self._params: Mapping[str, Any] = {}
        self._restored: Restored | None = None
        self._is_prepared = False
        self._is_exact = False
        self._is_training = False
        self._position = Position()
        self._skipped = 0
        self._steps = 0

    def prepare(self, model: Any, element_spec: Any) -> Position:
        """Build and restore ``model`` for `fit`, which starts at the returned position."""
        self._is_exact = True
        _refuse_unusable(model)
        if not _is_tf_keras(model):
            keras_workers.build_from_spec(model, element_spec)
            if keras_workers.is_multi_worker(model):
                keras_workers.bring_step_functions(model)
        self._restore(model)
        self._skipped = self._position.batch
        return self._position

    def set_params(self, params: Any) -> None:
        """Take note of the number of epochs and steps."""
        self._params = params or {}

    def set_model(self, model: Any) -> None:
        """Refuse early what cannot work."""
        _refuse_unusable(model)
        self._model = model

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Restore the newest save, and tell Keras where to go on."""
        if not self._is_prepared:
            self._restore(self._model)
            self._leave_complete_epoch()
            _start_at(self._model, self._position)
            if not _is_tf_keras(self._model):
                self._position = Position(self._position.epoch)
        self._is_training = True
        self._job.report_tensors(tensorflow_side.tensor_bytes(self._model.trainable_variables))

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        """Wait for a save in progress."""
        self._is_training = False
        _start_at(self._model, None)
        self._job.flush()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """In the epoch that was cut short, go on with its running metrics."""
        if self._restored is not None and self._is_exact and self._position.batch:
            _put_back_metrics(self._model, self._restored)
        self._position = Position(epoch, self._position.batch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Note that the epoch is complete."""
        self._position = Position(epoch + 1)
        self._skipped = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Before the first batch, put the random generators where they were."""
        if self._restored is not None:
            self._restored.put_back_random()
            self._restored = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """At a step boundary: report, save if due, and save and leave if asked to stop."""
        done = self._skipped + batch + 1
        self._steps += done - self._position.batch
        self._position = Position(self._position.epoch, done)
        self._job.step(self._steps, _numbers(logs), total_steps=self._total_steps())
        if self._job.should_stop():
            self._job.save_and_exit(self._steps, self._state())
        if self._job.should_save():
            self._job.save(self._steps, self._state(), in_background=True)

    def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Evaluation during training comes after an epoch's last batch."""
        if self._is_training:
            self._position = Position(self._position.epoch + 1)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """During evaluation too, leave when asked; the next run starts with the next epoch."""
        if not self._is_training:
            return
        self._job.poll(self._steps)
        if self._job.should_stop():
            self._job.save_and_exit(self._steps, self._state())

    def _restore(self, model: Any) -> None:
        self._is_prepared = True
        _build(model)
        if keras_workers.is_multi_worker(model) and not self._job.has_agreement:
            tensorflow_side.agree_over(self._job, model.distribute_strategy)
        self._restored = self._job.restore()
        if self._restored is None:
            return
        state = self._restored.state
        tensorflow_side.assign(_mirrored_variables(model), self._restored.first_state["mirrored"])
        tensorflow_side.assign(_own_variables(model), state["own"])
        self._steps = self._restored.step
        self._position = Position(state["epoch"], state["batch"])

    def _leave_complete_epoch(self) -> None:
        """Nothing is left of an epoch that was stopped after its last batch."""
        steps = self._params.get("steps")
        if steps and self._position.batch >= steps:
            self._position = Position(self._position.epoch + 1)

    def _state(self) -> dict[str, Any]:
        coordinator = getattr(self._model, "_cluster_coordinator", None)
        if coordinator is not None:
            coordinator.join()
        mirrored = _mirrored_variables(self._model) if self._job.is_first_rank else ()
        return {
            "epoch": self._position.epoch,
            "batch": self._position.batch,
            "mirrored": tensorflow_side.snapshot(mirrored, one_copy=True),
            "own": tensorflow_side.snapshot(_own_variables(self._model)),
            "metrics": tensorflow_side.snapshot(_metrics_variables(self._model)),
        }

    def _total_steps(self) -> int | None:
        epochs, steps = self._params.get("epochs"), self._params.get("steps")
        return epochs * steps if epochs and steps else None


def _epoch_data(
    data: Callable[[int], Any], epoch: int, steps_per_epoch: int | None
) -> tuple[Any, int]:
    """Return an epoch's dataset and its number of batches."""
    import tensorflow as tf  # noqa: PLC0415

    dataset = data(epoch)
    if not isinstance(dataset, tf.data.Dataset):
        raise UsageError(f"data({epoch}) is a {type(dataset).__name__}, not a tf.data.Dataset")
    policies = tf.data.experimental.AutoShardPolicy
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy == policies.FILE:
        raise UsageError("data sharded by file cannot be resumed exactly: use DATA or OFF")
    if policy == policies.AUTO:
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = policies.DATA
        dataset = dataset.with_options(options)
    known = int(dataset.cardinality())
    if steps_per_epoch is None and known < 0:
        raise UsageError("the length of the data is not known: give steps_per_epoch")
    if steps_per_epoch is None or 0 <= known < steps_per_epoch:
        return dataset, known
    return dataset, steps_per_epoch


def _one_training(
    model: Any, callbacks: list[Any], *, epochs: int, steps: int, verbose: Any
) -> Any:
    """Return a callback list that sees one training, though Keras's fit runs once an epoch."""
    library = _library(model)

    class OneTraining(library.callbacks.CallbackList):  # type: ignore[misc, name-defined]
        def on_train_begin(self, logs: Any = None) -> None: ...

        def on_train_end(self, logs: Any = None) -> None: ...

        def end(self) -> None:
            super().on_train_end()

        def begin(self) -> None:
            super().on_train_begin()

    if getattr(model.optimizer, "use_ema", False):
        raise UsageError("an optimizer with use_ema averages at the end of fit: not supported")
    hooks = OneTraining(
        callbacks,
        add_history=True,
        add_progbar=verbose != 0,
        model=model,
        verbose=1 if verbose == "auto" else verbose,
        epochs=epochs,
        steps=steps,
    )
    hooks.begin()
    return hooks


def _library(model: Any) -> Any:
    return sys.modules["tf_keras" if _is_tf_keras(model) else "keras"]


def _is_tf_keras(model: Any) -> bool:
    return any(base.__module__.startswith("tf_keras.") for base in type(model).__mro__)


def _refuse_unusable(model: Any) -> None:
    import tensorflow as tf  # noqa: PLC0415

    servers = tf.distribute.ParameterServerStrategy
    if not _is_tf_keras(model) and isinstance(model.distribute_strategy, servers):
        raise UsageError(_NO_PARAMETER_SERVERS)
    if getattr(model, "optimizer", None) is None:
        raise UsageError("the model has no optimizer: call model.compile(...) before training")


def _build(model: Any) -> None:
    """Make all variables exist, so that they can be restored before the first batch."""
    if not model.built:
        raise UsageError(
            "the model has no weights yet, so nothing can be restored into it: start it with "
            "keras.Input(shape) or call model.build(shape)"
        )
    if not getattr(model.optimizer, "built", False):
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)


def _mirrored_variables(model: Any) -> list[Any]:
    """Return what is the same in all workers: weights, optimizer slots and step."""
    return [*model.trainable_variables, *model.optimizer.variables]


def _own_variables(model: Any) -> list[Any]:
    """Return what differs between workers: batch statistics, random state of layers."""
    trainable = {id(variable) for variable in model.trainable_variables}
    variables = [variable for variable in model.variables if id(variable) not in trainable]
    if _is_tf_keras(model):
        random = (getattr(module, "_random_generator", None) for module in model.submodules)
        generators = (getattr(generator, "_generator", None) for generator in random)
        variables += [generator.state for generator in generators if generator is not None]
    return variables


def _metrics_variables(model: Any) -> list[Any]:
    return list(getattr(model, "metrics_variables", ()))


def _put_back_metrics(model: Any, restored: Restored) -> None:
    """Go on with the running metrics, as far as they exist before the first batch."""
    variables, saved = _metrics_variables(model), restored.state["metrics"]
    known = {**saved, "variables": saved["variables"][: len(variables)]}
    tensorflow_side.assign(variables[: len(known["variables"])], known)


class _StartAt:
    """What tf_keras asks for the position to start at."""

    def __init__(self, position: Position) -> None:
        self._position = position

    def maybe_load_initial_counters_from_ckpt(
        self,
        _steps: int,
        _epoch: int,
        mode: Any = None,  # noqa: ARG002
    ) -> tuple[int, int]:
        return self._position.epoch, self._position.batch


def _start_at(model: Any, position: Position | None) -> None:
    """Tell a running fit at which epoch to start, as Keras's own BackupAndRestore does."""
    if _is_tf_keras(model):
        model._training_state = None if position is None else _StartAt(position)  # noqa: SLF001
    else:
        model._initial_epoch = None if position is None else position.epoch  # noqa: SLF001


def _numbers(logs: Any) -> dict[str, float]:
    """Return the logs that are plain numbers; under parameter servers they are not there yet."""
    numbers = {}
    for name, value in logs.items() if isinstance(logs, Mapping) else ():
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError):
            continue
    return numbers
