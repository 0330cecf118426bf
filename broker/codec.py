"""Bytes to structs and back: JSON on the wire, read by subject, strict about who says what.

Who a user is and which node speaks comes from the subject, which NATS permissions guard, never
from the payload.
"""

from functools import cache
from typing import Any, TypeVar

import msgspec

from broker import subjects
from broker.errors import CodecError
from broker.job_file import limit_problems, problems_of
from broker.schemas.base import Input, Message
from broker.schemas.command import AnyCommand
from broker.schemas.fact import AnyFact
from broker.schemas.job import (
    JobCancelRequested,
    JobHoldRequested,
    JobRefused,
    JobReleaseRequested,
    JobSpec,
    JobSubmitted,
)
from broker.schemas.node import (
    GpuHealthChanged,
    NodeCordonRequested,
    NodeHeard,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeSilent,
    NodeUncordonRequested,
)
from broker.schemas.operator import ClockAdvanced, PackLimitChanged, SettingsChanged, SkewMeasured
from broker.schemas.run import (
    InventoryReported,
    LauncherLeft,
    RunCheckpointed,
    RunExited,
    RunPrepared,
    RunPrepareRefused,
    RunResumed,
    RunStarted,
    TensorsObserved,
)

T = TypeVar("T", bound=msgspec.Struct)
M = TypeVar("M", bound=Message)
NodeInput = (
    NodeJoined
    | NodeLeft
    | GpuHealthChanged
    | RunPrepared
    | RunPrepareRefused
    | RunStarted
    | RunExited
    | RunCheckpointed
    | RunResumed
    | InventoryReported
    | LauncherLeft
    | TensorsObserved
)
JobRequest = JobCancelRequested | JobHoldRequested | JobReleaseRequested
OperatorInput = NodeCordonRequested | NodeUncordonRequested
SchedulerInput = ClockAdvanced | SettingsChanged | NodeSilent | NodeHeard | NodeLost
ProfileInput = SkewMeasured | PackLimitChanged

_INPUT_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    "node": msgspec.json.Decoder(NodeInput),
    "operator": msgspec.json.Decoder(OperatorInput),
    "scheduler": msgspec.json.Decoder(SchedulerInput),
    "profile": msgspec.json.Decoder(ProfileInput),
}
_JOB_REQUESTS: dict[str, msgspec.json.Decoder[Any]] = {
    "cancel": msgspec.json.Decoder(JobCancelRequested),
    "hold": msgspec.json.Decoder(JobHoldRequested),
    "release": msgspec.json.Decoder(JobReleaseRequested),
}
_SPEC_DECODER = msgspec.json.Decoder(JobSpec)
_OUTPUT_DECODER = msgspec.json.Decoder(AnyCommand | AnyFact)
_ENCODER = msgspec.json.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """Return the JSON of a message."""
    return _ENCODER.encode(message)


@cache
def _decoder(message_type: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(message_type)


def decode(message_type: type[T], data: bytes, subject: str = "") -> T:
    """Read one struct, or raise `CodecError` naming ``subject`` and the place in the payload."""
    try:
        message: T = _decoder(message_type).decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CodecError(subject, str(error)) from error
    return message


def decode_input(subject: str, data: bytes) -> Input:
    """Read a message of the input log.

    An unreadable job request becomes a `JobRefused`, so that its user learns why; anything else
    unreadable, or claiming to be somebody else's, raises `CodecError`.
    """
    tokens = subjects.tokens_after_prefix(subject)
    match tokens:
        case ["jobs", user, "submit"]:
            return decode_job_request(user, data)
        case ["jobs", user, verb] if verb in _JOB_REQUESTS:
            request: JobRequest = _decode_with(_JOB_REQUESTS[verb], subject, data)
            return _stamped_user(request, user)
        case ["in", "node", node, _]:
            report: NodeInput = _decode_with(_INPUT_DECODERS["node"], subject, data)
            if report.node != node:
                raise CodecError(subject, f"speaks for node {report.node!r}")
            return report
        case ["in", "operator", user, _]:
            wish: OperatorInput = _decode_with(_INPUT_DECODERS["operator"], subject, data)
            return _stamped_user(wish, user)
        case ["in", ("scheduler" | "profile") as source, _]:
            message: Input = _decode_with(_INPUT_DECODERS[source], subject, data)
            return message
    raise CodecError(subject, "no such input subject")


def decode_output(subject: str, data: bytes) -> AnyCommand | AnyFact:
    """Read a command or a fact of the decision log."""
    output: AnyCommand | AnyFact = _decode_with(_OUTPUT_DECODER, subject, data)
    return output


def decode_job_request(user: str, data: bytes) -> JobSubmitted | JobRefused:
    """Read the JSON of a submit request; all problems are listed, not only the first."""
    try:
        spec = _SPEC_DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        name, problems = problems_of(data, str(error))
        return JobRefused(user=user, name=name, problems=problems)
    if problems := limit_problems(spec):
        return JobRefused(user=user, name=spec.name, problems=problems)
    return JobSubmitted(user=user, spec=spec)


def _decode_with(decoder: msgspec.json.Decoder[Any], subject: str, data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError(subject, str(error)) from error


def _stamped_user(message: M, user: str) -> M:
    return msgspec.structs.replace(message, user=user)
