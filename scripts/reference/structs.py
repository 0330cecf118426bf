"""What a struct says about itself: fields, types in plain words, defaults, explanations.

Explanations come from ``Meta(description=...)`` or from the string below a field, so that the
code is the only place where they are written.
"""

import ast
import inspect as python_inspect
import textwrap
from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

_PLAIN_TYPES = {
    "StrType": "text",
    "BoolType": "true or false",
    "BytesType": "base64 text",
    "NoneType": "null",
}


class FieldText(NamedTuple):
    """One field, ready to print. ``default`` is empty for a field that must be given."""

    name: str
    type: str
    default: str
    text: str


def fields_of(struct: type[msgspec.Struct]) -> list[FieldText]:
    """Describe the fields in their order on the wire."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    below = _texts_below(struct)
    return [
        FieldText(
            field.encode_name,
            type_text(field.type),
            "" if field.required else default_text(field),
            _described(field.type) or below.get(field.name, ""),
        )
        for field in info.fields
    ]


def docstring_of(thing: type) -> str:
    """The docstring as Markdown, each paragraph on one line."""
    text = python_inspect.cleandoc(thing.__doc__ or "").replace("``", "`")
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def summary_of(thing: type) -> str:
    """The first sentence of the docstring."""
    return docstring_of(thing).split("\n\n")[0].split(". ")[0].removesuffix(".") + "."


def members_of(closed_list: type[Enum]) -> list[tuple[str, str]]:
    """Value and explanation of each member of an enumeration."""
    below = _texts_below(closed_list)
    return [(str(member.value), below.get(member.name, "")) for member in closed_list]


def parts_of(structs: list[type[msgspec.Struct]]) -> tuple[list[type[msgspec.Struct]], list[type]]:
    """Structs and enumerations that the fields of ``structs`` use, at any depth, by name."""
    found: dict[str, type] = {}
    for struct in structs:
        _collect(inspect.type_info(struct), found)
    others = [part for part in found.values() if part not in structs]
    inner = [part for part in others if issubclass(part, msgspec.Struct)]
    lists = [part for part in others if issubclass(part, Enum)]
    return sorted(inner, key=lambda part: part.__name__), sorted(lists, key=lambda p: p.__name__)


def default_text(field: inspect.Field) -> str:
    """The default as JSON, shortened where it is a large object."""
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    text = msgspec.json.encode(value).decode()
    return "{…}" if isinstance(value, msgspec.Struct) else text


def type_text(info: Any) -> str:
    """Name a type as a reader of JSON would."""
    match info:
        case inspect.Metadata():
            return type_text(info.type)
        case inspect.UnionType():
            return " or ".join(type_text(choice) for choice in info.types)
        case inspect.StructType() | inspect.EnumType():
            return f"[{info.cls.__name__}](#{info.cls.__name__.lower()})"
        case inspect.LiteralType():
            return " or ".join(f"`{msgspec.json.encode(v).decode()}`" for v in info.values)
        case inspect.VarTupleType() | inspect.ListType():
            return f"list of {type_text(info.item_type)}"
        case inspect.DictType():
            return f"map of {type_text(info.key_type)} to {type_text(info.value_type)}"
        case inspect.IntType():
            return f"integer{_range_text(info)}"
        case inspect.FloatType():
            return f"number{_range_text(info)}"
    return _PLAIN_TYPES[type(info).__name__]


def _range_text(info: Any) -> str:
    if info.ge is not None and info.le is not None:
        return f" {info.ge} to {info.le}"
    if info.ge is not None:
        return f" ≥ {info.ge}"
    return "" if info.gt is None else f" > {info.gt}"


def _described(info: Any) -> str:
    extra = info.extra_json_schema if isinstance(info, inspect.Metadata) else None
    return str(extra["description"]) if extra and "description" in extra else ""


@cache
def _texts_below(cls: type) -> dict[str, str]:
    """Strings written below the assignments of a class body, its bases' included."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.partition(".")[0] in {"builtins", "enum", "msgspec"}:
            continue
        source = ast.parse(textwrap.dedent(python_inspect.getsource(base)))
        texts.update(_pairs(source.body[0]))
    return texts


def _pairs(body: Any) -> Iterator[tuple[str, str]]:
    for assignment, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(assignment, ast.Assign):
            target: ast.expr = assignment.targets[0]
        elif isinstance(assignment, ast.AnnAssign):
            target = assignment.target
        else:
            continue
        if (
            isinstance(target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            yield target.id, " ".join(str(below.value.value).replace("``", "`").split())


def _collect(info: Any, found: dict[str, type]) -> None:
    match info:
        case inspect.Metadata():
            _collect(info.type, found)
        case inspect.UnionType():
            for choice in info.types:
                _collect(choice, found)
        case inspect.StructType():
            if info.cls.__name__ not in found:
                found[info.cls.__name__] = info.cls
                for field in info.fields:
                    _collect(field.type, found)
        case inspect.EnumType():
            found[info.cls.__name__] = info.cls
        case inspect.VarTupleType() | inspect.ListType():
            _collect(info.item_type, found)
        case inspect.DictType():
            _collect(info.key_type, found)
            _collect(info.value_type, found)
