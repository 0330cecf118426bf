"""A fake libnvidia-ml.so.1, compiled once a session and driven by a text file."""

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "fakes" / "nvml" / "fake_nvml.c"


class FakeNvml:
    """The state of the fake driver; `set` replaces its file by rename."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._values: dict[str, object] = {}
        self._events = 0
        self.set(count=4)

    def set(self, **values: object) -> None:
        """Change fields; ``gpu2_lost=1`` means ``gpu.2.lost 1``; None takes a field away."""
        for name, value in values.items():
            key = name
            if name.startswith("gpu"):
                number, _, field = name.removeprefix("gpu").partition("_")
                key = f"gpu.{number}.{field}"
            self._values[key] = value
        self._write()

    def fail(self, function: str, code: int | None) -> None:
        """Make a function fail with an NVML error code; None: let it work again."""
        self._values[f"error.{function}"] = code
        self._write()

    def xid(self, gpu: int, xid: int) -> None:
        """Report an XID error."""
        self._events += 1
        self._values[f"event.{self._events}"] = f"{gpu} {xid}"
        self._write()

    def link(self, gpu: int, link: int, remote: str) -> None:
        """Connect an NVLink to a PCI bus id."""
        self._values[f"gpu.{gpu}.nvlink.{link}"] = remote
        self._write()

    def _write(self) -> None:
        lines = [f"{key} {value}\n" for key, value in self._values.items() if value is not None]
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text("".join(lines))
        temporary.replace(self.path)


def compiled(folder: Path, *flags: str) -> Path:
    """Compile the fake library; return the folder it lies in."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is missing: it compiles the fake libnvidia-ml.so.1")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(
        [
            compiler,
            *("-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"),
            f"-Wl,-soname,{library.name}",
            *flags,
            *("-o", library, SOURCE),
        ],
        check=True,
    )
    return folder


@pytest.fixture(scope="session")
def new_library(tmp_path_factory) -> Path:
    return compiled(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_library(tmp_path_factory) -> Path:
    return compiled(tmp_path_factory.mktemp("old_nvml"), "-DOLD_DRIVER")


@pytest.fixture
def nvml(tmp_path, monkeypatch, new_library) -> FakeNvml:
    """The fake driver, found by every child of this test."""
    fake = FakeNvml(tmp_path / "nvml.state")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(new_library))
    monkeypatch.setenv("FAKE_NVML_STATE", str(fake.path))
    return fake
