"""What all messages share.

Tags are stable dotted names, never class names. New fields need defaults; fields are never
retyped. Readers ignore fields they do not know, so old and new versions run side by side.
"""

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of every tagged message on the wire; JSON, told apart by ``type``."""


class Input(Message, frozen=True, kw_only=True):
    """A message of the input log: the scheduler's only input. Its time is the log's timestamp."""


class Output(Message, frozen=True, kw_only=True):
    """A message of the decision log.

    ``cause_seq`` is the sequence of the input that caused it and ``index`` its place among the
    outputs of that input: together its id, so that publishing it twice changes nothing.
    """

    cause_seq: int = 0
    index: int = 0
    at_ms: int = 0

    @property
    def output_id(self) -> str:
        """The message id (``Nats-Msg-Id``) of this output."""
        return f"{self.cause_seq}.{self.index}"


def tag_of(message_type: type[Message]) -> str:
    """Return the wire tag of a message class."""
    tag = message_type.__struct_config__.tag
    assert isinstance(tag, str), message_type
    return tag
