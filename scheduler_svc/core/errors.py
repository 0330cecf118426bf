"""Errors of the scheduler core. Both mean a defect of ours: the service stops and recovers."""

from broker.errors import TiresiasError


class InvalidTransition(TiresiasError):  # noqa: N818 (named like the state machines' own)
    """A state machine was asked for a step its table does not have."""

    def __init__(self, what: str, state: str, event: str, story: tuple[str, ...] = ()) -> None:
        super().__init__(
            f"{what} in state {state!r} cannot take {event!r}; story: {' | '.join(story) or 'none'}"
        )
        self.what = what
        self.state = state
        self.event = event


class InvariantError(TiresiasError):
    """A rule that always holds does not hold."""
