"""What the agent and its probe process say to each other: one JSON object a line.

The agent asks one question at a time on the probe's stdin; answers and unasked events come on its
stdout. After `Failed` the probe ends, since a broken driver library needs a fresh process.
"""

import msgspec

from node_agent.core.readings import GpuEvent, GpuReading, ProbedInventory


class AskInventory(msgspec.Struct, frozen=True, tag="ask_inventory"):
    """Start NVML and list the GPUs; the first question, asked once."""


class AskSample(msgspec.Struct, frozen=True, tag="ask_sample"):
    """Read every GPU once."""


class Inventory(msgspec.Struct, frozen=True, tag="inventory"):
    """NVML works; what it lists."""

    inventory: ProbedInventory


class Sample(msgspec.Struct, frozen=True, tag="sample"):
    """One reading a GPU that was in the inventory."""

    readings: tuple[GpuReading, ...]


class Event(msgspec.Struct, frozen=True, tag="event"):
    """Comes by itself, at any time after the inventory."""

    event: GpuEvent


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """NVML as a whole cannot be used; ``problem`` is fit for people."""

    problem: str


Question = AskInventory | AskSample
Answer = Inventory | Sample | Event | Failed

MAX_LINE_BYTES = 4 * 1024 * 1024
QUESTIONS = msgspec.json.Decoder(Question)
ANSWERS = msgspec.json.Decoder(Answer)
_ENCODER = msgspec.json.Encoder()


def line_of(message: Question | Answer) -> bytes:
    """Return a message as one line."""
    return _ENCODER.encode(message) + b"\n"
