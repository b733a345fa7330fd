"""Validates what launchers report: numbers in range, names that are text. Called before any of it is applied."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final

from fastapi import HTTPException

LARGEST: Final = 2**63 - 1
"""The largest value of a column over ranks."""
SIGNED: Final = ("exit_code",)
LONG_TEXTS: Final = ("reason", "message", "detail", "error", "file", "function")
"""Fields with sentences and paths, which may be longer than names."""
LONGER: Final = 64
"""By this factor."""
_names_of: Final[dict[type, tuple[str, ...]]] = {}
"""Field names of dataclasses, cached."""


def check(value: Any, where: str, longest: int) -> None:
    """Check a message, or a value in it; names may have ``longest`` characters.

    Raises:
        HTTPException: 422, the first invalid value.
    """
    kind = type(value)
    if kind is str and len(value) <= longest and value.isascii() and where != "node":
        return  # most values, thousands of times a second
    if (named := _names_of.get(kind)) is None and is_dataclass(value):
        named = _names_of[kind] = tuple(each.name for each in fields(value))
    if named is not None:
        for name in named:
            check(getattr(value, name), name, longest)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            check(name, f"a name in {where}", longest)
            check(item, f"{where} {name[:60]!r}", longest)
    elif isinstance(value, float):
        if not (math.isfinite(value) and value >= 0):
            raise HTTPException(422, f"{where} must be a finite number from 0 up, not {value}")
    elif isinstance(value, int):
        if abs(value) > LARGEST or (value < 0 and where not in SIGNED):
            raise HTTPException(422, f"{where} must be a whole number from 0 up that fits 64 bits, not {value}"[:200])
    elif isinstance(value, str):
        _check_text(value, where, longest)
    elif isinstance(value, Sequence):
        for each in value:
            check(each, where, longest)


def _check_text(value: str, where: str, longest: int) -> None:
    bound = LONGER * longest if where in LONG_TEXTS else longest
    if len(value) > bound:
        raise HTTPException(422, f"{where} has {len(value)} characters, the limit is {bound}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise HTTPException(422, f"{where} contains a lone surrogate, which is not text") from None
    if where == "node" and not (value and value.isprintable()):
        raise HTTPException(422, "node must not be empty or contain control characters")
