"""What a launcher may say: numbers that can be, names that are names. Checked before anything of it is applied."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final

from fastapi import HTTPException

LARGEST: Final = 2**63 - 1
"""What a column over ranks can hold."""
SIGNED: Final = ("exit_code",)
LONG_TEXTS: Final = ("reason", "message", "detail", "error", "file", "function")
"""Fields that hold sentences and paths: they may be this many times longer than a name."""
LONGER: Final = 64
_names_of: Final[dict[type, tuple[str, ...]]] = {}
"""Of the shapes seen so far."""


def check(said: Any, where: str, longest: int) -> None:
    """Look through a shape of the control plane; names may have ``longest`` characters.

    Raises:
        HTTPException: 422, about the first value that cannot be.
    """
    kind = type(said)
    if kind is str and len(said) <= longest and said.isascii() and where != "node":
        return  # most of what is said, thousands of times a second
    if (named := _names_of.get(kind)) is None and is_dataclass(said):
        named = _names_of[kind] = tuple(each.name for each in fields(said))
    if named is not None:
        for name in named:
            check(getattr(said, name), name, longest)
    elif isinstance(said, Mapping):
        for name, value in said.items():
            check(name, f"a name in {where}", longest)
            check(value, f"{where} {name[:60]!r}", longest)
    elif isinstance(said, float):
        if not (math.isfinite(said) and said >= 0):
            raise HTTPException(422, f"{where} must be a finite number from 0 up, not {said}")
    elif isinstance(said, int):
        if abs(said) > LARGEST or (said < 0 and where not in SIGNED):
            raise HTTPException(422, f"{where} must be a whole number from 0 up that fits 64 bits, not {said}"[:200])
    elif isinstance(said, str):
        _check_text(said, where, longest)
    elif isinstance(said, Sequence):
        for each in said:
            check(each, where, longest)


def _check_text(said: str, where: str, longest: int) -> None:
    bound = LONGER * longest if where in LONG_TEXTS else longest
    if len(said) > bound:
        raise HTTPException(422, f"{where} has {len(said)} characters, the limit is {bound}")
    try:
        said.encode()
    except UnicodeEncodeError:
        raise HTTPException(422, f"{where} holds characters that are no text (a lone surrogate)") from None
    if where == "node" and not (said and said.isprintable()):
        raise HTTPException(422, "node must have 1 or more characters and no control characters")
