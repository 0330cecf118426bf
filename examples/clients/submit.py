"""Submit a job with nothing but nats-py: one JSON request, answered by its number.

    python submit.py job.json --key nightly-2026-02-01

The keys of the JSON object are those of the job file. The same key twice is the same job.
"""

import argparse
import asyncio
import getpass
import json
import os
from pathlib import Path

import nats
from nats.errors import NoRespondersError, NoServersError
from nats.errors import TimeoutError as NatsTimeoutError

HELLO = {"name": "hello", "run": ["python3", "-c", "print('hello')"]}


async def ignore(_: Exception) -> None:
    """Keep nats-py from printing each failed attempt; what counts is raised."""


async def submit(url: str, user: str, job: dict, key: str | None) -> int:
    """Return the job's number: the request is stored, whether or not a scheduler is alive."""
    connection = await nats.connect(
        url, connect_timeout=5, max_reconnect_attempts=1, error_cb=ignore
    )
    try:
        reply = await connection.request(
            f"tiresias.v1.jobs.{user}.submit",
            json.dumps(job).encode(),
            timeout=10,
            headers={"Nats-Msg-Id": key} if key else None,
        )
    finally:
        await connection.close()
    answer = json.loads(reply.data)
    if "error" in answer:
        raise SystemExit(f"not stored: {answer['error']['description']}")
    return answer["seq"]


def main() -> None:
    """Read the command line, print the job's number."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", nargs="?", type=Path, help="job as a JSON object")
    parser.add_argument("--nats", default=os.environ.get("TIRESIAS_NATS", "nats://127.0.0.1:4222"))
    parser.add_argument("--user", default=getpass.getuser())
    parser.add_argument("--key", help="makes a retry safe")
    options = parser.parse_args()
    job = json.loads(options.file.read_text(encoding="utf-8")) if options.file else HELLO
    try:
        print(asyncio.run(submit(options.nats, options.user, job, options.key)))
    except (NoServersError, OSError) as error:
        raise SystemExit(f"cannot reach {options.nats}: {error}") from error
    except NoRespondersError as error:
        raise SystemExit("no stream stores the request: is Tiresias set up there?") from error
    except NatsTimeoutError as error:
        raise SystemExit("no answer: it may be stored; submit again with the same --key") from error


if __name__ == "__main__":
    main()
