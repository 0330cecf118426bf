"""Store a sample of each message type that has none yet, for the compatibility test.

A stored sample is what some released version sent. It is never rewritten: if it no longer decodes,
the change that broke it is wrong. New fields therefore need no new sample, new messages do.
"""

import json
from pathlib import Path

from scripts.messages import DOCUMENTS, MESSAGES, wire_name
from scripts.samples import sample_of

FOLDER = Path(__file__).parents[1] / "tests" / "compat" / "messages"


def main() -> None:
    """Write the missing files and name them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for struct in (*MESSAGES, *DOCUMENTS):
        path = FOLDER / f"{wire_name(struct)}.json"
        if not path.exists():
            path.write_text(json.dumps(sample_of(struct), indent=2) + "\n", encoding="utf-8")
            print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
