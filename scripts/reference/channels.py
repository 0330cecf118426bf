"""Every subject with what travels on it: the source of subjects.md and asyncapi.yaml.

Addresses come from the builders of `broker.subjects`, with a stand-in for each variable token.
"""

from typing import Literal, NamedTuple

import msgspec

from broker import subjects
from broker.schemas import api, job, node, operator, views
from broker.schemas.base import Message, tag_of
from scripts import messages

JOB_ID = 987_654_321
PARAMETERS = {
    "user": "Account name of the person; NATS permissions guard it.",
    "node": "Name of a machine.",
    "job_id": "Number of the job: its sequence in the input log.",
    "kind": "The message's type without what stands before the first dot.",
}


class Channel(NamedTuple):
    """One subject. ``direction`` is seen from outside: do clients send there, or read there."""

    name: str
    address: str
    carried_by: str
    direction: Literal["send", "read", "inside"]
    text: str
    messages: tuple[type[msgspec.Struct], ...]
    reply: tuple[type[msgspec.Struct], ...] = ()


def parameters_of(channel: Channel) -> list[str]:
    """The variable tokens of an address."""
    return [name for name in PARAMETERS if f"{{{name}}}" in channel.address]


def kind_of(message: type[Message]) -> str:
    """The last token of the subject a message travels on."""
    return tag_of(message).split(".", 1)[1]


def _address(subject: str) -> str:
    for name in ("user", "node", "kind"):
        subject = subject.replace(f"any-{name}", f"{{{name}}}")
    return subject.replace(str(JOB_ID), "{job_id}")


def _request(verb: str, text: str, message: type[msgspec.Struct]) -> Channel:
    address = _address(subjects.job_request("any-user", verb))
    return Channel(f"job_{verb}", address, INPUT, "send", text, (message,))


INPUT = "input log"
DECISIONS = "decision log"
CORE = "core NATS"

CHANNELS = (
    _request(
        "submit",
        "Ask for a job. The reply is JetStream's acknowledgement: its `seq` is the job's number."
        " A header `Nats-Msg-Id` makes a retry safe.",
        job.JobSpec,
    ),
    _request("cancel", "Stop a job.", job.JobCancelRequested),
    _request("hold", "Keep a job from running.", job.JobHoldRequested),
    _request("release", "Let a held job run again.", job.JobReleaseRequested),
    Channel(
        "operator_input",
        _address(subjects.operator_input("any-user", "any-kind")),
        INPUT,
        "send",
        "What operators decide about nodes.",
        messages.OPERATOR_INPUTS,
    ),
    Channel(
        "node_input",
        _address(subjects.node_input("any-node", "any-kind")),
        INPUT,
        "inside",
        "What agents and launchers report.",
        messages.NODE_INPUTS,
    ),
    Channel(
        "scheduler_input",
        _address(subjects.scheduler_input("any-kind")),
        INPUT,
        "inside",
        "What the leading scheduler tells its own core: time, settings, silent and lost nodes.",
        messages.SCHEDULER_INPUTS,
    ),
    Channel(
        "profile_input",
        _address(subjects.profile_input("any-kind")),
        INPUT,
        "inside",
        "Measured skews and the limit that tells jobs to be consolidated from the others.",
        messages.PROFILE_INPUTS,
    ),
    Channel(
        "leader",
        subjects.LEADER,
        DECISIONS,
        "inside",
        "Opens a term of a leading scheduler; fences the appends of older leaders.",
        (operator.LeaderRecord,),
    ),
    Channel(
        "commands",
        _address(subjects.command("any-node", "any-kind")),
        DECISIONS,
        "inside",
        "What the launcher of a node shall do.",
        messages.COMMANDS,
    ),
    Channel(
        "job_facts",
        _address(subjects.job_fact(JOB_ID, "any-kind")),
        DECISIONS,
        "read",
        "What happened to a job, in order.",
        messages.JOB_FACTS,
    ),
    Channel(
        "node_facts",
        _address(subjects.node_fact("any-node", "any-kind")),
        DECISIONS,
        "read",
        "What happened to a node, in order.",
        messages.NODE_FACTS,
    ),
    Channel(
        "heartbeat",
        _address(subjects.heartbeat("any-node")),
        CORE,
        "read",
        "A sign of life of each node, about every two seconds.",
        (node.Heartbeat,),
    ),
    Channel(
        "telemetry",
        _address(subjects.telemetry("any-node")),
        "telemetry stream, last value per node",
        "read",
        "GPU readings and progress of the runs on a node.",
        (node.Telemetry,),
    ),
    Channel(
        "logs",
        _address(subjects.control("any-node", "logs")),
        CORE,
        "send",
        "Read a task's output from its launcher.",
        (api.LogRead,),
        (api.LogChunk,),
    ),
    Channel(
        "inventory",
        subjects.INVENTORY,
        CORE,
        "inside",
        "Empty message of a new leader: every launcher reports its runs to the input log.",
        (),
    ),
    Channel(
        "explain",
        subjects.api("explain"),
        CORE,
        "send",
        "Ask why a job is where it is.",
        (api.ExplainRequest,),
        (views.Explanation, api.ApiError),
    ),
    Channel(
        "dead_letters",
        _address(subjects.dead_letter("any-kind")),
        "dead letters",
        "read",
        "Messages that could not be read, as they came.",
        (),
    ),
)
