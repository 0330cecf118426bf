"""Which run holds which GPU of this node: the last word before a process gets a device."""

from collections.abc import Iterable


class GpuLedger:
    """GPU -> run. A GPU has at most one owner, from the preparation until nothing is left."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}

    def conflicts(self, run_id: str, gpu_ids: Iterable[str]) -> dict[str, str]:
        """Return those of the GPUs that another run holds, with its run id."""
        return {
            gpu_id: owner
            for gpu_id in gpu_ids
            if (owner := self._owners.get(gpu_id, run_id)) != run_id
        }

    def claim(self, run_id: str, gpu_ids: Iterable[str]) -> None:
        """Make the run the owner; the caller has looked at `conflicts`."""
        self._owners.update(dict.fromkeys(gpu_ids, run_id))

    def release(self, run_id: str) -> None:
        """Free all GPUs of the run."""
        self._owners = {gpu: owner for gpu, owner in self._owners.items() if owner != run_id}
