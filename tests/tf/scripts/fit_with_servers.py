"""tf_keras `fit` under parameter servers, then Keras 3 under the same ones, which is refused."""

# ruff: noqa: T201
import os
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np
import tensorflow as tf
import tf_keras

import tiresias

EPOCHS, STEPS = 3, 20


def dataset(_context):
    generator = np.random.default_rng(0)
    samples = generator.normal(size=(200, 8)).astype("f"), generator.normal(size=(200, 1))
    return tf.data.Dataset.from_tensor_slices(samples).shuffle(200).repeat().batch(10)


class Print(tf_keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self._supports_tf_logs = True

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.03)  # so that a request to stop finds it in the middle
        self.model._cluster_coordinator.join()
        print(f"iterations {int(self.model.optimizer.iterations.numpy())}")


def main():
    strategy = tiresias.tensorflow.strategy()
    with strategy.scope():
        model = tf_keras.Sequential(
            [
                tf_keras.layers.Dense(4, input_shape=(8,)),
                tf_keras.layers.Dropout(0.1),
                tf_keras.layers.Dense(1),
            ]
        )
        model.compile(tf_keras.optimizers.Adam(), "mse")
    model.fit(
        tf_keras.utils.experimental.DatasetCreator(dataset),
        epochs=EPOCHS,
        steps_per_epoch=STEPS,
        callbacks=[Print(), tiresias.keras.Callback()],
        verbose=0,
    )
    print(f"done: {int(model.optimizer.iterations.numpy())} steps")
    with strategy.scope():
        other = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        other.compile("sgd", "mse")
    try:
        tiresias.keras.fit(other, lambda _epoch: dataset(None).take(5))
    except tiresias.UsageError as error:
        print(f"refused: {error}")


if __name__ == "__main__":
    main()
