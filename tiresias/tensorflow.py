"""TensorFlow: the strategy that fits the gang, and variables saved and put back bit for bit.

A snapshot is taken by reference: TensorFlow copies a variable when it is next written, so a
snapshot costs milliseconds at the step boundary and a background thread can write it. On a GPU
it is copied to the host at once, as device memory is scarce.
"""

import json
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tiresias.agreement import SumOverRanks
from tiresias.errors import CheckpointMismatchError
from tiresias.job import Job, init
from tiresias.stop import StopFlag, leave_stopped_at_once

_POLL_S = 0.1
_CONNECT_TIMEOUT_S = 1.0


def strategy() -> Any:
    """Return the distribution strategy for this task, as TF_CONFIG describes the gang.

    One process: the default strategy. Workers: MultiWorkerMirroredStrategy, with a common
    decision when to stop. With parameter servers: ParameterServerStrategy for the chief; in
    the other tasks this call serves until the run is over and does not return.
    """
    import tensorflow as tf  # noqa: PLC0415

    resolver = serve_if_needed()
    if resolver is not None:
        return tf.distribute.ParameterServerStrategy(resolver)
    if len(_cluster().get("worker", ())) > 1:
        multi_worker = tf.distribute.MultiWorkerMirroredStrategy()
        agree_over(init(), multi_worker)
        return multi_worker
    return tf.distribute.get_strategy()


def serve_if_needed() -> Any:
    """Be a parameter server or its worker until the run is over, or return.

    Returns the cluster resolver to the chief of a gang with parameter servers, None elsewhere.
    A server that is asked to stop goes on serving while the chief lives, because the chief
    saves the variables that live here; it leaves with exit code 75.
    """
    if not has_parameter_servers():
        return None
    import tensorflow as tf  # noqa: PLC0415

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver(rpc_layer="grpc")
    if resolver.task_type in ("ps", "worker"):
        _serve(tf, resolver)
    return resolver


def has_parameter_servers() -> bool:
    """Whether TF_CONFIG describes a gang with parameter servers."""
    return "ps" in _cluster()


def agree_over(job: Job, multi_worker_strategy: Any) -> None:
    """Make the workers of a MultiWorkerMirroredStrategy stop and save at one common step."""
    job.agree_with(_sum_over(multi_worker_strategy, job.environment.world_size))


def snapshot(variables: Iterable[Any], *, one_copy: bool = False) -> dict[str, Any]:
    """Return the values of TensorFlow or Keras variables, fit for `tiresias.Job.save`.

    Also the state of TensorFlow's global random generator. A variable mirrored on several
    devices can differ between them (batch statistics do), so all copies of this process are
    taken; ``one_copy`` takes the first, which is right for weights and optimizer slots.
    """
    import tensorflow as tf  # noqa: PLC0415

    entries = []
    for variable in _flat(variables):
        copies = _copies(tf, variable)[: 1 if one_copy else None]
        values = [_read(tf, copy) for copy in copies]
        entries.append({"name": _name(variable), "values": values})
    generator = _read(tf, tf.random.get_global_generator().state)
    return {"variables": entries, "generator": generator}


def assign(variables: Iterable[Any], saved: Mapping[str, Any]) -> None:
    """Put the values of a `snapshot` back.

    Raises `CheckpointMismatchError` if the variables are not the ones that were saved.
    """
    import tensorflow as tf  # noqa: PLC0415

    targets, entries = list(_flat(variables)), saved["variables"]
    if len(targets) != len(entries):
        raise CheckpointMismatchError(
            f"the save has {len(entries)} variables, this training {len(targets)}"
        )
    for variable, entry in zip(targets, entries, strict=True):
        values = entry["values"]
        for i, copy in enumerate(_copies(tf, variable)):
            _write(tf, copy, values[min(i, len(values) - 1)], entry["name"])
    tf.random.get_global_generator().state.assign(saved["generator"])


def tensor_bytes(variables: Iterable[Any]) -> list[int]:
    """Return the size of each variable, in bytes."""
    import tensorflow as tf  # noqa: PLC0415

    return [
        int(variable.shape.num_elements()) * tf.as_dtype(variable.dtype).size
        for variable in _flat(variables)
    ]


def _flat(variables: Iterable[Any]) -> Iterator[Any]:
    """Yield TensorFlow's variables: what Keras wraps, and the pieces of a sharded one."""
    for variable in variables:
        inner = variable if callable(getattr(variable, "value", None)) else variable.value
        yield from getattr(inner, "variables", (inner,))


def _copies(tf: Any, variable: Any) -> Sequence[Any]:
    """Return the copies of a variable on this process's devices."""
    if not isinstance(variable, tf.distribute.DistributedValues):
        return (variable,)
    copies: Sequence[Any] = variable.distribute_strategy.experimental_local_results(variable)
    return copies


def _read(tf: Any, variable: Any) -> Any:
    """Read by reference; a GPU's value comes to the host."""
    value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
    return value.numpy() if "GPU" in value.device else value


def _write(tf: Any, variable: Any, value: Any, name: str) -> None:
    if tuple(variable.shape) != value.shape or variable.dtype.as_numpy_dtype != value.dtype.type:
        raise CheckpointMismatchError(
            f"variable {_name(variable)!r} is {variable.dtype.name} {tuple(variable.shape)}, "
            f"the save has {name!r} as {value.dtype} {value.shape}"
        )
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.constant(value))


def _name(variable: Any) -> str:
    return str(variable.name)


def _sum_over(multi_worker_strategy: Any, workers: int) -> SumOverRanks:
    """Return an all-reduce over the workers of a strategy; each has the same number of devices."""
    import tensorflow as tf  # noqa: PLC0415

    replicas_each = multi_worker_strategy.num_replicas_in_sync / workers

    def total(values: Any) -> Any:
        def on_replica() -> Any:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(values))

        return multi_worker_strategy.run(on_replica)

    traced_total = tf.function(total, autograph=False)

    def sum_over_ranks(values: Sequence[float]) -> Sequence[float]:
        result = traced_total(tf.constant(values, tf.float64))
        local = multi_worker_strategy.experimental_local_results(result)[0]
        return [float(value) / replicas_each for value in local.numpy()]

    return sum_over_ranks


def _serve(tf: Any, resolver: Any) -> None:
    stop = StopFlag()
    stop.listen()
    cluster = resolver.cluster_spec()
    options = tf.compat.v1.ConfigProto()
    workers = cluster.num_tasks("worker")
    if (os.cpu_count() or 1) <= workers:  # fewer threads than that can deadlock the servers
        options.inter_op_parallelism_threads = workers + 1
    _server = tf.distribute.Server(
        cluster,
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
        config=options,
    )
    stop.listen()  # again: TensorFlow takes SIGTERM when it starts a server
    chief = cluster.task_address("chief", 0)
    while not (stop.is_set() and _is_gone(chief)) and not stop.is_repeated():
        time.sleep(_POLL_S)
    leave_stopped_at_once()  # a TensorFlow server takes seconds to end, and has nothing to save


def _is_gone(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
    except OSError:
        return True
    return False


def _cluster() -> dict[str, Any]:
    text = os.environ.get("TF_CONFIG")
    return dict(json.loads(text).get("cluster", {})) if text else {}
