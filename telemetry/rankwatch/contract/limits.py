"""The limits on a rank's activity, as the monitor pushes them to launchers and ranks.

They are evaluated next to the data: by the rank itself, or by its launcher when the rank cannot report.

How a rank is checked
---------------------
=================  =============================  ======================================================================
limit              applies to                     measured time
=================  =============================  ======================================================================
configured         every section that has one     since the section was entered
learned            the innermost section only     since the last progress: a section that holds others lasts as long as
                                                  they do, so the inner one's limit applies while it is open.
                                                  Where the section also has a configured limit, both apply
first time         the innermost section only,    the same, but heartbeats count as progress too
                   without any other limit
=================  =============================  ======================================================================

During the first ``step`` of a process, which compiles, a configured limit shorter than the first-time limit is raised
to it, for the step and for the sections inside it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rankwatch.contract.enums import LimitSource
from rankwatch.contract.semconv import STEP_SECTION


class RankActivity(NamedTuple):
    """What a rank does at one moment; ages in seconds, None: unknown, or not at this moment."""

    open_sections: Mapping[str, float]
    heartbeat_age: float | None = None
    idle: float | None = None
    quiet: float | None = None
    """Since the last progress."""
    first_time: AbstractSet[str] = frozenset()
    """Open sections that this process has never finished before."""


class LimitCheck(NamedTuple):
    """One limit and the time measured against it."""

    what: str
    """``section NAME``, ``heartbeat`` or ``out of section``."""
    elapsed: float
    limit: float
    source: LimitSource

    @property
    def passed(self) -> bool:
        """Whether the limit is exceeded."""
        return self.elapsed > self.limit


@dataclass(frozen=True, slots=True)
class RankLimits:
    """Limits in seconds; None, or a section that is not listed: no limit."""

    sections: Mapping[str, float] = field(default_factory=dict)
    """Configured."""
    heartbeat: float | None = None
    heartbeat_outside: bool = False
    """The heartbeat limit is the policy's default: it does not apply while a section is open, which has its own."""
    out_of_section: float | None = None
    learned: Mapping[str, float] = field(default_factory=dict)
    """Learned in this run or an earlier one."""
    first_time: float | None = None
    first_times: Mapping[str, float] = field(default_factory=dict)
    """Known durations of first runs of sections, where they exceed the first-time limit."""

    def to_settings(self) -> dict[str, Any]:
        """The form in which limits are written into the slots."""
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
    def from_settings(cls, settings: Mapping[str, Any]) -> RankLimits:
        """Read what :meth:`to_settings` made. Missing, invalid and unknown values mean no limit; nothing is raised."""
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
        """The limit of the innermost section; ``first``: this process has never finished it before."""
        if name in self.sections:
            return self.sections[name], LimitSource.CONFIGURED
        return self.without_progress(name, first=first)

    def without_progress(self, name: str, *, first: bool) -> tuple[float | None, LimitSource]:
        """The limit of the time without progress in the innermost section, which is never a configured one."""
        if name in self.learned and not first:
            return self.learned[name], LimitSource.LEARNED
        if self.first_time is None or name in self.sections:
            return None, LimitSource.FIRST_TIME
        return max(self.first_time, self.first_times.get(name, 0.0)), LimitSource.FIRST_TIME

    def checks(self, activity: RankActivity) -> list[LimitCheck]:
        """Check everything that has a limit."""
        found = self._configured(activity)
        beat_age = activity.heartbeat_age
        if self.heartbeat_outside and beat_age is not None:
            # Where every section has a limit, only the time since the last of them closed is left.
            beat_age = (
                None
                if activity.open_sections
                else min(beat_age, math.inf if activity.quiet is None else activity.quiet)
            )
        if beat_age is not None and self.heartbeat is not None:
            found.append(LimitCheck("heartbeat", beat_age, self.heartbeat, LimitSource.CONFIGURED))
        if activity.idle is not None and self.out_of_section is not None:
            found.append(LimitCheck("out of section", activity.idle, self.out_of_section, LimitSource.CONFIGURED))
        if activity.quiet is not None and activity.open_sections:
            innermost = min(activity.open_sections, key=activity.open_sections.__getitem__)
            limit, source = self.without_progress(innermost, first=innermost in activity.first_time)
            if limit is not None:
                elapsed = activity.quiet
                if source is LimitSource.FIRST_TIME and activity.heartbeat_age is not None:
                    elapsed = min(elapsed, activity.heartbeat_age)
                found.append(LimitCheck(f"section {innermost}", elapsed, limit, source))
        return found

    def passed(self, activity: RankActivity) -> tuple[list[str], float]:
        """Return the names of exceeded limits, and the seconds until the next one is exceeded (or inf)."""
        checks = self.checks(activity)
        until_next = min((check.limit - check.elapsed for check in checks if not check.passed), default=math.inf)
        return sorted(check.what for check in checks if check.passed), until_next

    def _configured(self, activity: RankActivity) -> list[LimitCheck]:
        ages = activity.open_sections
        first_step = ages.get(STEP_SECTION, -math.inf) if STEP_SECTION in activity.first_time else -math.inf
        found = []
        for name, age in ages.items():
            limit = self.sections.get(name)
            if limit is not None:
                if age <= first_step and self.first_time is not None:  # the first step, or opened inside of it
                    limit = max(limit, self.first_time)
                found.append(LimitCheck(f"section {name}", age, limit, LimitSource.CONFIGURED))
        return found


def _named_seconds(value: object) -> dict[str, float]:
    named = value.items() if isinstance(value, Mapping) else ()
    read = {str(name): _seconds(seconds) for name, seconds in named}
    return {name: seconds for name, seconds in read.items() if seconds is not None}


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        return None
    return float(value)
