"""A job that needs no library of ours: it saves on SIGTERM and exits with code 75.

Whatever the language, that is the whole contract: save, then exit 75. The next attempt finds
the file in TIRESIAS_CHECKPOINT_DIR and goes on.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

STOPPED_WHEN_ASKED = 75
stop_asked = False


def ask_to_stop(_signal, _frame):
    global stop_asked  # noqa: PLW0603 - a signal handler has nowhere else to write
    stop_asked = True


def save(path, state):
    """Write a new file, then put it in the old one's place: a crash leaves one of the two."""
    unfinished = path.with_suffix(f".{os.getpid()}.tmp")
    with unfinished.open("w") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--step-ms", type=int, default=100)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, ask_to_stop)

    folder = Path(os.environ.get("TIRESIAS_CHECKPOINT_DIR", "checkpoints"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "state.json"
    step = json.loads(path.read_text())["step"] if path.exists() else 0
    print(f"starting at step {step}")

    while step < arguments.steps:
        time.sleep(arguments.step_ms / 1000)
        step += 1
        print(f"step {step}")
        if stop_asked:
            save(path, {"step": step})
            sys.exit(STOPPED_WHEN_ASKED)
    print(f"done: {step} steps")


if __name__ == "__main__":
    main()
