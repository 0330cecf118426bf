"""Train a small Keras network; preempted and restarted, it ends as if nothing had happened.

Runs alone (`python train_digits.py`), or as one task of a multi-worker job: the launcher's
TF_CONFIG decides. Ask it to stop with SIGTERM, start it again, compare the last line.
"""

import argparse
import hashlib
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # tiny steps: the CPU is faster

import keras
import numpy as np
import tensorflow as tf
from digits_data import CLASSES, PIXELS, make_digits

import tiresias

BATCH = 50
STEPS_PER_EPOCH = 40


class PrintStep(keras.callbacks.Callback):
    """Prints each tenth step, and waits a little where a bigger model would compute."""

    def __init__(self, step_ms):
        super().__init__()
        self.step_ms = step_ms

    def on_train_batch_end(self, batch, logs=None):  # noqa: ARG002
        time.sleep(self.step_ms / 1000)
        step = int(self.model.optimizer.iterations.numpy())
        if step % 10 == 0:
            print(f"step {step} loss {logs['loss']:.6f}")


def build_model():
    model = keras.Sequential(
        [
            keras.Input((PIXELS,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(CLASSES),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss)
    return model


def weights_digest(model):
    data = b"".join(np.asarray(value).tobytes() for value in model.get_weights())
    return hashlib.sha256(data).hexdigest()[:16]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5, help="of 40 steps each")
    parser.add_argument("--step-ms", type=int, default=0, help="wait this long after each step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint-dir", help="where to save when no launcher says so")
    arguments = parser.parse_args()

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    tiresias.init(checkpoint_dir=arguments.checkpoint_dir)
    strategy = tiresias.tensorflow.strategy()
    keras.utils.set_random_seed(arguments.seed)
    samples = tf.data.Dataset.from_tensor_slices(
        make_digits(BATCH * STEPS_PER_EPOCH, seed=arguments.seed)
    )

    def data(epoch):
        return samples.shuffle(1000, seed=arguments.seed + epoch).batch(BATCH)

    with strategy.scope():
        model = build_model()
    history = tiresias.keras.fit(
        model,
        data,
        epochs=arguments.epochs,
        callbacks=[PrintStep(arguments.step_ms)],
        verbose=0,
    )
    print(f"done: loss {history.history['loss'][-1]:.6f} weights {weights_digest(model)}")


if __name__ == "__main__":
    main()
