"""Answers ``api.explain``: why a job is where it is, by the leading core."""

from broker import codec, subjects
from broker.bus import Bus, BusMessage, Subscription
from broker.clock import Clock
from broker.errors import CodecError
from broker.schemas.api import ApiError, ExplainRequest
from broker.schemas.views import Explanation
from scheduler_svc.fold import Core

SUBJECT = subjects.api("explain")


class Explainer:
    """One responder; a request that cannot be answered gets an `ApiError`."""

    def __init__(self, bus: Bus, clock: Clock, core: Core) -> None:
        self._bus = bus
        self._clock = clock
        self._core = core

    async def listen(self) -> Subscription:
        """Start to answer."""
        return await self._bus.subscribe(SUBJECT, self._respond)

    async def _respond(self, message: BusMessage) -> None:
        await self._bus.respond(message, codec.encode(self._answer(message.data)))

    def _answer(self, data: bytes) -> Explanation | ApiError:
        try:
            request = codec.decode(ExplainRequest, data, SUBJECT)
        except CodecError as error:
            return ApiError(message=str(error))
        explanation = self._core.explain(request.job_id, self._clock.now_ms())
        if explanation is None:
            return ApiError(message=f"job {request.job_id} is not active: unknown, or it has ended")
        return explanation
