"""Keras training stopped, crashed and resumed inside one process: what must come back does."""

import importlib
import itertools
import os
import random

import numpy as np
import pytest

import tiresias
from tiresias.environment import JobEnvironment
from tiresias.job import Job

pytestmark = [
    pytest.mark.tf,
    pytest.mark.timeout(200),
    pytest.mark.filterwarnings("ignore"),
]

EPOCHS, STEPS, BATCH = 3, 8, 16
WHOLE = {}
BOTH_LIBRARIES = pytest.mark.parametrize("library", ["keras", "tf_keras"], indirect=True)


@pytest.fixture
def library(request):
    """Keras 3, or what the test's parameter says."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    library = importlib.import_module(getattr(request, "param", "keras"))
    if library.__name__ == "tf_keras":  # its default dropout cannot be resumed exactly
        library.backend.experimental.enable_tf_random_generator()
    return library


@pytest.fixture
def job_in(tmp_path):
    """Start a job as a new process would: nothing but the folder is shared."""

    def job_in(name, **options):
        folder = tmp_path / name
        token = f"attempt-{random.getrandbits(32):x}"
        return Job(JobEnvironment(checkpoint_dir=folder, write_token=token, **options))

    return job_in


def build_model(library):
    library.utils.set_random_seed(1)
    layers = library.layers
    model = library.Sequential(
        [
            layers.Dense(8, activation="relu", input_shape=(4,)),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(3),
        ]
    )
    loss = library.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(library.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


def samples():
    import tensorflow as tf

    generator = np.random.default_rng(0)
    x = generator.normal(size=(STEPS * BATCH, 4)).astype("f")
    return tf.data.Dataset.from_tensor_slices((x, np.abs(x).argmax(1) % 3))


def data(epoch):
    return samples().shuffle(1000, seed=epoch).batch(BATCH)


def at_batch(library, number, action, hook="on_train_batch_end"):
    """Return a callback that acts once, and uses both random generators at each batch."""
    batches = itertools.count(1)

    def count(_batch, logs=None):
        random.random()
        np.random.random()  # noqa: NPY002
        if next(batches) == number:
            action()

    callback = library.callbacks.Callback()
    setattr(callback, hook, count)
    return callback


class InterruptedTrainingError(Exception):
    pass


def interrupt():
    raise InterruptedTrainingError


def train(library, job, *callbacks, **options):
    model = build_model(library)
    history = tiresias.keras.fit(
        model, data, epochs=EPOCHS, callbacks=callbacks, job=job, verbose=0, **options
    )
    return model, history.history


def outcome(model):
    """Everything that training changes, bit for bit."""
    variables = [*model.variables, *model.optimizer.variables]
    values = [np.asarray(variable.numpy()).tobytes() for variable in variables]
    return values, random.getstate(), np.random.get_state()[1].tobytes()  # noqa: NPY002


@pytest.fixture
def whole(library, job_in):
    """The outcome and history of a training that nothing interrupted."""
    if library.__name__ not in WHOLE:
        model, history = train(library, job_in("whole"), at_batch(library, 0, None))
        WHOLE[library.__name__] = (outcome(model), history)
    return WHOLE[library.__name__]


@BOTH_LIBRARIES
@pytest.mark.parametrize("step", ["any", STEPS])
def test_a_stop_at_any_step_changes_nothing(library, job_in, chance, whole, step):
    step = chance.randint(1, EPOCHS * STEPS) if step == "any" else step
    expected, history = whole
    job = job_in("stopped")
    with pytest.raises(SystemExit) as stopped:
        train(library, job, at_batch(library, step, job._stop.set))
    assert stopped.value.code == tiresias.EXIT_STOPPED
    random.seed(chance.random())
    model, resumed_history = train(library, job_in("stopped"), at_batch(library, 0, None))
    assert outcome(model) == expected
    if step < EPOCHS * STEPS and library.__name__ == "keras":
        assert resumed_history["loss"][-1] == history["loss"][-1]
        assert resumed_history["accuracy"][-1] == history["accuracy"][-1]


def test_a_stop_during_evaluation_goes_on_with_the_next_epoch(library, job_in, whole):
    checks = {"validation_data": data(99)}
    job = job_in("stopped")
    stop = at_batch(library, STEPS + 2, job._stop.set, hook="on_test_batch_end")
    with pytest.raises(SystemExit):
        train(library, job, stop, **checks)
    resumed, history = train(library, job_in("stopped"), **checks)
    assert outcome(resumed)[0] == whole[0][0]
    assert len(history["val_loss"]) == EPOCHS - 2


def test_a_crash_goes_back_to_the_last_periodic_save(library, job_in, whole):
    every = {"checkpoint_every_steps": 5}
    job = job_in("crashed", **every)
    each_save_is_on_disk = library.callbacks.LambdaCallback(
        on_train_batch_begin=lambda *_, **__: job.flush()
    )
    with pytest.raises(InterruptedTrainingError):
        train(library, job, each_save_is_on_disk, at_batch(library, 18, interrupt))
    assert (job.environment.checkpoint_dir / "step-15").is_dir()
    resumed = job_in("crashed", **every)
    model, _ = train(library, resumed, at_batch(library, 0, None))
    assert outcome(model) == whole[0]
    assert resumed._started_from == 15


def fit_plainly(library, job, *callbacks):
    """Train with Keras's own fit; return (epoch, steps done before) of each epoch it began."""
    begun = []

    class NoteEpochs(library.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            begun.append((epoch, int(self.model.optimizer.iterations.numpy())))

    hooks = [*callbacks, tiresias.keras.Callback(job), NoteEpochs()]
    build_model(library).fit(data(0), epochs=EPOCHS, callbacks=hooks, verbose=0)
    return begun


@BOTH_LIBRARIES
@pytest.mark.parametrize(
    ("stop_after", "then_begun"),
    [
        (STEPS + 3, [1, 2]),
        (2 * STEPS, [2]),
        (EPOCHS * STEPS, []),
    ],
    ids=["inside an epoch", "after an epoch", "after the last epoch"],
)
def test_a_plain_fit_restores_everything_and_repeats_only_the_epoch(
    library, job_in, stop_after, then_begun
):
    job = job_in("plain")
    with pytest.raises(SystemExit):
        fit_plainly(library, job, at_batch(library, stop_after, job._stop.set))
    begun = fit_plainly(library, job_in("plain"))
    assert [epoch for epoch, _ in begun] == then_begun
    assert [done for _, done in begun[:1]] == [stop_after] * len(begun[:1])


def test_early_stopping_sees_one_training(library, job_in):
    stopper = library.callbacks.EarlyStopping("loss", patience=0, min_delta=100.0)
    _, history = train(library, job_in("early"), stopper)
    assert len(history["loss"]) == 2


def test_another_model_than_the_saved_one_is_refused(library, job_in):
    job_in("mixed").save(3, {"epoch": 0, "batch": 3, "mirrored": {"variables": []}})
    with pytest.raises(tiresias.CheckpointMismatchError, match="the save has 0 variables"):
        train(library, job_in("mixed"))


def test_unusable_data_and_models_are_told_before_training(library, job_in):
    model = build_model(library)
    for wrong, problem in [
        (samples(), "must be a function of the epoch"),
        (lambda _epoch: [1, 2], "not a tf.data.Dataset"),
        (lambda epoch: data(epoch).repeat(), "give steps_per_epoch"),
    ]:
        with pytest.raises(tiresias.UsageError, match=problem):
            tiresias.keras.fit(model, wrong, job=job_in("unused"))
    with pytest.raises(tiresias.UsageError, match=r"call model\.compile"):
        tiresias.keras.fit(library.Sequential(), data, job=job_in("unused"))


def test_a_snapshot_stays_as_it_was_while_training_goes_on(library, job_in):
    model = build_model(library)
    before = model.get_weights()
    snapshot = tiresias.tensorflow.snapshot(model.variables)
    tiresias.keras.fit(model, data, job=job_in("on"), verbose=0)
    assert not np.array_equal(model.get_weights()[0], before[0])
    tiresias.tensorflow.assign(model.variables, as_restored(snapshot))
    assert all(map(np.array_equal, model.get_weights(), before))


def as_restored(snapshot):
    entries = [
        {**entry, "values": [np.asarray(value) for value in entry["values"]]}
        for entry in snapshot["variables"]
    ]
    return {"variables": entries, "generator": np.asarray(snapshot["generator"])}
