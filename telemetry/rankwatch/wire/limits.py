"""The limits on a rank's own doings, as the monitor hands them down to launchers and ranks.

Whoever knows them can say at once that one was passed: the rank itself, or its launcher when the rank cannot speak.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RankLimits:
    """Limits in seconds; None, or a section that is not named: no limit."""

    sections: Mapping[str, float] = field(default_factory=dict)
    heartbeat: float | None = None
    out_of_section: float | None = None

    def to_settings(self) -> dict[str, Any]:
        """The settings that are handed down through the slots."""
        return {
            "limits": {
                "sections": dict(self.sections),
                "heartbeat": self.heartbeat,
                "out_of_section": self.out_of_section,
            }
        }

    @classmethod
    def of_settings(cls, settings: Mapping[str, Any]) -> RankLimits:
        """Read them back. What is missing, odd or written by a newer peer is no limit; nothing is raised."""
        given = settings.get("limits")
        limits = given if isinstance(given, Mapping) else {}
        sections = limits.get("sections")
        named = sections.items() if isinstance(sections, Mapping) else ()
        read = {str(name): _seconds(value) for name, value in named}
        return cls(
            sections={name: value for name, value in read.items() if value is not None},
            heartbeat=_seconds(limits.get("heartbeat")),
            out_of_section=_seconds(limits.get("out_of_section")),
        )

    def standing(
        self, open_sections: Mapping[str, float], heartbeat_age: float | None, idle: float | None
    ) -> tuple[list[str], float]:
        """What is past its limit at these ages, in words, and the seconds until the next limit is passed (or inf)."""
        running = [(f"section {name}", age, self.sections.get(name)) for name, age in open_sections.items()]
        running.append(("heartbeat", heartbeat_age or 0.0, None if heartbeat_age is None else self.heartbeat))
        running.append(("out of section", idle or 0.0, None if idle is None else self.out_of_section))
        limited = [(what, age, limit) for what, age, limit in running if limit is not None]
        passed = sorted(what for what, age, limit in limited if age > limit)
        return passed, min((limit - age for _, age, limit in limited if age <= limit), default=math.inf)


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        return None
    return float(value)
