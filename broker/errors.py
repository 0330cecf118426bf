"""The root of every error Tiresias raises, and the errors of the wire.

Messages start in lower case and name the thing, the value seen, and the limit or the remedy.
"""


class TiresiasError(Exception):
    """Root of all errors raised on purpose; its text is fit to show to a user."""


class CodecError(TiresiasError):
    """A message from outside cannot be read; it goes to the dead letters, nothing stops."""

    def __init__(self, subject: str, problem: str) -> None:
        super().__init__(f"cannot read message on {subject!r}: {problem}")
        self.subject = subject
        self.problem = problem


class BusError(TiresiasError):
    """The bus could not do what was asked."""


class BusUnavailableError(BusError):
    """No answer in time. What was sent may or may not have been stored: retry with its id."""


class NoRespondersError(BusError):
    """Nobody listens on the subject of a request."""

    def __init__(self, subject: str) -> None:
        super().__init__(f"nobody answers on {subject!r}: is the service running?")
        self.subject = subject


class FencedError(BusError):
    """A newer leader exists, so this append was refused; the caller must step down."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"append refused: epoch {epoch} is no longer the newest leader")
        self.epoch = epoch


class WrongRevisionError(BusError):
    """A compare-and-set lost the race: the key's revision is not the expected one."""

    def __init__(self, key: str, expected: int) -> None:
        super().__init__(f"key {key!r} is no longer at revision {expected}")
        self.key = key
        self.expected = expected


class TopologyError(BusError):
    """A stream or bucket on the server differs from ours in a way that cannot be updated."""


class EmbeddedServerError(TiresiasError):
    """The embedded nats-server cannot be found, is too old, or did not start."""
