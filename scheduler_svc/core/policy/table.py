"""Policies by the name they have in the settings."""

from broker.schemas.operator import Settings
from scheduler_svc.core.policy.base import Policy
from scheduler_svc.core.policy.fifo import Fifo
from scheduler_svc.core.policy.las import LeastAttainedService


def make_policy(settings: Settings) -> Policy:
    """Build the policy that the settings name."""
    if settings.policy == "fifo":
        return Fifo()
    return LeastAttainedService(settings)
