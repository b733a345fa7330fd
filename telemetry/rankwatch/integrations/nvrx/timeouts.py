"""Limits in the shape that callers of NVRx's client read and keep: which there are, and which were calculated.

How a calculated limit is found
-------------------------------
The monitor learns it for the whole job: five times the longest time that any rank needed
(:func:`rankwatch.learned_timeouts`). Where an earlier run left a calculated one, the mean of both counts. Everything
here is arithmetic on values: asking and telling is the client's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from rankwatch.contract.ft_state import LearnedTimeouts
from rankwatch.integrations.shared.state_file import as_policy, mean

STATE_KEY: Final = "current_timeouts"


@dataclass
class HeartbeatTimeouts:
    """Limits in seconds between heartbeats, and before the first; None: no limit."""

    initial: float | None = None
    subsequent: float | None = None
    were_calculated: bool | None = None

    @property
    def are_valid(self) -> bool:
        """Whether both limits are there."""
        return self.initial is not None and self.subsequent is not None


@dataclass
class SectionTimeouts:
    """Limits in seconds of the sections, and of the time outside all of them; None: no limit."""

    section: Mapping[str, float | None] = field(default_factory=dict)
    out_of_section: float | None = None
    calculated_sections: set[str] = field(default_factory=set)
    is_out_of_section_calculated: bool = False

    def __post_init__(self) -> None:
        self.calculated_sections = set(self.calculated_sections)

    @property
    def were_calculated(self) -> bool:
        """Whether every one of them was calculated."""
        return self.calculated_sections == set(self.section) and self.is_out_of_section_calculated

    @property
    def are_valid(self) -> bool:
        """Whether there is a limit for everything."""
        return self.out_of_section is not None and all(limit is not None for limit in self.section.values())

    def over(self, configured: SectionTimeouts) -> SectionTimeouts:
        """What was calculated here, laid over what was configured."""
        section = dict(configured.section) | {name: self.section[name] for name in self.calculated_sections}
        calculated = self.is_out_of_section_calculated
        outside = self.out_of_section if calculated else configured.out_of_section
        return SectionTimeouts(section, outside, self.calculated_sections, calculated)

    def with_learned(
        self, learned: LearnedTimeouts, wanted: Collection[str], *, outside: bool, earlier: SectionTimeouts
    ) -> SectionTimeouts:
        """These, with what was learned of the ``wanted`` ones; the mean of both where an earlier run had calculated."""
        new = {
            name: mean(
                learned.sections[name], earlier.section.get(name) if name in earlier.calculated_sections else None
            )
            for name in wanted
            if name in learned.sections
        }
        made = replace(self, section=dict(self.section) | new, calculated_sections=self.calculated_sections | set(new))
        if outside and learned.out_of_section is not None:
            before = earlier.out_of_section if earlier.is_out_of_section_calculated else None
            made.out_of_section = mean(learned.out_of_section, before)
            made.is_out_of_section_calculated = True
        return made

    def policy(self) -> dict[str, Any]:
        """What was calculated, as settings of the job's policy."""
        given = {name: self.section[name] for name in sorted(self.calculated_sections)}
        limits = {name: seconds for name, seconds in given.items() if seconds is not None}
        return as_policy(LearnedTimeouts(limits, self.out_of_section if self.is_out_of_section_calculated else None))


def to_state(heartbeat: HeartbeatTimeouts, section: SectionTimeouts) -> dict[str, Any]:
    """The content of ``ft_state.json``; only what was calculated makes an entry."""
    current: dict[str, Any] = {}
    if heartbeat.are_valid and heartbeat.were_calculated:
        current["heartbeat"] = asdict(heartbeat)
    if section.calculated_sections or section.is_out_of_section_calculated:
        current["section"] = asdict(section) | {"calculated_sections": sorted(section.calculated_sections)}
    return {STATE_KEY: current}


def of_learned(learned: LearnedTimeouts) -> tuple[HeartbeatTimeouts | None, SectionTimeouts | None]:
    """What an earlier run calculated, of heartbeats and of sections; None: nothing."""
    heartbeat, section = None, None
    if learned.heartbeat is not None:
        heartbeat = HeartbeatTimeouts(learned.initial_heartbeat, learned.heartbeat, were_calculated=True)
    if learned.sections or learned.out_of_section is not None:
        outside = learned.out_of_section
        section = SectionTimeouts(dict(learned.sections), outside, set(learned.sections), outside is not None)
    return heartbeat, section
