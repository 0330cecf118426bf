"""Golden scripts: commands, a line of dashes, and the facts and commands that came out.

One script for each part of the rules. `--rewrite` records the outputs again; commit a changed
line only if the rule beside it says so.
"""

from pathlib import Path

import msgspec
import pytest

from tests.scenarios.interpreter import Interpreter

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))
DASHES = "----"


class Block(msgspec.Struct):
    """Comments and commands, and what they put out; a block of comments puts out nothing."""

    head: list[str]
    output: list[str]

    @property
    def commands(self) -> list[str]:
        return [line for line in self.head if not line.startswith("#")]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_puts_out_what_is_recorded(path: Path, request: pytest.FixtureRequest) -> None:
    recorded = path.read_text(encoding="utf-8")
    interpreter = Interpreter()
    blocks = parse(recorded)
    for block in blocks:
        if block.commands:
            block.output = interpreter.run(block.commands)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(render(blocks), encoding="utf-8")
    else:
        assert render(blocks) == recorded


def test_every_script_is_found() -> None:
    assert len(SCRIPTS) >= 20


def parse(text: str) -> list[Block]:
    """Blocks are parted by empty lines."""
    blocks = []
    for chunk in text.strip().split("\n\n"):
        lines = chunk.strip("\n").split("\n")
        dashes = lines.index(DASHES) if DASHES in lines else len(lines)
        blocks.append(Block(head=lines[:dashes], output=lines[dashes + 1 :]))
    return blocks


def render(blocks: list[Block]) -> str:
    chunks = [
        "\n".join([*block.head, DASHES, *block.output] if block.commands else block.head)
        for block in blocks
    ]
    return "\n\n".join(chunks) + "\n"
