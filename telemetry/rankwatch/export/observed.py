"""How long a rank's sections have taken: what the monitor learns limits from. Pure.

How this works
--------------
The exporter hands over what was finished since its last look, and since when a section has been open without a break.
Kept are maxima only, so that memory does not grow with the run:

=============  =======================================================================================================
first run      it was entered before its section had ever been finished in this process: it compiles, loads, warms up
longest        of all runs but the first
idle longest   the longest stretch between two sections, or from the last one to the end, that no section covers, on
               whatever thread; only from the first completed step on, since what comes before happens once
=============  =======================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

REPEAT_SECONDS: Final = 60.0
"""Everything is told again so often: a report may have been lost, and the monitor may have been started anew."""


class Run(NamedTuple):
    """One finished run of a section, on the monotonic clock in nanoseconds."""

    section: str
    start: int
    end: int
    first: bool


@dataclass(frozen=True, slots=True)
class News:
    """What is to be told now, in seconds; what is not in it has been told before."""

    longest: Mapping[str, float] = field(default_factory=dict)
    first: Mapping[str, float] = field(default_factory=dict)
    idle_longest: float | None = None


class Observed:
    """The longest times of one process, by section name: as many as the process has names, 64 at most."""

    def __init__(self) -> None:
        self._longest: dict[str, int] = {}
        self._first: dict[str, int] = {}
        self._idle_longest = 0
        self._covered = 0
        """Up to here it is known which times some section covers."""
        self._grown: set[str] = set()
        self._grown_first: set[str] = set()
        self._grown_idle = False
        self._repeat_at = 0.0

    def take(
        self,
        runs: Sequence[Run],
        *,
        open_since: int | None,
        now: int,
        first_step_at: int | None,
        lost: bool = False,
        ended: bool = False,
    ) -> None:
        """Take in the runs that were finished since the last call, in the order in which they ended.

        Args:
            runs: what was finished.
            open_since: when the oldest of the sections that are open was entered; None: none is open. It must have been
                read before ``runs`` were collected, so that no section is in neither.
            now: when that was read. All times are nanoseconds on the monotonic clock.
            first_step_at: when this process completed its first step; None: it has not.
            lost: runs before the first of ``runs`` were lost, so that nothing is known of the time before its end.
            ended: the process has said that it is done: the time since its last section was no hang.
        """
        for run in runs:
            self._take_duration(run)
        if lost and runs:
            self._covered = max(self._covered, runs[0].end)
        spans = sorted((run.start, run.end) for run in runs)
        if open_since is not None:
            # It covers all that comes after, runs included that were begun since it was seen open.
            spans = [span for span in spans if span[0] < open_since]
            spans.append((open_since, max(now, max((run.end for run in runs), default=now))))
        for start, end in spans:
            self._take_gap(start, first_step_at)
            self._covered = max(self._covered, end)
        if ended:
            self._take_gap(now, first_step_at)

    def news(self, now: float, *, everything: bool = False) -> News:
        """What has grown since the last call; ``everything`` when asked for, and at least once a minute.

        ``now`` is in seconds, on any clock that goes forward.
        """
        if everything or now >= self._repeat_at:
            self._repeat_at = now + REPEAT_SECONDS
            self._grown, self._grown_first = set(self._longest), set(self._first)
            self._grown_idle = self._idle_longest > 0
        news = News(
            _seconds(self._longest, self._grown),
            _seconds(self._first, self._grown_first),
            self._idle_longest / 1e9 if self._grown_idle else None,
        )
        self._grown, self._grown_first, self._grown_idle = set(), set(), False
        return news

    def _take_duration(self, run: Run) -> None:
        known, grown = (self._first, self._grown_first) if run.first else (self._longest, self._grown)
        duration = run.end - run.start
        if duration > known.get(run.section, -1):
            known[run.section] = duration
            grown.add(run.section)

    def _take_gap(self, start: int, first_step_at: int | None) -> None:
        if first_step_at is None:
            return
        gap = start - max(self._covered, first_step_at)
        if gap > self._idle_longest:
            self._idle_longest, self._grown_idle = gap, True


def _seconds(known: Mapping[str, int], names: Iterable[str]) -> dict[str, float]:
    return {name: known[name] / 1e9 for name in names}
