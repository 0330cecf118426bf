"""What the scheduler service is told at start: one frozen struct, from a file and flags.

A setting has one name everywhere: ``queue_limits`` in the file is ``--queue-limits`` on the
command line. Flags win over the file; what neither names keeps its default.
"""

import itertools
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from broker.errors import TiresiasError
from broker.schemas.job import Duration, duration_ms
from broker.schemas.operator import GPU_SECOND_MS, Settings

_GpuSeconds = Annotated[float, Meta(gt=0, le=1e12)]


class ConfigError(TiresiasError):
    """The configuration cannot be used; the text names the key and the remedy."""


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Scheduling options as people write them; None where nothing was said."""

    policy: Literal["las", "fifo"] | None = None
    queue_limits: Annotated[tuple[_GpuSeconds, ...], Meta(min_length=1, max_length=32)] | None = (
        None
    )
    """Ascending, GPU-seconds."""
    queue_order: Literal["running_first", "start_time"] | None = None
    promote_knob: Annotated[float, Meta(gt=0, le=1e12)] | Literal["off"] | None = None
    promote_floor: Duration | None = None
    pack_limit: Annotated[float, Meta(ge=0, le=1)] | None = None
    consolidate: Literal["require", "prefer"] | None = None
    preempt_exempt: Duration | None = None
    preempt_exempt_costs: Annotated[int, Meta(ge=0, le=1000)] | None = None
    launch_limit: Duration | None = None
    restart_backoff: Duration | None = None

    def over(self, other: "Options") -> "Options":
        """Return these options, with those of ``other`` where nothing is said here."""
        return msgspec.structs.replace(other, **_said(self))

    def settings(self, base: Settings) -> Settings:
        """Return ``base`` changed by what is said here; raises `ConfigError`."""
        changed: dict[str, Any] = {}
        for name, value in _said(self).items():
            if name == "queue_limits":
                changed["queue_limits_gpu_ms"] = [round(limit * GPU_SECOND_MS) for limit in value]
            elif name in _DURATIONS:
                changed[f"{name}_ms"] = duration_ms(value)
            else:
                changed[name] = None if value == "off" else value
        try:
            settings = msgspec.convert(msgspec.structs.asdict(base) | changed, Settings)
        except msgspec.ValidationError as error:
            raise ConfigError(f"invalid scheduling option: {error}") from error
        limits = settings.queue_limits_gpu_ms
        if any(later <= earlier for earlier, later in itertools.pairwise(limits)):
            raise ConfigError(f"queue_limits must ascend, got {self.queue_limits} GPU-seconds")
        return settings


_DURATIONS = frozenset(["promote_floor", "preempt_exempt", "launch_limit", "restart_backoff"])


def _said(options: Options) -> dict[str, Any]:
    fields = msgspec.structs.asdict(options)
    return {name: value for name, value in fields.items() if value is not None}


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the service needs to know before it connects."""

    nats_url: str
    state_dir: Path
    instance: str = "scheduler"
    """Names this process in the leader record."""
    options: Options = Options()
    suspect_after_ms: int = 6_000
    """Silence after which a node counts as silent: three heartbeats."""
    lost_after_ms: int = 60_000
    """Silence after which a node is given up: longer than its launcher's lease and a margin."""
    snapshot_every_inputs: int = 20_000
    snapshot_every_ms: int = 600_000
    """Longest time between snapshots while inputs come."""
    metrics_port: int = 0
    """Loopback port of the Prometheus endpoint; 0 for none."""

    def __post_init__(self) -> None:
        self.options.settings(Settings())
        if self.lost_after_ms < 2 * self.suspect_after_ms:
            raise ConfigError(
                f"lost_after_ms {self.lost_after_ms} must be at least twice suspect_after_ms"
                f" {self.suspect_after_ms}"
            )

    def settings_for(self, present: Settings) -> Settings:
        """Return the settings to decide by, given those the log arrived at.

        Only the pack limit outlives a restart when nothing is said about it: the profiler fits it.
        """
        return self.options.settings(Settings(pack_limit=present.pack_limit))


def read_options(path: Path) -> Options:
    """Read options from a TOML or JSON file; raises `ConfigError` naming the file and the key."""
    try:
        data = path.read_bytes()
        is_json = path.suffix == ".json"
        content = msgspec.json.decode(data) if is_json else tomllib.loads(data.decode())
        return msgspec.convert(content, Options, strict=False)
    except OSError as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except (msgspec.MsgspecError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot use {str(path)!r}: {error}") from error


def parse_options(values: dict[str, str]) -> Options:
    """Read options from the text of command-line flags; raises `ConfigError` naming the flag."""
    content: dict[str, Any] = dict(values)
    if "queue_limits" in values:
        content["queue_limits"] = values["queue_limits"].split(",")
    try:
        return msgspec.convert(content, Options, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"invalid flag: {error}") from error
