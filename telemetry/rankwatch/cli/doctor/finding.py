"""Result of one check: one line, with a remedy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum


class Level(StrEnum):
    """Severity."""

    OK = "ok"
    WARNING = "warning"
    """Rankwatch works, but part of it is missing or may not work."""
    FAULT = "fault"
    """Something that is configured cannot work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    name: str
    level: Level
    found: str
    mend: str = ""
    """The remedy; empty if none is needed."""

    def to_json(self) -> dict[str, str]:
        """The finding as JSON."""
        return {**asdict(self), "level": str(self.level)}


def ok(name: str, found: str, mend: str = "") -> Finding:
    """A finding without a problem."""
    return Finding(name, Level.OK, found, mend)


def warning(name: str, found: str, mend: str) -> Finding:
    """A finding that does not prevent training."""
    return Finding(name, Level.WARNING, found, mend)


def fault(name: str, found: str, mend: str) -> Finding:
    """A finding about something that does not work."""
    return Finding(name, Level.FAULT, found, mend)
