"""How old this process is: the cost of a restart counts from its start, imports included."""

import os
import time
from pathlib import Path

_IMPORTED_S = time.monotonic()


def process_age_ms() -> int:
    """Milliseconds since this process started; since this import where /proc is missing."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return round((time.clock_gettime(time.CLOCK_BOOTTIME) - started_s) * 1000)
    except (OSError, AttributeError, ValueError, IndexError):
        return round((time.monotonic() - _IMPORTED_S) * 1000)
