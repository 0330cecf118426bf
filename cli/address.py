"""Where the NATS server is: ``--nats``, TIRESIAS_NATS, what `tiresias up` wrote, the default.

`up` writes its address to ``tiresias/address.json`` in XDG_RUNTIME_DIR, or in XDG_STATE_HOME
where there is none (mode 0600). A file whose writer is gone does not count.
"""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
import psutil

DEFAULT_URL = "nats://127.0.0.1:4222"


class AddressFile(msgspec.Struct, frozen=True, kw_only=True):
    """What a running `up` tells the other commands."""

    url: str
    pid: int
    state_dir: str


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A server's URL, and who said so (for error messages)."""

    url: str
    source: str


def state_home(environment: Mapping[str, str]) -> Path:
    """Return the folder for what outlives a login (XDG Base Directory)."""
    given = environment.get("XDG_STATE_HOME", "")
    return Path(given) if given.startswith("/") else Path.home() / ".local" / "state"


def default_state_dir(environment: Mapping[str, str]) -> Path:
    """Return where `up` keeps its state unless told otherwise."""
    return state_home(environment) / "tiresias" / "cluster"


def address_path(environment: Mapping[str, str]) -> Path:
    """Return where `up` writes its address."""
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    is_usable = runtime.startswith("/") and os.access(runtime, os.W_OK)
    return (Path(runtime) if is_usable else state_home(environment)) / "tiresias" / "address.json"


def read_address_file(path: Path) -> AddressFile | None:
    """Return the file's content; None if there is none, or its `up` is gone."""
    try:
        written = msgspec.json.decode(path.read_bytes(), type=AddressFile)
    except (OSError, msgspec.MsgspecError):
        return None
    return written if psutil.pid_exists(written.pid) else None


def find(option: str | None, environment: Mapping[str, str]) -> Address:
    """Return the server to talk to."""
    if option:
        return Address(url=option, source="--nats or TIRESIAS_NATS")
    path = address_path(environment)
    written = read_address_file(path)
    if written:
        return Address(url=written.url, source=str(path))
    return Address(url=DEFAULT_URL, source="the default")


def write(content: AddressFile, environment: Mapping[str, str]) -> Path:
    """Tell the other commands where the server is; the newest `up` wins."""
    path = address_path(environment)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    with open(fresh, "wb", opener=_private) as file:
        file.write(msgspec.json.encode(content))
    fresh.replace(path)
    return path


def remove(path: Path) -> None:
    """Remove the address file if it is still that of this process."""
    written = read_address_file(path)
    if written and written.pid == os.getpid():
        with contextlib.suppress(OSError):
            path.unlink()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
