"""How far the leader has come: the last input whose decisions are all stored."""

import asyncio


class Position:
    """A sequence of the input log that only grows, and can be waited for."""

    def __init__(self, seq: int) -> None:
        self._seq = seq
        self._grown = asyncio.Event()

    @property
    def seq(self) -> int:
        return self._seq

    def record(self, seq: int) -> None:
        """Note that all decisions up to input ``seq`` are stored."""
        self._seq = seq
        self._grown.set()

    async def reached(self, seq: int) -> None:
        """Return when the position is at ``seq`` or beyond."""
        while self._seq < seq:
            self._grown.clear()
            await self._grown.wait()
