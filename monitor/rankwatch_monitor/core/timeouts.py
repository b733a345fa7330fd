"""Which limits are in force for a job. Configured by a person today; what a job teaches itself joins here later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rankwatch.wire.limits import RankLimits
from rankwatch.wire.policy import Policy


class Limits(NamedTuple):
    """Limits in force, in seconds; None or a missing section: no limit."""

    sections: Mapping[str, float]
    heartbeat: float | None
    initial_heartbeat: float | None
    out_of_section: float | None
    silence: float | None

    def of_a_rank(self) -> RankLimits:
        """Those that a rank must know, to speak at once when it passes one."""
        return RankLimits(self.sections, self.heartbeat, self.out_of_section)


def in_force(policy: Policy) -> Limits:
    """The limits that a job is judged by."""
    return Limits(
        sections=policy.section_timeouts,
        heartbeat=policy.heartbeat_timeout,
        initial_heartbeat=policy.initial_heartbeat_timeout,
        out_of_section=policy.out_of_section_timeout,
        silence=policy.silence_timeout,
    )


def table(policy: Policy) -> list[dict[str, Any]]:
    """Each limit with where it comes from, for people to read."""
    limits = in_force(policy)
    rows: list[tuple[str, str | None, float | None]] = [
        ("section", name, seconds) for name, seconds in sorted(limits.sections.items())
    ]
    rows += [
        ("out_of_section", None, limits.out_of_section),
        ("heartbeat", None, limits.heartbeat),
        ("initial_heartbeat", None, limits.initial_heartbeat),
        ("silence", None, limits.silence),
    ]
    return [
        {"what": what, "section": section, "configured": seconds, "learned": None, "in_force": seconds}
        for what, section, seconds in rows
    ]
