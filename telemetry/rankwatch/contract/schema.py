"""One schema of settings: a field with its kind, default, unit and meaning, from which all else is derived.

A *kind* says what values a setting has: it parses their text (flags, variables, files) and checks their JSON, with one
wording for what is wrong. The launcher's flags, the ``RANKWATCH_*`` variables, ``PATCH`` of the policy and the tables
of ``docs/reference.md`` are made from the fields.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from rankwatch.contract.env import parse_bool
from rankwatch.contract.text import did_you_mean

MAX_TIMEOUT: Final = 30 * 86_400.0
"""A longer limit is rejected as a mistake in the unit (for example milliseconds)."""
OFF: Final = ("none", "off")
"""Text that switches a limit off."""
MORE_THAN_0: Final = math.ulp(0.0)


class WrongValueError(ValueError):
    """A value is not valid, and the text states why in words of its own."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What values a setting has."""

    words: str
    """What is valid; follows "must be"."""
    take: Callable[[Any], Any]
    """Return the value for one of JSON; raises ValueError, TypeError or OverflowError."""
    parse: Callable[[str], Any] = str
    """Return what :attr:`take` is given for a text."""
    metavar: str = "TEXT"
    unit: str = ""
    choices: tuple[str, ...] = ()
    secret: bool = False
    """Values are not shown in errors."""

    def read(self, value: Any) -> Any:
        """Check a value.

        Raises:
            ValueError: it is not valid; the text begins with "must be".
        """
        try:
            return self.take(value)
        except WrongValueError:
            raise
        except (TypeError, ValueError, OverflowError):
            close = did_you_mean(str(value), self.choices) if self.choices else ""
            raise ValueError(f"must be {self.words}{'' if self.secret else f', not {value!r}{close}'}") from None

    def read_text(self, text: str) -> Any:
        """Check the text of a value.

        Raises:
            ValueError: it is not valid.
        """
        return self.read(self.parse(text))


def setting(default: Any, kind: Kind, meaning: str, unit: str = "", *, env: tuple[str, ...] = ()) -> Any:
    """A field of a dataclass; ``env``: its variables, in the order in which they count."""
    make: dict[str, Any] = {"default_factory": dict} if default == {} else {"default": default}
    metadata = {"kind": kind, "unit": unit or kind.unit, "meaning": meaning, "environment": env}
    return field(metadata=metadata, **make)


def kinds(of: type[Any]) -> dict[str, Kind]:
    """The kind of each setting of a dataclass, by name."""
    return {each.name: each.metadata["kind"] for each in fields(of) if each.metadata}


# Kinds ----------------------------------------------------------------------------------------------------------------


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _bool_or_text(text: str) -> Any:
    try:
        return parse_bool(text)
    except ValueError:
        return text


def _url(value: Any) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError
    return str(value).rstrip("/")


def _pairs(value: Any) -> dict[str, str]:
    pairs = [part.partition("=") for part in value.split(",") if part.strip()]
    if not all(mark and name.strip() for name, mark, _ in pairs):
        raise ValueError
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs}


SWITCH: Final = Kind("true or false", _switch, _bool_or_text)
TEXT: Final = Kind("text", str)
URL: Final = Kind("an http:// or https:// address", _url, metavar="URL")
PAIRS: Final = Kind("written NAME=VALUE,NAME=VALUE", _pairs, secret=True)


def text(metavar: str) -> Kind:
    """Any text."""
    return Kind("text", str, metavar=metavar)


def whole(low: int, high: int, metavar: str = "N") -> Kind:
    """A whole number from ``low`` to ``high``."""

    def take(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError
        return value

    def parse(text: str) -> Any:
        return int(text) if text.isascii() and text.removeprefix("-").isdigit() else text

    return Kind(f"a whole number from {low} to {high}", take, parse, metavar)


def number(low: float, high: float, words: str, metavar: str = "N", unit: str = "") -> Kind:
    """A finite number from ``low`` to ``high``."""

    def take(value: Any) -> float:
        if value is None and unit == "s":
            raise WrongValueError("cannot be switched off; give seconds")
        if isinstance(value, bool) or not low <= (found := float(value)) <= high:
            raise ValueError
        return found

    def parse(text: str) -> Any:
        return None if unit == "s" and text.lower() in OFF else text

    return Kind(words, take, parse, metavar, unit)


def seconds(low: float = MORE_THAN_0, high: float = MAX_TIMEOUT) -> Kind:
    """Seconds from ``low`` to ``high``."""
    least = "above 0 and up to" if low == MORE_THAN_0 else f"from {low:g} to"
    words = f"a number of seconds {least} {high:.0f}"
    return number(low, high, words, "SECONDS", "s")


def choice(of: type[StrEnum] | tuple[str, ...], metavar: str = "") -> Kind:
    """One of some words."""
    words = tuple(map(str, of))

    def take(value: Any) -> Any:
        if isinstance(of, type):
            return of(value)
        if value not in of:
            raise ValueError
        return value

    return Kind(f"one of {', '.join(words)}", take, str.lower, metavar or f"{{{','.join(words)}}}", "", words)


SECONDS: Final = seconds()


def _limit(value: Any) -> float | None:
    return None if value is None else SECONDS.take(value)


LIMIT: Final = Kind(SECONDS.words, _limit, SECONDS.parse, SECONDS.metavar, SECONDS.unit)
"""Seconds, or None: no limit."""


def timeout(what: str, value: Any) -> float:
    """Return ``value`` as seconds.

    Raises:
        ValueError: it is none; the text states what ``what`` must be.
    """
    if value is None:
        raise ValueError(f"{what} must be {SECONDS.words}, not None")
    try:
        return float(SECONDS.read(value))
    except ValueError as error:
        raise ValueError(f"{what} {error}") from None


def section_limits(value: Any) -> dict[str, float | None]:
    """Check limits by section; None: none.

    Raises:
        ValueError: they are no mapping of names to seconds.
    """
    if not isinstance(value, Mapping):
        raise WrongValueError(f"must map section names to seconds, not {value!r}")
    limits: dict[str, float | None] = {}
    for section, given in value.items():
        if not isinstance(section, str) or not 0 < _bytes(section) <= MAX_SECTION_NAME:
            words = f"a section's name must be 1 to {MAX_SECTION_NAME} bytes of text, not {section!r}"
            raise WrongValueError(f"are wrong: {words}")
        try:
            limits[section] = None if given is None else timeout(f"the timeout of section {section!r}", given)
        except ValueError as error:
            raise WrongValueError(f"are wrong: {error}") from None
    return limits


MAX_SECTION_NAME: Final = 63
"""Bytes of a section's name that fit into its slot."""


def _bytes(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return 0


def parse_section_timeouts(text: str) -> dict[str, float]:
    """Read ``step=10,checkpointing=420`` (or with ``:`` for ``=``, as NVRx writes it).

    Raises:
        ValueError: a part is not NAME=SECONDS.
    """
    limits: dict[str, float] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, mark, given = part.replace(":", "=").partition("=")
        if not mark or not name.strip():
            raise ValueError(f"section timeouts are written NAME=SECONDS, for example step=180; {part!r} is not")
        limits[name.strip()] = timeout(f"the timeout of section {name.strip()!r}", given.strip())
    return limits


SECTIONS: Final = Kind("limits by section", section_limits, parse_section_timeouts, "NAME=SECONDS", "s")
