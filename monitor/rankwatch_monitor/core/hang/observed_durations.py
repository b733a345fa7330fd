"""What a job has taught about itself: how long its sections take. The basis of limits that nobody had to configure.

A process tells, for each section, how long its first run took and the longest of the others; first runs compile, load
and warm caches, so they say nothing about the runs after them. Everything here is a maximum over ranks and attempts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from rankwatch.contract import semconv
from rankwatch.contract.ft_state import LearnedTimeouts

RUNS_NEEDED: Final = 16
"""Runs of a section, on the average rank, before its longest one says something (NVRx waits for 16 iterations)."""
SAVES_NEEDED: Final = 1
"""Checkpoints are few and each as long as the others: one is enough (NVRx: at least one save)."""

MAX_SECTIONS: Final = 256
"""Names beyond these teach nothing: a script may make up a new one every step."""


@dataclass(slots=True)
class SectionDurations:
    """How long a section has taken, in seconds; 0: not told."""

    count: int = 0
    """Runs finished, over all ranks and attempts."""
    longest: float = 0.0
    """The longest one, first runs left out."""
    first: float = 0.0
    """The longest first run of a process."""


@dataclass(slots=True)
class ObservedDurations:
    """All that a job has taught. ``version`` grows whenever a limit may have changed by it."""

    sections: dict[str, SectionDurations] = field(default_factory=dict)
    idle_longest: float = 0.0
    """The longest time between two sections, outside all others."""
    ranks: int = 1
    """The most ranks that have taken part since there were fewer."""
    resumed: bool = False
    """An attempt went on from a checkpoint: its setup loaded one."""
    loaded: LearnedTimeouts = field(default_factory=LearnedTimeouts)
    """What an earlier run had learned."""
    version: int = 0

    def finished(self, name: str, count: int) -> None:
        """So many more runs of a section were finished."""
        observed = self._of_section(name)
        if observed is None:
            return
        known = self.known(name)
        observed.count += count
        self.version += self.known(name) != known

    def took(self, name: str, longest: float = 0.0, *, first: float = 0.0) -> None:
        """A process told its longest run of a section, or its first one; seconds."""
        observed = self._of_section(name)
        if observed is not None and (longest > observed.longest or first > observed.first):
            observed.longest, observed.first = max(longest, observed.longest), max(first, observed.first)
            self.version += 1

    def idled(self, longest: float) -> None:
        """A process told the longest time it spent between two sections; seconds."""
        if longest > self.idle_longest:
            self.idle_longest = longest
            self.version += 1

    def begun(self, ranks: int | None) -> None:
        """An attempt begins, with so many ranks if that is known.

        Fewer than before have more to do each: what they need is not known until it was counted anew.
        """
        if not ranks or ranks >= self.ranks:
            return
        self.ranks = ranks
        for observed in self.sections.values():
            observed.count = 0
        self.version += 1

    def grown(self, ranks: int) -> None:
        """So many ranks take part."""
        self.ranks = max(self.ranks, ranks)

    def load(self, earlier: LearnedTimeouts) -> None:
        """Take in what an earlier run had learned."""
        if earlier and earlier != self.loaded:
            self.loaded = earlier
            self.version += 1

    def known(self, name: str) -> bool:
        """Whether enough runs of a section were seen to learn a limit from them."""
        observed = self.sections.get(name)
        if observed is None or name == semconv.SETUP_SECTION:
            return False
        if name == semconv.CHECKPOINTING_SECTION:
            return observed.count >= SAVES_NEEDED
        return observed.count >= RUNS_NEEDED * self.ranks

    def basis(self, name: str) -> float:
        """The longest time of a section that a limit is learned from, in seconds; 0 when nothing is known."""
        observed = self.sections[name]
        # Not every process saves twice, so its first save counts.
        return max(observed.longest, observed.first) if name == semconv.CHECKPOINTING_SECTION else observed.longest

    def to_json(self) -> dict[str, Any]:
        """For the store."""
        values = asdict(self)
        del values["version"]
        return values

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> ObservedDurations:
        """From the store."""
        return cls(
            sections={name: SectionDurations(**observed) for name, observed in values["sections"].items()},
            idle_longest=values["idle_longest"],
            ranks=values["ranks"],
            resumed=values["resumed"],
            loaded=LearnedTimeouts(**values["loaded"]),
        )

    def _of_section(self, name: str) -> SectionDurations | None:
        if name not in self.sections and len(self.sections) >= MAX_SECTIONS:
            return None
        return self.sections.setdefault(name, SectionDurations())
