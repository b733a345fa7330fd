"""Records as decoded JSON has them: objects of their fields, and lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, cast

T = TypeVar("T")


def plain(value: Any) -> Any:
    """A value as decoded JSON has it."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if is_dataclass(value):
        return named(value, (each.name for each in fields(value)))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return named(value, value._fields)
    return [plain(each) for each in value]


def named(record: object, names: Iterable[str]) -> dict[str, Any]:
    """These fields and properties of a record."""
    return {name: plain(getattr(record, name)) for name in names}


def copied(shape: type[T], record: object) -> T:
    """The fields of a response that a record has under the same names; ``shape``: a typed dictionary."""
    found = (name for name in shape.__annotations__ if getattr(record, name, MISSING) is not MISSING)
    return cast("T", named(record, found))
