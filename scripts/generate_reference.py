"""Write the generated pages of docs/reference, or with ``--check`` tell which are out of date."""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.reference import (
    asyncapi,
    cli_page,
    exit_codes_page,
    job_file_page,
    settings_page,
    states_page,
    wire_pages,
)

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
PAGES: Mapping[str, Callable[[], str]] = {
    "asyncapi.yaml": asyncapi.asyncapi_page,
    "cli.md": cli_page.cli_page,
    "events.md": wire_pages.events_page,
    "exit-codes.md": exit_codes_page.exit_codes_page,
    "job-file.md": job_file_page.job_file_page,
    "job-file.schema.json": job_file_page.job_file_schema,
    "settings.md": settings_page.settings_page,
    "states.md": states_page.states_page,
    "subjects.md": wire_pages.subjects_page,
}


def outdated() -> list[str]:
    """Names of the pages whose file differs from what the code says now."""
    return [
        name
        for name, make in PAGES.items()
        if not (FOLDER / name).is_file() or (FOLDER / name).read_text(encoding="utf-8") != make()
    ]


def main() -> int:
    """Write all pages; exit code 1 if ``--check`` found an outdated one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, only compare")
    only_check = parser.parse_args().check
    names = outdated()
    if only_check:
        print("\n".join(f"out of date: docs/reference/{name} (make docs)" for name in names))
        return 1 if names else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in names:
        (FOLDER / name).write_text(PAGES[name](), encoding="utf-8")
        print(f"wrote docs/reference/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
