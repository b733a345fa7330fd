"""Timeouts in the format of NVRx's client, which also records which of them were calculated. Pure.

A calculated limit is what the monitor has learned for the whole job: five times the longest time that any rank needed
(:func:`rankwatch.learned_timeouts`), averaged with the calculated limit of an earlier run, if there is one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from rankwatch.contract.ft_state import LearnedTimeouts
from rankwatch.integrations.shared.state_file import as_policy, mean_with_earlier

STATE_KEY: Final = "current_timeouts"


@dataclass
class HeartbeatTimeouts:
    """Limits in seconds between heartbeats and before the first one; None: no limit."""

    initial: float | None = None
    subsequent: float | None = None
    were_calculated: bool | None = None

    @property
    def are_valid(self) -> bool:
        """Whether both limits are set."""
        return self.initial is not None and self.subsequent is not None


@dataclass
class SectionTimeouts:
    """Limits in seconds of sections and of the time outside all of them; None: no limit."""

    section: Mapping[str, float | None] = field(default_factory=dict)
    out_of_section: float | None = None
    calculated_sections: set[str] = field(default_factory=set)
    is_out_of_section_calculated: bool = False

    def __post_init__(self) -> None:
        self.calculated_sections = set(self.calculated_sections)

    @property
    def were_calculated(self) -> bool:
        """Whether all of them were calculated."""
        return self.calculated_sections == set(self.section) and self.is_out_of_section_calculated

    @property
    def are_valid(self) -> bool:
        """Whether all limits are set."""
        return self.out_of_section is not None and all(limit is not None for limit in self.section.values())

    def over(self, configured: SectionTimeouts) -> SectionTimeouts:
        """Return the configured limits, overridden by those calculated here."""
        section = dict(configured.section) | {name: self.section[name] for name in self.calculated_sections}
        calculated = self.is_out_of_section_calculated
        outside = self.out_of_section if calculated else configured.out_of_section
        return SectionTimeouts(section, outside, self.calculated_sections, calculated)

    def with_learned(
        self, learned: LearnedTimeouts, wanted: Collection[str], *, outside: bool, earlier: SectionTimeouts
    ) -> SectionTimeouts:
        """Return a copy with the learned limits of ``wanted``, averaged with those that an earlier run calculated."""
        new = {
            name: mean_with_earlier(
                learned.sections[name], earlier.section.get(name) if name in earlier.calculated_sections else None
            )
            for name in wanted
            if name in learned.sections
        }
        made = replace(self, section=dict(self.section) | new, calculated_sections=self.calculated_sections | set(new))
        if outside and learned.out_of_section is not None:
            before = earlier.out_of_section if earlier.is_out_of_section_calculated else None
            made.out_of_section = mean_with_earlier(learned.out_of_section, before)
            made.is_out_of_section_calculated = True
        return made

    def policy(self) -> dict[str, Any]:
        """Return the calculated limits as policy changes."""
        given = {name: self.section[name] for name in sorted(self.calculated_sections)}
        limits = {name: seconds for name, seconds in given.items() if seconds is not None}
        return as_policy(LearnedTimeouts(limits, self.out_of_section if self.is_out_of_section_calculated else None))


def to_state(heartbeat: HeartbeatTimeouts, section: SectionTimeouts) -> dict[str, Any]:
    """Return the content of ``ft_state.json``: the calculated limits."""
    current: dict[str, Any] = {}
    if heartbeat.are_valid and heartbeat.were_calculated:
        current["heartbeat"] = asdict(heartbeat)
    if section.calculated_sections or section.is_out_of_section_calculated:
        current["section"] = asdict(section) | {"calculated_sections": sorted(section.calculated_sections)}
    return {STATE_KEY: current}


def from_learned(learned: LearnedTimeouts) -> tuple[HeartbeatTimeouts | None, SectionTimeouts | None]:
    """Return the heartbeat and section limits of an earlier run; None where there are none."""
    heartbeat, section = None, None
    if learned.heartbeat is not None:
        heartbeat = HeartbeatTimeouts(learned.initial_heartbeat, learned.heartbeat, were_calculated=True)
    if learned.sections or learned.out_of_section is not None:
        outside = learned.out_of_section
        section = SectionTimeouts(dict(learned.sections), outside, set(learned.sections), outside is not None)
    return heartbeat, section
