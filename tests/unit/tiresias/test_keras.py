"""What the Keras side refuses before TensorFlow is even loaded."""

import json
import sys

import pytest

import tiresias


def test_keras_3_under_parameter_servers_is_refused_at_once(monkeypatch):
    cluster = {"chief": ["a:1"], "worker": ["a:2"], "ps": ["a:3"]}
    config = {"cluster": cluster, "task": {"type": "chief", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    monkeypatch.delitem(sys.modules, "tf_keras", raising=False)
    with pytest.raises(tiresias.UsageError, match="Keras 3 cannot train with fit under param"):
        tiresias.keras.Callback()


def test_data_that_is_not_a_function_of_the_epoch_is_refused():
    with pytest.raises(tiresias.UsageError, match="must be a function of the epoch"):
        tiresias.keras.fit(None, [1, 2, 3])
