"""How long from a submission to the process's first act, and how many jobs a second.

Run it as ``make bench`` or ``python -m benchmarks.launch``. Every job makes a file; when it did so,
the file's time of change tells. A burst depends on the disk, for each of about ten messages a job
is synced: ``--folder /dev/shm`` shows what the software could do. Prints distributions and compares
them with the limits in ``expected.toml``.
"""

import argparse
import asyncio
import json
import sys
import time
import tomllib
from pathlib import Path

from benchmarks.cluster import percentile, running_cluster, wait_for_files
from broker import nats_bus, subjects

GPUS = 16
SUBJECT = subjects.job_request("bench", "submit")


def job(out: Path) -> bytes:
    """A job whose first and only act is to make a file; when, its time of change tells."""
    return json.dumps(
        {"name": "bench", "run": ["sh", "-c", f": > {out}/$TIRESIAS_JOB_ID"]}
    ).encode()


def started_at_s(path: Path) -> float:
    """When a job ran, on this machine's clock; 0 while it has not."""
    return path.stat().st_mtime if path.exists() else 0.0


async def measure_latency(url: str, out: Path, count: int) -> list[float]:
    """Submit one job after another on an idle cluster; milliseconds until each runs."""
    bus = await nats_bus.connect(url, name="bench")
    latencies_ms = []
    try:
        for _ in range(count):
            began_s = time.time()
            stored = await bus.append(SUBJECT, job(out), message_id=f"latency-{began_s}")
            path = out / str(stored.seq)
            await _wait_for(path)
            latencies_ms.append((started_at_s(path) - began_s) * 1000)
            path.unlink()
            await asyncio.sleep(0.05)
    finally:
        await bus.close()
    return latencies_ms


async def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not started_at_s(path):
        if time.monotonic() > deadline:
            sys.exit(f"job {path.name} had not started after 30 s")
        await asyncio.sleep(0.001)


async def measure_burst(url: str, out: Path, count: int, number: int) -> float:
    """Submit ``count`` jobs at once; jobs a second from the first submission to the last start."""
    bus = await nats_bus.connect(url, name="bench")
    try:
        began_s = time.time()
        await asyncio.gather(
            *(bus.append(SUBJECT, job(out), message_id=f"burst-{number}-{i}") for i in range(count))
        )
        await wait_for_files(out, count, 120)
    finally:
        await bus.close()
    paths = list(out.glob("[0-9]*"))
    last_s = max(map(started_at_s, paths))
    for path in paths:
        path.unlink()
    return count / (last_s - began_s)


async def run(url: str, out: Path, args: argparse.Namespace) -> dict[str, float]:
    """Measure both and print them."""
    await measure_latency(url, out, 5)
    latencies_ms = await measure_latency(url, out, args.jobs)
    figures = {f"submit_to_run_p{p}_ms": percentile(latencies_ms, p) for p in (50, 90, 99)}
    print(f"submit to the process's first act, {args.jobs} jobs one after another:")
    print(
        "  " + "  ".join(f"p{p} {figures[f'submit_to_run_p{p}_ms']:.1f} ms" for p in (50, 90, 99))
    )
    rates = [await measure_burst(url, out, args.burst, n) for n in range(args.repeat)]
    figures["burst_jobs_per_s"] = percentile(rates, 50)
    print(f"burst of {args.burst} one-GPU jobs on {GPUS} simulated GPUs, {args.repeat} times:")
    print(f"  jobs/s: {min(rates):.0f} to {max(rates):.0f}, median {percentile(rates, 50):.0f}")
    return figures


def verdict(figures: dict[str, float]) -> int:
    """Compare with the accepted ranges; 1 if one is missed."""
    expected = tomllib.loads((Path(__file__).parent / "expected.toml").read_text())["launch"]
    missed = 0
    for name, limits in expected.items():
        is_met = limits.get("min", 0) <= figures[name] <= limits.get("max", float("inf"))
        missed += not is_met
        print(f"  {'ok    ' if is_met else 'MISSED'} {name} {figures[name]:.1f} {limits}")
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=100, help="jobs for the latency")
    parser.add_argument("--burst", type=int, default=300, help="jobs in a burst")
    parser.add_argument("--repeat", type=int, default=3, help="number of bursts")
    parser.add_argument("--folder", help="where the state is kept: /dev/shm leaves the disk out")
    args = parser.parse_args()
    options = ("--nodes", "2", "--gpus", str(GPUS // 2))
    with running_cluster(*options, parent=args.folder) as (url, state_dir):
        out = state_dir.parent / "started"
        out.mkdir()
        figures = asyncio.run(run(url, out, args))
    return verdict(figures)


if __name__ == "__main__":
    sys.exit(main())
