"""Hypothesis runs the same examples every time; `TIRESIAS_EXPLORE=1` looks at many random ones."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "same",
    derandomize=True,
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("explore", settings.get_profile("same"), derandomize=False)


def pytest_configure():
    settings.load_profile("explore" if os.environ.get("TIRESIAS_EXPLORE") else "same")


def examples(count: int) -> int:
    """So many examples; six times as many to explore."""
    return count * 6 if os.environ.get("TIRESIAS_EXPLORE") else count
