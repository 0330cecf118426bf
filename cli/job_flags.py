"""The flags of `tiresias submit`, and how they and job files become job specs.

Flags and files meet in one mapping with the job file's keys, checked by the one validator.
"""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Annotated, Any

import msgspec
import typer

from broker import job_file
from broker.schemas.job import JobSpec
from cli.exit_codes import CommandError, ExitCode

Name = Annotated[str | None, typer.Option("--name", "-n", help="Name of the job.")]
Workers = Annotated[int | None, typer.Option(help="Number of worker processes.")]
GpusPerWorker = Annotated[int | None, typer.Option(help="GPUs of each worker.")]
Gpus = Annotated[int | None, typer.Option(help="GPUs in all, shared by the workers.")]
ParameterServers = Annotated[int | None, typer.Option("--ps", help="TensorFlow parameter servers.")]
Environment = Annotated[
    list[str] | None,
    typer.Option("--env", "-e", metavar="K=V", help="Environment variable; K alone passes yours."),
]
EnvironmentFile = Annotated[list[Path] | None, typer.Option("--env-file", help="Lines of K=V.")]
Workdir = Annotated[str | None, typer.Option(help="Folder the tasks start in; default: this one.")]
TimeLimit = Annotated[str | None, typer.Option(metavar="2h", help="Longest running time.")]
Grace = Annotated[
    str | None, typer.Option(metavar="60s", help="Time from the request to stop until the kill.")
]
MaxRestarts = Annotated[int | None, typer.Option(help="Restarts after the job's own failures.")]
Consolidate = Annotated[
    str | None, typer.Option(metavar="require|prefer", help="Wait for the fewest nodes?")
]
Label = Annotated[list[str] | None, typer.Option(metavar="K=V", help="Label to find the job by.")]

_FLAG_OF_KEY = {"restart": "--max-restarts", "labels": "--label", "run": "command"}


def mapping(
    *,
    gpus: int | None,
    env: Sequence[str] | None,
    env_file: Sequence[Path] | None,
    max_restarts: int | None,
    label: Sequence[str] | None,
    **plain: str | int | None,
) -> dict[str, Any]:
    """Return the job file's keys that the flags set."""
    keys: dict[str, Any] = {key: value for key, value in plain.items() if value is not None}
    if gpus is not None:
        keys["gpus_per_worker"] = _gpus_per_worker(gpus, plain["workers"], keys)
    lines = [line for path in env_file or () for line in _env_lines(path)]
    if variables := _pairs("--env", [*lines, *(env or ())], os.environ):
        keys["env"] = variables
    if labels := _pairs("--label", label or (), {}):
        keys["labels"] = labels
    if max_restarts is not None:
        keys["restart"] = {"max": max_restarts}
    return keys


def specs_of(
    files: Sequence[str], command: Sequence[str], flags: Mapping[str, Any]
) -> list[JobSpec]:
    """Return the jobs of files, or of a command; flags win over what a file says."""
    if files and command:
        raise CommandError("give files or a command after '--', not both", ExitCode.USAGE)
    if command:
        return [_checked({"name": _name_of(command), "run": list(command), **flags})]
    if not files:
        raise CommandError(
            "nothing to submit: name a job file, or a command after '--'", ExitCode.USAGE
        )
    specs = read_files(files, "; to submit a command, write it after '--'")
    return [_checked({**keys_of(spec), **flags}) if flags else spec for spec in specs]


def keys_of(spec: JobSpec) -> dict[str, Any]:
    """Return the keys of a job file that say what differs from the defaults."""
    defaults = _plain(JobSpec(name="", run=""))
    return {key: value for key, value in _plain(spec).items() if value != defaults[key]}


def _plain(spec: JobSpec) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(spec))
    return plain


def read_files(files: Sequence[str], hint: str = "") -> list[JobSpec]:
    """Return the jobs of all files; raises one error that tells the problems of all of them."""
    from cli import job_yaml  # noqa: PLC0415 - YAML is slow to load, a command does without

    specs: list[JobSpec] = []
    problems: list[str] = []
    for name in files:
        try:
            specs += job_yaml.read(_content(name, hint), name, str(Path.cwd()))
        except job_yaml.JobFileError as error:
            problems.append(str(error))
    if problems:
        raise CommandError("\n".join(problems), ExitCode.USAGE)
    return specs


def _content(name: str, hint: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise CommandError(
            f"cannot read {name!r}: {error.strerror}{hint}", ExitCode.USAGE
        ) from error


def _checked(value: dict[str, Any]) -> JobSpec:
    """Return the spec of a mapping built from flags; problems name the flag."""
    folder = Path(value.get("workdir") or ".").expanduser()
    job = {**value, "workdir": str(Path.cwd() / folder)}
    problems = job_file.validate_mapping(job, {})
    if problems:
        lines = [f"{_flag_of(problem.path)}: {problem.message}" for problem in problems]
        raise CommandError("\n".join(lines), ExitCode.USAGE)
    return msgspec.convert(job, JobSpec)


def _flag_of(path: str) -> str:
    key, _, rest = path.partition(".")
    flag = _FLAG_OF_KEY.get(key.partition("[")[0], "--" + key.replace("_", "-"))
    return f"{flag} {rest}" if key in ("env", "labels") and rest else flag


def _gpus_per_worker(gpus: int, workers: str | int | None, keys: Mapping[str, Any]) -> int:
    if "gpus_per_worker" in keys:
        raise CommandError("--gpus and --gpus-per-worker contradict: give one", ExitCode.USAGE)
    count = int(workers or 1)
    if count < 1 or gpus % count:
        raise CommandError(
            f"--gpus {gpus} cannot be shared evenly by {count} workers", ExitCode.USAGE
        )
    return gpus // count


def _pairs(flag: str, items: Iterable[str], defaults: Mapping[str, str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals and key not in defaults:
            what = "is not set here" if defaults else "has no value"
            raise CommandError(f"{flag}: {key!r} {what}; write K=V", ExitCode.USAGE)
        pairs[key] = value if equals else defaults[key]
    return pairs


def _env_lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(
            f"--env-file: cannot read {str(path)!r}: {error}", ExitCode.USAGE
        ) from error
    stripped = (line.strip() for line in lines)
    return [line for line in stripped if line and not line.startswith("#")]


def _name_of(command: Sequence[str]) -> str:
    """Name a job after its script, or its program."""
    script = next((part for part in command if part.endswith((".py", ".sh"))), command[0])
    return PurePath(script).name[:128] or "job"
