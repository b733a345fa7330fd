"""Statistics of section runs: maxima from which limits are learned, and windows of steps for stragglers. Pure.

Both classes take the section runs finished since the last call, in the order in which they ended. Memory does not grow
with the run.

:class:`DurationMaxima`, over the life of the process:

=============  =======================================================================================================
first run      entered before its section had ever finished in this process: it compiles, loads, warms up
longest        of all runs but the first: the longest stretch in which no section was entered or left within the run,
               outside the sections inside it, since a limit is compared with the time since the last progress
idle longest   the longest gap between two sections, or from the last one to the end, that no section covers, on any
               thread; only after the first completed step, since what precedes it happens once
=============  =======================================================================================================

:class:`StepWindows`. A window is closed by a step whose number is divisible by the *stride*, so that all ranks close
the same windows without communication. It holds the steps after the previous window, up to and including that one:

===================  =================================================================================================
stride               the power of two nearest to 10 s of steps, decided after 8 steps of the process (steps of 10 s: 4)
                     and then changed only when it is off by more than a factor of 2: the ranks must stay together
configured stride    kept while its windows last long enough to be reported one by one; else doubled until they do, so
                     that all ranks still close, and sample, the same windows
first two steps      of a process belong to no window: they compile, load and warm up
step number          going back reopens a window; skipping the closing step, or losing it, closes the window
same number again    (micro-batches of one step, a repeated step) counts as one step for the stride
no steps             windows of 10 s by the clock, without a number; first runs of a section are left out
===================  =================================================================================================
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from rankwatch.contract.intervals import window_seconds
from rankwatch.contract.semconv import STEP_SECTION
from rankwatch.contract.statistics import SectionWindow
from rankwatch.recording.recorder import SectionRun

REPEAT_SECONDS: Final = 60.0
"""All maxima are reported again after this time: a report may have been lost, or the monitor restarted."""
MAX_RUNS: Final = 4096
"""Runs of one section kept for the median and tail of one window; maximum, mean and count cover all runs."""
LONGER: Final = 1.5
"""Times as long as it should be from which on a window gets fewer steps: few windows show little."""
STEPS_BEFORE_STRIDE: Final = 8
LONG_STEPS: Final = 4
"""So many steps are enough to decide a stride of 1."""
WARM_UP_STEPS: Final = 2
MAX_STRIDE: Final = 2**20
MAX_ENCLOSED: Final = 64
STEP_ENDS_KEPT: Final = 64
"""Step ends from which the time of a step is computed."""


@dataclass(frozen=True, slots=True)
class MaximaUpdate:
    """Maxima to report now, in seconds; those left out were reported before and have not grown."""

    longest: Mapping[str, float] = field(default_factory=dict)
    first: Mapping[str, float] = field(default_factory=dict)
    idle_longest: float | None = None


class DurationMaxima:
    """The longest stretches of one process by section name, of which a process has 64 at most."""

    def __init__(self) -> None:
        self._stretches = Stretches()
        self._longest: dict[str, int] = {}
        self._first: dict[str, int] = {}
        self._idle_longest = 0
        self._covered = 0
        """Sections are known to cover the time up to here, or the gaps before it were counted."""
        self._grown: set[str] = set()
        self._grown_first: set[str] = set()
        self._grown_idle = False
        self._repeat_at: float | None = None

    def add(
        self,
        runs: Sequence[SectionRun],
        *,
        open_since: int | None,
        now: int,
        first_step_at: int | None,
        lost: bool = False,
        ended: bool = False,
    ) -> None:
        """Add the runs finished since the last call.

        Args:
            open_since: when the oldest open section was entered; None: none is open. Must be read before ``runs`` are
                collected, so that every section is in one of them.
            now: when ``open_since`` was read. All times are nanoseconds on the monotonic clock.
            first_step_at: when this process completed its first step; None: it has not.
            lost: runs before the first of ``runs`` were lost, so that the gaps before its end are unknown.
            ended: the session is shutting down, so the time since its last section was no hang.
        """
        for run in runs:
            self._add_duration(run)
        if lost and runs:
            self._covered = max(self._covered, runs[0].end_ns)
        spans = sorted((run.start_ns, run.end_ns) for run in runs)
        if open_since is not None:
            # The open section covers everything after it, runs included that began since it was read.
            spans = [span for span in spans if span[0] < open_since]
            spans.append((open_since, max(now, max((run.end_ns for run in runs), default=now))))
        for start, end in spans:
            self._add_gap(start, first_step_at)
            self._covered = max(self._covered, end)
        if ended:
            self._add_gap(now, first_step_at)

    def update(self, now: float, *, everything: bool = False) -> MaximaUpdate:
        """Return the maxima that have grown since the last call; all of them on demand, and at least once a minute.

        ``now`` is in seconds, on any monotonic clock.
        """
        if everything or self._repeat_at is None or now >= self._repeat_at:
            self._repeat_at = now + REPEAT_SECONDS
            self._grown, self._grown_first = set(self._longest), set(self._first)
            self._grown_idle = self._idle_longest > 0
        update = MaximaUpdate(
            _seconds(self._longest, self._grown),
            _seconds(self._first, self._grown_first),
            self._idle_longest / 1e9 if self._grown_idle else None,
        )
        self._grown, self._grown_first, self._grown_idle = set(), set(), False
        return update

    def _add_duration(self, run: SectionRun) -> None:
        maxima, grown = (self._first, self._grown_first) if run.first else (self._longest, self._grown)
        stretch = self._stretches.longest(run.start_ns, run.end_ns)
        if stretch > maxima.get(run.section, -1):
            maxima[run.section] = stretch
            grown.add(run.section)

    def _add_gap(self, start: int, first_step_at: int | None) -> None:
        if first_step_at is None:
            return
        gap = start - max(self._covered, first_step_at)
        if gap > self._idle_longest:
            self._idle_longest, self._grown_idle = gap, True


class Stretches:
    """Longest stretches without progress within runs, outside the runs inside them; runs in the order of their ends.

    Finished runs are kept until one that encloses them ends: the newest :data:`MAX_ENCLOSED` as they are, older ones
    joined, each with the longest gap that it covers. What cannot be assigned makes a stretch longer, never shorter.
    """

    def __init__(self) -> None:
        self._finished: deque[tuple[int, int, int]] = deque()
        """Start, end and longest gap between the joined ones, in nanoseconds."""

    def longest(self, start: int, end: int) -> int:
        """Return the longest stretch of the run that ended last, in nanoseconds."""
        finished, longest, until = self._finished, 0, end
        while finished and finished[-1][0] >= start:
            inner, inner_end, gap = finished.pop()
            longest, until = max(longest, gap, until - inner_end), min(until, inner)
        finished.append((start, end, 0))
        if len(finished) > MAX_ENCLOSED:
            first, second = finished.popleft(), finished.popleft()
            gap = max(first[2], second[2], second[0] - first[1])
            finished.appendleft((first[0], max(first[1], second[1]), gap))
        return max(longest, until - start)


class SectionDurations:
    """Durations of one section within one window."""

    __slots__ = ("calls", "kept", "max", "sum")

    def __init__(self) -> None:
        self.kept: list[int] = []
        self.calls = self.sum = self.max = 0

    def add(self, duration_ns: int) -> None:
        """Add one run."""
        self.calls += 1
        self.sum += duration_ns
        self.max = max(self.max, duration_ns)
        if len(self.kept) < MAX_RUNS:
            self.kept.append(duration_ns)

    def statistics(self) -> SectionWindow:
        """Return the statistics of all runs so far; there must be at least one."""
        ordered = sorted(self.kept)
        return SectionWindow(
            self.calls, median(ordered) / 1e9, tail(ordered) / 1e9, self.max / 1e9, self.sum / self.calls / 1e9
        )


@dataclass(frozen=True, slots=True)
class Window:
    """A closed window."""

    iteration: int | None
    """The step that closed it; None: the process counts no steps."""
    steps: int
    sections: Mapping[str, SectionWindow] = field(default_factory=dict)
    runs_not_kept: int = 0
    """Runs that are in count, maximum and mean only (:data:`MAX_RUNS`)."""


class StepWindows:
    """The windows of one process.

    Args:
        configured: the stride set by the policy or the launcher; 0: find one.
        shortest: the least seconds that a window of a configured stride lasts.
        world_size: ranks of the job; windows of very large jobs last longer.
    """

    def __init__(self, configured: int = 0, shortest: float = 0.0, world_size: int = 1) -> None:
        self._configured = configured
        self._shortest = shortest
        self._target_seconds = window_seconds(world_size)
        self._multiple = 1
        """Power of two by which the configured stride is multiplied."""
        self._found = 0
        """The stride found by measurement; 0: undecided."""
        self._closes_at: int | None = None
        self._began_after = -1
        """The closing step of the previous window; -1 for the first."""
        self._steps = 0
        self._newest = -1
        """The highest step number in the open window."""
        self._sections: dict[str, SectionDurations] = {}
        self._step_ends: deque[int] = deque(maxlen=STEP_ENDS_KEPT)
        self._last_step = -1
        self._steps_seen = 0
        self._clock_began: float | None = None

    @property
    def stride(self) -> int:
        """Steps in a window; 0 while it is undecided."""
        return self._configured * self._multiple or self._found

    @property
    def step_seconds(self) -> float:
        """Median time from the end of one step to the end of the next; 0 while unknown."""
        gaps = [after - before for before, after in pairwise(self._step_ends)]
        return median(sorted(gaps)) / 1e9 if gaps else 0.0

    def configure(self, stride: int) -> None:
        """Set the stride; 0: find one by measurement."""
        if stride != self._configured:
            self._configured, self._multiple = stride, 1
            self._adapt_multiple()
            self._set_closing_step()

    def add(
        self, runs: Iterable[SectionRun], *, completed: int | None, first: int | None, counts_steps: bool, now: float
    ) -> list[Window]:
        """Add the runs finished since the last call and return the windows that they closed.

        Args:
            completed: the last completed step, read before ``runs`` were collected; None: none yet.
            first: the first step that this process completed; None: none yet.
            counts_steps: the process has entered a step, so its windows are windows of steps.
            now: monotonic seconds.
        """
        if not counts_steps:
            return self._add_by_clock(runs, now)
        if self._clock_began is not None:
            self._clock_began = None
            self._clear()
        closed: list[Window] = []
        for run in runs:
            if run.section == STEP_SECTION:
                self._note_step_end(run)
            if first is None or first <= run.iteration < first + WARM_UP_STEPS:
                continue
            # Other sections may be late: one on another thread can finish after the step that closed the window.
            if run.iteration < self._began_after and run.section == STEP_SECTION:
                self._restart_at(run.iteration)
            elif self._closes_at is not None and run.iteration > self._closes_at:
                closed.append(self._close(self._closes_at))
            self._add_run(run)
        if not self._found:
            self._find_stride()
        if self._closes_at is not None and completed == self._closes_at:
            closed.append(self._close(self._closes_at))
        return closed

    def _note_step_end(self, run: SectionRun) -> None:
        if run.iteration == self._last_step:
            self._step_ends[-1] = run.end_ns
            return
        self._last_step = run.iteration
        self._step_ends.append(run.end_ns)
        self._steps_seen += 1

    def _add_run(self, run: SectionRun) -> None:
        self._newest = max(self._newest, run.iteration)
        if self._closes_at is None and self.stride:
            self._set_closing_step()
        if run.section == STEP_SECTION:
            self._steps += 1
        self._sections.setdefault(run.section, SectionDurations()).add(run.duration_ns)

    def _close(self, closing: int) -> Window:
        window = self._window(closing)
        self._clear()
        self._began_after = self._newest = closing
        self._find_stride()
        return window

    def _window(self, closing: int | None) -> Window:
        statistics = {name: durations.statistics() for name, durations in self._sections.items()}
        not_kept = sum(durations.calls - len(durations.kept) for durations in self._sections.values())
        return Window(closing, self._steps, statistics, not_kept)

    def _clear(self) -> None:
        self._sections, self._steps, self._closes_at = {}, 0, None

    def _restart_at(self, iteration: int) -> None:
        self._clear()
        self._newest = iteration
        self._began_after = iteration - 1
        self._step_ends.clear()
        self._last_step = -1

    def _find_stride(self) -> None:
        """Decide the stride, or keep it while windows take from half to one and a half times as long as they should."""
        seconds = self.step_seconds
        enough = LONG_STEPS if seconds >= self._target_seconds else STEPS_BEFORE_STRIDE
        if self._steps_seen < enough or seconds <= 0:
            return
        self._adapt_multiple()
        steps = self._target_seconds / seconds
        if not self._found or not self._found / LONGER <= steps <= self._found * 2:
            self._found = min(MAX_STRIDE, 2 ** max(0, round(math.log2(steps))))
            if not self._configured:
                self._set_closing_step()

    def _adapt_multiple(self) -> None:
        """Lengthen windows of a configured stride to the shortest allowed; shorten them once a quarter would do."""
        seconds = self._configured * self.step_seconds
        if seconds <= 0 or self._steps_seen < STEPS_BEFORE_STRIDE:
            return
        multiple = min(MAX_STRIDE, 2 ** max(0, math.ceil(math.log2(max(self._shortest / seconds, 1.0)))))
        if multiple > self._multiple or multiple * 4 <= self._multiple:
            self._multiple = multiple
            self._set_closing_step()

    def _set_closing_step(self) -> None:
        """The open window closes at the next step that the stride divides and that has not been seen yet."""
        stride = self.stride
        if not stride or (not self._sections and self._newest < 0):
            self._closes_at = None
            return
        seen = self._newest if self._steps == 0 else self._newest + 1
        self._closes_at = -(-max(seen, self._began_after + 1) // stride) * stride

    def _add_by_clock(self, runs: Iterable[SectionRun], now: float) -> list[Window]:
        if self._clock_began is None:
            self._clock_began = now
        for run in runs:
            if not run.first:
                self._sections.setdefault(run.section, SectionDurations()).add(run.duration_ns)
        if now - self._clock_began < self._target_seconds:
            return []
        window = self._window(None)
        self._clear()
        self._clock_began = now
        return [window] if window.sections else []


def median(ordered: Sequence[int]) -> float:
    """Median of sorted values."""
    half = len(ordered) // 2
    return float(ordered[half]) if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def tail(ordered: Sequence[int]) -> float:
    """Mean of the upper half of sorted values, the middle one included when their number is odd."""
    upper = ordered[len(ordered) // 2 :]
    return sum(upper) / len(upper)


def _seconds(maxima: Mapping[str, int], names: Iterable[str]) -> dict[str, float]:
    return {name: maxima[name] / 1e9 for name in names}
