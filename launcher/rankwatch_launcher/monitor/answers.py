"""Reads what the monitor answers. Nothing of it is trusted: whatever it holds, a value of the right kind or ValueError.

A monitor may be of another version or broken, or another program may listen at its address; the job goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from rankwatch.contract.messages import Directive, read
from rankwatch.contract.rank_output import LogRequest
from rankwatch.contract.text import decoded

LARGEST_ANSWER: Final = 8 << 20
"""Bytes of one answer: settings have as many as slots hold, and directives are few."""
_LARGEST: Final = 2**62
_DEEPEST: Final = 16
"""Levels of settings within each other; those of a monitor have five."""
_LONGEST: Final = 7 * 86_400.0
"""Seconds that a directive may state."""


class LauncherSettings(NamedTuple):
    """Limits that launchers enforce themselves; None: not stated, or nothing that could be one."""

    max_restarts: int | None = None
    max_no_progress: int | None = None
    silence_timeout: float | None = None

    @classmethod
    def of(cls, settings: object) -> LauncherSettings:
        """Those of a mapping; nothing is raised."""
        given: Mapping[str, Any] = settings if isinstance(settings, Mapping) else {}
        values: list[Any] = [given.get(name) for name in cls._fields]
        restarts, no_progress, silence = values
        return cls(
            restarts if _is_whole(restarts) else None,
            no_progress if _is_whole(no_progress) else None,
            float(silence) if _is_seconds(silence) and silence > 0 else None,
        )


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object of an answer.

    Raises:
        ValueError: it is none.
    """
    found = decoded(body)
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found


def detail(body: bytes) -> str:
    """The detail of a problem document; empty if there is none."""
    try:
        found = read_object(body).get("detail")
    except ValueError:
        return ""
    return found if isinstance(found, str) else ""


def items(answer: Mapping[str, Any], name: str) -> list[Any]:
    """A list of an answer; empty if it has none."""
    found = answer.get(name)
    return found if isinstance(found, list) else []


def whole(answer: Mapping[str, Any], name: str) -> int:
    """A whole number of an answer; 0 if it has none."""
    found: Any = answer.get(name)
    return int(found) if _is_whole(found) else 0


def settings_of(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of an answer; none where they are no object, or nested too deeply to be passed on."""
    found = answer.get("settings")
    return found if isinstance(found, Mapping) and _depth(found) <= _DEEPEST else {}


def read_directive(item: object) -> Directive:
    """Decode a directive.

    Raises:
        ValueError: it lacks a field, or one has a value of another kind.
    """
    directive = read(Directive, item)
    for name, is_right in _FIELDS.items():
        if not is_right(getattr(directive, name)):
            raise ValueError(f"its {name} has a wrong value")
    return directive


def read_log_request(item: object) -> LogRequest:
    """Decode a question for logs, whose bounds are the launcher's own.

    Raises:
        ValueError: it lacks a field, or one has a value of another kind.
    """
    return read(LogRequest, item)


def _depth(value: object) -> int:
    """Levels of objects and lists within each other, :data:`_DEEPEST` and one at most."""
    level, deep = [value], 0
    while deep <= _DEEPEST and any(isinstance(each, dict | list) for each in level):
        inner = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level, deep = [item for part in inner for item in part], deep + 1
    return deep


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST


def _is_seconds(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 <= value <= _LONGEST


def _or_none(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_right(value)


_FIELDS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "id": _is_whole,
    "attempt": _is_whole,
    "deadline": _is_seconds,
    "stop_step": _or_none(_is_whole),
    "settings": lambda value: _depth(value) <= _DEEPEST,
    "watch": _is_seconds,
    "acts_in": _or_none(_is_seconds),
}
"""Fields of a directive that may not have every value of their type."""
