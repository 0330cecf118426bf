"""events.md and subjects.md: every message, and where it travels."""

from enum import Enum

import msgspec

from broker.schemas.base import Message, Output, tag_of
from scripts import messages
from scripts.reference.channels import CHANNELS, PARAMETERS, Channel, kind_of
from scripts.reference.markdown import code, field_table, list_section, page, struct_section, table
from scripts.reference.structs import docstring_of, parts_of, summary_of

NONE: frozenset[str] = frozenset()
OUTPUT_FIELDS = frozenset(Output.__struct_fields__)
GROUPS: tuple[tuple[str, str, tuple[type[Message], ...]], ...] = (
    ("What users ask", "Subjects `jobs.*`, input log.", messages.USER_REQUESTS),
    ("What operators decide", "Subjects `in.operator.*`, input log.", messages.OPERATOR_INPUTS),
    ("What nodes report", "Subjects `in.node.*`, input log.", messages.NODE_INPUTS),
    ("What the leader appends", "Subjects `in.scheduler.*`, input log.", messages.SCHEDULER_INPUTS),
    ("What is measured", "Subjects `in.profile.*`, input log.", messages.PROFILE_INPUTS),
    ("Commands to launchers", "Subjects `cmd.*`, decision log.", messages.COMMANDS),
    ("Facts about jobs", "Subjects `evt.job.*`, decision log.", messages.JOB_FACTS),
    ("Facts about nodes", "Subjects `evt.node.*`, decision log.", messages.NODE_FACTS),
    ("Everything else", "See [subjects](subjects.md).", messages.OTHERS),
)
INTRODUCTION = (
    "All messages are JSON objects. A message of a log is told apart by its field `type`; a request"
    " to submit is the [job file](job-file.md) as JSON, without `type`. Times are milliseconds"
    " since the Unix epoch (`_at_ms`) or long (`_ms`), service is GPU-milliseconds (`_gpu_ms`)."
    " Readers ignore fields they do not know. Who a user is and which node speaks comes from the"
    " subject: a field `user` or `node` that says otherwise is overruled or refused."
)
OUTPUT_TEXT = (
    "Commands and facts also carry `cause_seq`, the sequence of the input that caused them,"
    " `index`, their place among the outputs of that input, and `at_ms`. The first two together"
    " are the id (`Nats-Msg-Id: <cause_seq>.<index>`), so publishing one twice changes nothing."
)


def events_page() -> str:
    """Every message type with its fields, then the parts and closed lists they use."""
    structs, lists = parts_of([*messages.MESSAGES, *messages.DOCUMENTS])
    return page(
        "Messages",
        INTRODUCTION,
        OUTPUT_TEXT,
        *(_group(title, text, group) for title, text, group in GROUPS),
        "## Documents\n\nWhat travels or is stored without being part of a log.",
        *(struct_section(struct) for struct in messages.DOCUMENTS),
        "## Parts",
        *(struct_section(part) for part in structs),
        "## Closed lists",
        *(_list_section(part) for part in lists),
    )


def subjects_page() -> str:
    """One table of all subjects, then what travels on those with several messages."""
    rows = [
        (
            code(channel.address),
            channel.carried_by,
            DIRECTIONS[channel.direction],
            _payload(channel),
            channel.text,
        )
        for channel in CHANNELS
    ]
    return page(
        "Subjects",
        "Everything Tiresias says travels on these NATS subjects. `nats sub 'tiresias.>'` shows it"
        " all. Tokens in braces vary:",
        table(("token", "meaning"), [(code(f"{{{k}}}"), v) for k, v in PARAMETERS.items()]),
        table(("subject", "carried by", "clients", "message", "meaning"), rows),
        "## Kinds",
        *(_kinds(channel) for channel in CHANNELS if channel.address.endswith("{kind}")),
    )


DIRECTIONS = {"send": "send", "read": "read", "inside": "services only"}


def _group(title: str, text: str, group: tuple[type[Message], ...]) -> str:
    return "\n\n".join([f"## {title}", text, *(_message(message) for message in group)])


def _message(message: type[Message]) -> str:
    fields = field_table(message, leave_out=OUTPUT_FIELDS if issubclass(message, Output) else NONE)
    heading = f"### {message.__name__}"
    return "\n\n".join([heading, f"`{tag_of(message)}`: {docstring_of(message)}", fields])


def _list_section(part: type) -> str:
    assert issubclass(part, Enum)
    return list_section(part)


def _payload(channel: Channel) -> str:
    if channel.address.endswith("{kind}") and channel.messages:
        return "[by kind](#kinds)"
    asked = ", ".join(_link(message) for message in channel.messages) or "any"
    answers = " or ".join(_link(message) for message in channel.reply)
    return f"{asked}; answer {answers}" if answers else asked


def _kinds(channel: Channel) -> str:
    kinds = [
        (code(kind_of(message)), _link(message), summary_of(message))
        for message in channel.messages
        if issubclass(message, Message)
    ]
    return f"### `{channel.address}`\n\n" + (
        table(("kind", "message", "meaning"), kinds)
        if kinds
        else "The kind names the source of the message."
    )


def _link(message: type[msgspec.Struct]) -> str:
    return f"[{message.__name__}](events.md#{message.__name__.lower()})"
