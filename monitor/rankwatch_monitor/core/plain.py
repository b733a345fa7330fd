"""Records as decoded JSON has them: objects of their fields, and lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, cast

T = TypeVar("T")


def plain(value: Any, *, sparse: bool = False) -> Any:
    """A value as decoded JSON has it; ``sparse``: without the fields of records that have their default."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {name: plain(each, sparse=sparse) for name, each in value.items()}
    kind: Any = type(value)
    if (defaults := _defaults(kind)) is None:
        return [plain(each, sparse=sparse) for each in value]
    given = ((name, getattr(value, name), default) for name, default in defaults.items())
    return {name: plain(each, sparse=sparse) for name, each, default in given if not sparse or each != default}


@cache
def _defaults(kind: Any) -> Mapping[str, Any] | None:
    """The fields of a record with their defaults, :data:`MISSING` for one without; None: it is no record."""
    if is_dataclass(kind):
        return {
            each.name: each.default if each.default_factory is MISSING else each.default_factory()
            for each in fields(kind)
        }
    names = getattr(kind, "_fields", None)
    return None if names is None else {name: kind._field_defaults.get(name, MISSING) for name in names}


def named(record: object, names: Iterable[str]) -> dict[str, Any]:
    """These fields and properties of a record."""
    return {name: plain(getattr(record, name)) for name in names}


def copied(shape: type[T], record: object) -> T:
    """The fields of a response that a record has under the same names; ``shape``: a typed dictionary."""
    found = (name for name in shape.__annotations__ if getattr(record, name, MISSING) is not MISSING)
    return cast("T", named(record, found))
