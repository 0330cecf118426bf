"""job-file.md and its JSON schema: every key of the job file."""

import json

from broker import job_file
from broker.schemas.job import CheckpointSpec, JobSpec, RestartSpec
from scripts.reference.markdown import field_table, page, table

EXAMPLE = """\
```yaml
name: resnet50
run: python train.py --epochs 90
workers: 2
gpus_per_worker: 4
workdir: /data/resnet
time_limit: 12h
env:
  BATCH_SIZE: "256"
restart:
  max: 3
```"""
NOTES = """\
A job holds `workers * gpus_per_worker` GPUs, all at once or none. Keys are strict: an unknown key
is an error that names the nearest valid one, and all errors are told at once, with their lines.

`run` as text is a script for `bash -euo pipefail`; as a list it is a command with its arguments,
without a shell. Durations are a number and a unit: `500ms`, `90s`, `10m`, `2h`, `1d`.

Editors complete the file with [job-file.schema.json](job-file.schema.json), for example by a first
line

```yaml
# yaml-language-server: $schema=job-file.schema.json
```"""


def job_file_page() -> str:
    """The keys as tables, an example, and the limits that types cannot say."""
    return page(
        "Job file",
        "One YAML document describes one job. The same keys, as one JSON object, are the request on"
        " `tiresias.v1.jobs.<user>.submit`.",
        EXAMPLE,
        NOTES,
        "## Keys",
        field_table(JobSpec)
        .replace("(#restartspec)", "(#restart)")
        .replace("(#checkpointspec)", "(#checkpoint)"),
        "## restart",
        "When a failed job runs again. Preemptions and machine faults never count.",
        field_table(RestartSpec),
        "## checkpoint",
        "Where checkpoints live, and how many are kept.",
        field_table(CheckpointSpec),
        "## Limits",
        table(("what", "limit"), _limits()),
    )


def job_file_schema() -> str:
    """The JSON schema as text."""
    return json.dumps(job_file.schema(), indent=2) + "\n"


def _limits() -> list[tuple[str, str]]:
    return [
        ("GPUs of a job", f"{job_file.MAX_GANG_GPUS:,}"),
        ("one argument, or one `NAME=value` of `env`", f"{job_file.MAX_STRING_BYTES:,} bytes"),
        ("all of `env`", f"{job_file.MAX_ENV_BYTES:,} bytes"),
        ("the whole request", f"{job_file.MAX_REQUEST_BYTES:,} bytes"),
        ("`time_limit`", job_file.MAX_TIME_LIMIT),
        ("`grace`", job_file.MAX_GRACE),
    ]
