"""Every struct that crosses a process boundary, in one list: what is documented and sampled."""

from typing import get_args

import msgspec

from broker import codec
from broker.schemas import api, command, fact, job, node, operator, views
from broker.schemas.base import Message, tag_of

USER_REQUESTS: tuple[type[Message], ...] = (
    job.JobSubmitted,
    job.JobRefused,
    job.JobCancelRequested,
    job.JobHoldRequested,
    job.JobReleaseRequested,
)
OPERATOR_INPUTS: tuple[type[Message], ...] = get_args(codec.OperatorInput)
NODE_INPUTS: tuple[type[Message], ...] = get_args(codec.NodeInput)
SCHEDULER_INPUTS: tuple[type[Message], ...] = get_args(codec.SchedulerInput)
PROFILE_INPUTS: tuple[type[Message], ...] = get_args(codec.ProfileInput)
COMMANDS: tuple[type[Message], ...] = get_args(command.AnyCommand)
JOB_FACTS: tuple[type[Message], ...] = get_args(fact.AnyJobFact)
NODE_FACTS: tuple[type[Message], ...] = get_args(fact.AnyNodeFact)
OTHERS: tuple[type[Message], ...] = (operator.LeaderRecord, node.Heartbeat, node.Telemetry)

MESSAGES = (
    *USER_REQUESTS,
    *OPERATOR_INPUTS,
    *NODE_INPUTS,
    *SCHEDULER_INPUTS,
    *PROFILE_INPUTS,
    *COMMANDS,
    *JOB_FACTS,
    *NODE_FACTS,
    *OTHERS,
)
"""All tagged messages."""

DOCUMENTS: tuple[type[msgspec.Struct], ...] = (
    job.JobSpec,
    views.JobView,
    views.NodeView,
    views.Explanation,
    api.LogRead,
    api.LogChunk,
    api.ExplainRequest,
    api.ApiError,
)
"""Structs that travel or are stored without being part of a log."""


def wire_name(struct: type[msgspec.Struct]) -> str:
    """The tag of a message, the class name of a document: unique among all of them."""
    return tag_of(struct) if issubclass(struct, Message) else struct.__name__
