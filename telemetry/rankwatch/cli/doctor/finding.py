"""What the doctor finds: one line a thing, with how to mend it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """Rankwatch works, and something of it is missing or doubtful."""
    FAULT = "fault"
    """Something that was asked for cannot work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    level: Level
    found: str
    mend: str = ""
    """What to do; empty where nothing needs doing."""

    def to_json(self) -> dict[str, str]:
        """For programs."""
        return {**asdict(self), "level": str(self.level)}


def ok(name: str, found: str, mend: str = "") -> Finding:
    """All is well."""
    return Finding(name, Level.OK, found, mend)


def warning(name: str, found: str, mend: str) -> Finding:
    """Worth knowing; work goes on."""
    return Finding(name, Level.WARNING, found, mend)


def fault(name: str, found: str, mend: str) -> Finding:
    """It does not work."""
    return Finding(name, Level.FAULT, found, mend)
