"""settings.md: everything that can be set, and where."""

import msgspec

from broker.schemas.operator import Settings
from scheduler_svc.config import Options
from scripts.reference.markdown import field_table, page
from scripts.reference.structs import docstring_of


def settings_page() -> str:
    """The settings of decisions, then those of each service."""
    return page(
        "Settings",
        "## Decisions",
        docstring_of(Settings),
        field_table(Settings),
        *(_section(title, struct) for title, struct in SERVICES),
    )


SERVICES: tuple[tuple[str, type[msgspec.Struct]], ...] = (("Scheduling options", Options),)


def _section(title: str, struct: type[msgspec.Struct]) -> str:
    return "\n\n".join([f"## {title}", docstring_of(struct), field_table(struct)])
