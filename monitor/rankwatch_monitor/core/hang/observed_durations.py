"""How long the sections of a job take, as observed: the basis of learned limits.

A process reports, for each section, the longest stretch without progress of its first run and of the others. First runs
compile, load and warm caches, so they are kept apart. All values but the mean step are maxima over ranks and attempts.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any, Final

from rankwatch.contract import semconv
from rankwatch.contract.ft_state import LearnedTimeouts
from rankwatch_monitor.core.events import RankReport

RUNS_NEEDED: Final = 16
"""Runs of a section, on the average rank, before a limit is learned from them (NVRx waits for 16 iterations)."""
SAVES_NEEDED: Final = 1
"""The same for checkpoints, which are few and take equally long (NVRx: at least one save)."""
MAX_SECTIONS: Final = 256
"""Section names observed; further ones are ignored, since a script may make up a new name every step."""


@dataclass(slots=True)
class SectionDurations:
    """How long one section lasts without progress, in seconds; 0: not reported."""

    count: int = 0
    """Runs finished, over all ranks and attempts."""
    longest: float = 0.0
    """Of all runs but the first of a process."""
    first: float = 0.0
    """Of the first runs of processes."""


@dataclass(slots=True)
class ObservedDurations:
    """Durations observed in one job. ``version`` grows whenever a learned limit may have changed."""

    sections: dict[str, SectionDurations] = field(default_factory=dict)
    steps: int = 0
    """Steps completed, over all ranks and attempts."""
    step_seconds: float = 0.0
    """Time that these took together."""
    idle_longest: float = 0.0
    """The longest time outside all sections."""
    ranks: int = 1
    """The highest world size since it last shrank."""
    resumed: bool = False
    """An attempt resumed from a checkpoint, so its setup loaded one."""
    signs: SectionDurations = field(default_factory=SectionDurations)
    """Time between two signs of life (heartbeats, steps, sections) of ranks that do not send the age of their progress;
    the first: from a rank's first report to its first heartbeat."""
    loaded: LearnedTimeouts = field(default_factory=LearnedTimeouts)
    """What an earlier run learned."""
    version: int = 0

    def observe(self, report: RankReport) -> None:
        """Add the durations of one report."""
        for name, statistics in report.finished.items():
            self.add_runs(name, statistics.count)
            if name == semconv.STEP_SECTION:
                self.steps, self.step_seconds = self.steps + statistics.count, self.step_seconds + statistics.sum
        for name, seconds in report.longest.items():
            self.add_longest(name, seconds)
        for name, seconds in report.first_durations.items():
            self.add_longest(name, first=seconds)
        if report.idle_longest is not None:
            self.add_idle(report.idle_longest)

    def add_runs(self, name: str, count: int) -> None:
        """Count finished runs of a section."""
        section = self._section(name)
        if section is None:
            return
        needed, before = self._needed(name), section.count
        section.count += count
        self.version += before < needed <= section.count

    def add_longest(self, name: str, longest: float = 0.0, *, first: float = 0.0) -> None:
        """Take in a process's longest run of a section, or its first one; seconds."""
        section = self._section(name)
        if section is not None and (longest > section.longest or first > section.first):
            section.longest, section.first = max(longest, section.longest), max(first, section.first)
            self.version += 1

    def mean_step(self) -> float:
        """Seconds of a step on average; 0: unknown."""
        return self.step_seconds / self.steps if self.steps else 0.0

    def add_idle(self, longest: float) -> None:
        """Take in a process's longest time outside all sections; seconds."""
        if longest > self.idle_longest:
            self.idle_longest = longest
            self.version += 1

    def add_sign(self, quiet: float, count: int = 1) -> None:
        """Take in ``count`` signs of life; the last came ``quiet`` seconds after the one reported before."""
        known = self.signs_known()
        self.signs.count += count
        grew = quiet > self.signs.longest
        self.signs.longest = max(quiet, self.signs.longest)
        self.version += grew or self.signs_known() != known

    def add_first_sign(self, waited: float) -> None:
        """Take in a first heartbeat that came ``waited`` seconds after the first report."""
        self.signs.first = max(waited, self.signs.first)

    def signs_known(self) -> bool:
        """Whether enough signs of life were observed to learn a limit from them."""
        return self.signs.count >= RUNS_NEEDED * self.ranks

    def begin_attempt(self, world_size: int | None) -> None:
        """Begin an attempt. With fewer ranks each has more work, so runs are counted again from 0."""
        if not world_size or world_size >= self.ranks:
            return
        self.ranks = world_size
        for section in (*self.sections.values(), self.signs):
            section.count = 0
        self.version += 1

    def load(self, earlier: LearnedTimeouts) -> None:
        """Take in what an earlier run learned."""
        if earlier and earlier != self.loaded:
            self.loaded = earlier
            self.version += 1

    def known(self, name: str) -> bool:
        """Whether enough runs of a section were observed to learn a limit from them."""
        section = self.sections.get(name)
        return section is not None and section.count >= self._needed(name)

    def _needed(self, name: str) -> float:
        """Runs of a section that a limit can be learned from; infinite where none is learned from them."""
        if name == semconv.SETUP_SECTION:
            return inf
        return SAVES_NEEDED if name == semconv.CHECKPOINTING_SECTION else RUNS_NEEDED * self.ranks

    def basis(self, name: str) -> float:
        """Seconds that a section's limit is learned from; 0 while unknown."""
        section = self.sections[name]
        # Not every process saves twice, so first saves count.
        return max(section.longest, section.first) if name == semconv.CHECKPOINTING_SECTION else section.longest

    def to_json(self) -> dict[str, Any]:
        """For the store."""
        values = asdict(self)
        del values["version"]
        return values

    def _section(self, name: str) -> SectionDurations | None:
        section = self.sections.get(name)
        if section is None and len(self.sections) < MAX_SECTIONS:
            section = self.sections[name] = SectionDurations()
        return section
