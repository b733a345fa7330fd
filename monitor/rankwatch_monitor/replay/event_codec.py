"""Encodes and decodes the core's events as JSON by their type hints: new fields are recorded automatically.

Fields with their default value are omitted. When decoding, a value of the wrong type is an error that names the field;
unknown fields, written by a newer version, are ignored.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

Reader = Callable[[Any], Any]
_REQUIRED: Final = object()


def to_json(value: Any) -> Any:
    """Encode a value: dataclasses and named tuples become objects without the fields that have their default."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {name: to_json(each) for name, each in value.items()}
    kind: Any = type(value)
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        given = ((name, getattr(value, name), default) for name, default in _defaults(kind))
        return {name: to_json(each) for name, each, default in given if each != default}
    return [to_json(each) for each in value]


def read(kind: Any, value: Any) -> Any:
    """Decode a dataclass or named tuple from parsed JSON.

    Raises:
        ValueError: a field is missing or has the wrong type; the message names it.
    """
    return _reader(kind)(value)


@cache
def _defaults(kind: Any) -> tuple[tuple[str, Any], ...]:
    """The fields of a type with their defaults; :data:`_REQUIRED` for a field without one."""
    if not is_dataclass(kind):
        known: Mapping[str, Any] = getattr(kind, "_field_defaults", {})
        return tuple((name, known.get(name, _REQUIRED)) for name in kind._fields)
    return tuple(
        (f.name, f.default_factory() if f.default_factory is not MISSING else _REQUIRED)
        if f.default is MISSING
        else (f.name, f.default)
        for f in fields(kind)
    )


@cache
def _reader(hint: Any) -> Reader:
    if hint is Any:
        return lambda value: value
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _optional(hint)
    if origin is tuple:
        return _items(_reader(get_args(hint)[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _values(_reader(get_args(hint)[1]))
    if not isinstance(hint, type):
        raise TypeError(f"an event holds {hint!r}, which cannot be recorded")
    if is_dataclass(hint) or hasattr(hint, "_fields"):
        return _fields(hint)
    if issubclass(hint, StrEnum):
        return hint
    return _scalar(hint)


def _optional(hint: Any) -> Reader:
    (inner,) = (each for each in get_args(hint) if each is not type(None))
    of_inner = _reader(inner)
    return lambda value: None if value is None else of_inner(value)


def _scalar(kind: type) -> Reader:
    allowed = (int, float) if kind is float else (kind,)

    def scalar(value: Any) -> Any:
        if type(value) not in allowed:
            raise ValueError(f"{value!r:.60} is no {kind.__name__}")
        return value

    return scalar


def _items(item: Reader) -> Reader:
    def items(value: Any) -> Any:
        if not isinstance(value, list):
            raise ValueError(f"{value!r:.60} is no list")
        return tuple(map(item, value))

    return items


def _values(of_one: Reader) -> Reader:
    def values(value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValueError(f"{value!r:.60} is no object")
        return {name: of_one(each) for name, each in value.items()}

    return values


def _fields(kind: Any) -> Reader:
    readers = {name: _reader(hint) for name, hint in get_type_hints(kind).items()}
    needed = {name for name, default in _defaults(kind) if default is _REQUIRED}

    def build(value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValueError(f"{value!r:.60} is no object")
        if missing := needed - value.keys():
            raise ValueError(f"{kind.__name__} lacks {', '.join(sorted(missing))}")
        found: dict[str, Any] = {}
        for name, each in value.items():
            if (reader := readers.get(name)) is not None:
                try:
                    found[name] = reader(each)
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None
        return kind(**found)

    return build
