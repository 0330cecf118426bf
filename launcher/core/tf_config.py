"""TF_CONFIG, the variable by which TensorFlow's cluster resolver learns of a task's gang."""

import json
from collections.abc import Mapping, Sequence


def tf_config(cluster: Mapping[str, Sequence[str]], role: str, index: int) -> str:
    """Return the JSON for task ``index`` of ``role``.

    ``cluster`` maps worker, chief and ps to ``host:port`` in index order. Workers alone make an
    all-reduce gang; with parameter servers TensorFlow wants worker, chief and ps.
    """
    return json.dumps(
        {
            "cluster": {name: list(hosts) for name, hosts in cluster.items() if hosts},
            "task": {"type": role, "index": index},
        }
    )
