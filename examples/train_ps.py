"""Train with parameter servers: workers compute gradients, the servers keep the variables.

Every task of the job runs this script. Servers and workers stay inside `strategy()`; the chief
hands out the steps, saves, and is the one that stops when asked.
"""

import argparse
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # tiny steps: the CPU is faster

import keras
import tensorflow as tf
from digits_data import CLASSES, PIXELS, make_digits

import tiresias

BATCH = 50


def build_model():
    return keras.Sequential(
        [
            keras.Input((PIXELS,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(CLASSES),
        ]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--step-ms", type=int, default=0, help="wait this long after each step")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = tiresias.tensorflow.strategy()
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    keras.utils.set_random_seed(arguments.seed)
    with strategy.scope():
        model = build_model()
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        optimizer.build(model.trainable_variables)
    compute_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def on_one_worker(batch):
        pictures, labels = batch
        with tf.GradientTape() as tape:
            loss = compute_loss(labels, model(pictures, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train_step(batches):
        return strategy.run(on_one_worker, args=(next(batches),))

    def data():
        samples = tf.data.Dataset.from_tensor_slices(make_digits(seed=arguments.seed))
        return samples.shuffle(1000).repeat().batch(BATCH)

    batches = iter(coordinator.create_per_worker_dataset(data))

    job = tiresias.init()
    variables = [*model.variables, *optimizer.variables]
    saved = job.restore()
    step = saved.step if saved else 0
    if saved:
        tiresias.tensorflow.assign(variables, saved.state)
    job.report_tensors(tiresias.tensorflow.tensor_bytes(model.trainable_variables))
    print(f"starting at step {step}")
    while step < arguments.steps:
        loss = coordinator.schedule(train_step, args=(batches,)).fetch()
        time.sleep(arguments.step_ms / 1000)
        step += 1
        if step % 10 == 0:
            print(f"step {step} loss {loss:.6f}")
        job.step(step, {"loss": loss}, total_steps=arguments.steps)
        if job.should_save():
            job.save(step, tiresias.tensorflow.snapshot(variables))
        job.stop_if_asked(step, lambda: tiresias.tensorflow.snapshot(variables))
    job.close()
    print(f"done: loss {loss:.6f}")


if __name__ == "__main__":
    main()
