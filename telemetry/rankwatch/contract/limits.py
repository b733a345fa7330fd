"""The limits on a rank's own doings, as the monitor hands them down to launchers and ranks.

Whoever knows them can say at once that one was passed: the rank itself, or its launcher when the rank cannot speak.

How a rank is judged
--------------------
=================  =============================  ======================================================================
limit              judged                         by
=================  =============================  ======================================================================
configured         every section that has one     how long it has been open
learned            the innermost section only     how long nothing has moved: a section that holds others lasts as long
                                                  as they do, so the inner one's limit counts while it is open
first time         the innermost section only,    the same, a heartbeat counting as a sign of life too
                   without any other limit
=================  =============================  ======================================================================

During the first ``step`` of a process, which compiles, a configured limit shorter than the first-time limit is raised
to it, for the step and for what it holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rankwatch.contract.enums import LimitSource
from rankwatch.contract.semconv import STEP_SECTION


class Doing(NamedTuple):
    """What a rank does at one moment; ages in seconds, None: not told, or not now."""

    open_sections: Mapping[str, float]
    heartbeat_age: float | None = None
    idle: float | None = None
    quiet: float | None = None
    """Since the last sign of progress."""
    first_time: AbstractSet[str] = frozenset()
    """Sections open now that this process has never finished before."""


class Standing(NamedTuple):
    """How one thing that a rank does stands to its limit."""

    what: str
    """``section NAME``, ``heartbeat`` or ``out of section``."""
    elapsed: float
    limit: float
    source: LimitSource

    @property
    def passed(self) -> bool:
        """Whether it is past its limit."""
        return self.elapsed > self.limit


@dataclass(frozen=True, slots=True)
class RankLimits:
    """Limits in seconds; None, or a section that is not named: no limit."""

    sections: Mapping[str, float] = field(default_factory=dict)
    """Configured."""
    heartbeat: float | None = None
    heartbeat_outside: bool = False
    """The heartbeat limit is the policy's default: it is not judged while a section is open, which has its own."""
    out_of_section: float | None = None
    learned: Mapping[str, float] = field(default_factory=dict)
    """Learned, here or in an earlier run."""
    first_time: float | None = None
    first_times: Mapping[str, float] = field(default_factory=dict)
    """Where the first run of a section is known to take so long that the first-time limit would be too short."""

    def to_settings(self) -> dict[str, Any]:
        """The settings that are handed down through the slots."""
        return {
            "limits": {
                "sections": dict(self.sections),
                "heartbeat": self.heartbeat,
                "heartbeat_outside": self.heartbeat_outside,
                "out_of_section": self.out_of_section,
                "learned": dict(self.learned),
                "first_time": self.first_time,
                "first_times": dict(self.first_times),
            }
        }

    @classmethod
    def of_settings(cls, settings: Mapping[str, Any]) -> RankLimits:
        """Read them back. What is missing, odd or written by a newer peer is no limit; nothing is raised."""
        given = settings.get("limits")
        limits = given if isinstance(given, Mapping) else {}
        return cls(
            sections=_named_seconds(limits.get("sections")),
            heartbeat=_seconds(limits.get("heartbeat")),
            heartbeat_outside=limits.get("heartbeat_outside") is True,
            out_of_section=_seconds(limits.get("out_of_section")),
            learned=_named_seconds(limits.get("learned")),
            first_time=_seconds(limits.get("first_time")),
            first_times=_named_seconds(limits.get("first_times")),
        )

    def of_section(self, name: str, *, first: bool) -> tuple[float | None, LimitSource]:
        """The limit of a section that no other is open in; ``first``: this process has never finished it before."""
        if name in self.sections:
            return self.sections[name], LimitSource.CONFIGURED
        if name in self.learned and not first:
            return self.learned[name], LimitSource.LEARNED
        if self.first_time is None:
            return None, LimitSource.FIRST_TIME
        return max(self.first_time, self.first_times.get(name, 0.0)), LimitSource.FIRST_TIME

    def judge(self, doing: Doing) -> list[Standing]:
        """How everything that has a limit stands to it."""
        found = self._configured(doing)
        beat_age = doing.heartbeat_age
        if self.heartbeat_outside and beat_age is not None:
            # Where every section has a limit, only the time outside of them is left, since the last of them closed.
            beat_age = None if doing.open_sections else min(beat_age, math.inf if doing.quiet is None else doing.quiet)
        if beat_age is not None and self.heartbeat is not None:
            found.append(Standing("heartbeat", beat_age, self.heartbeat, LimitSource.CONFIGURED))
        if doing.idle is not None and self.out_of_section is not None:
            found.append(Standing("out of section", doing.idle, self.out_of_section, LimitSource.CONFIGURED))
        if doing.quiet is not None and doing.open_sections:
            innermost = min(doing.open_sections, key=doing.open_sections.__getitem__)
            limit, source = self.of_section(innermost, first=innermost in doing.first_time)
            if limit is not None and source is not LimitSource.CONFIGURED:
                elapsed = doing.quiet
                if source is LimitSource.FIRST_TIME and doing.heartbeat_age is not None:
                    elapsed = min(elapsed, doing.heartbeat_age)
                found.append(Standing(f"section {innermost}", elapsed, limit, source))
        return found

    def standing(self, doing: Doing) -> tuple[list[str], float]:
        """What is past its limit, in words, and the seconds until the next limit is passed (or inf)."""
        judged = self.judge(doing)
        ahead = min((each.limit - each.elapsed for each in judged if not each.passed), default=math.inf)
        return sorted(each.what for each in judged if each.passed), ahead

    def _configured(self, doing: Doing) -> list[Standing]:
        ages = doing.open_sections
        first_step = ages.get(STEP_SECTION, -math.inf) if STEP_SECTION in doing.first_time else -math.inf
        found = []
        for name, age in ages.items():
            limit = self.sections.get(name)
            if limit is not None:
                if age <= first_step and self.first_time is not None:  # the first step, or opened inside of it
                    limit = max(limit, self.first_time)
                found.append(Standing(f"section {name}", age, limit, LimitSource.CONFIGURED))
        return found


def _named_seconds(value: object) -> dict[str, float]:
    named = value.items() if isinstance(value, Mapping) else ()
    read = {str(name): _seconds(seconds) for name, seconds in named}
    return {name: seconds for name, seconds in read.items() if seconds is not None}


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        return None
    return float(value)
