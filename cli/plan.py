"""What a cluster on this machine shall be like."""

from pathlib import Path

import msgspec


class ClusterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to start. ``gpus`` None takes the machine's own GPUs; ``port`` None a usual one."""

    state_dir: Path
    nodes: int = 1
    gpus: int | None = None
    port: int | None = None
    nats_url: str | None = None
    scheduler_options: tuple[str, ...] = ()

    @property
    def node_names(self) -> list[str]:
        return [f"node-{index}" for index in range(self.nodes)]
