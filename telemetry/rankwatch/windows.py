"""What a rank's sections took in each window of steps. Pure.

How this works
--------------
A window is closed by a step whose number is divisible by the *stride*, so that all ranks close the same ones without a
word between them. It holds the steps after the window before, up to and including that one. Finished sections carry the
number of their step and come in the order in which they ended, so one open window is all that is kept.

===================  =================================================================================================
stride               as told; else the power of two nearest to 10 s of steps, decided after 8 steps of the process and
                     then changed only when it is off by more than a factor of 2: the ranks must stay together
first two steps      of a process belong to no window: they compile, load and warm up
a jump               in the numbering, backwards or over the closing step: the open window is forgotten
no steps at all      windows of 10 s by the clock, which carry no number; first runs of a section are left out
===================  =================================================================================================
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from rankwatch.wire.names import STEP_SECTION

WINDOW_SECONDS: Final = 10.0
STEPS_BEFORE_STRIDE: Final = 8
WARM_UP_STEPS: Final = 2
MAX_STRIDE: Final = 2**20
MAX_RUNS: Final = 4096
"""Runs of one section kept for the statistics of one window; maximum, mean and count are of all."""
STEPS_REMEMBERED: Final = 64
"""Ends of steps from which the time of one is taken."""


class Run(NamedTuple):
    """One finished run of a section."""

    section: str
    end_ns: int
    duration_ns: int
    iteration: int
    """Of the step it belongs to."""
    first: bool
    """The process had never finished this section before."""


class SectionStatistics(NamedTuple):
    """A section's runs within one window, in seconds."""

    calls: int
    median: float
    tail: float
    """Mean of the slower half, the middle run included when their number is odd."""
    max: float
    mean: float


@dataclass(frozen=True, slots=True)
class Window:
    """A window that was closed."""

    iteration: int | None
    """The step that closed it; None: the process counts no steps."""
    steps: int
    sections: Mapping[str, SectionStatistics] = field(default_factory=dict)
    beyond: int = 0
    """Runs that only count, maximum and mean know of."""


class _Runs:
    """The runs of one section in the open window."""

    __slots__ = ("calls", "kept", "max", "sum")

    def __init__(self) -> None:
        self.kept: list[int] = []
        self.calls = self.sum = self.max = 0

    def add(self, duration_ns: int) -> None:
        self.calls += 1
        self.sum += duration_ns
        self.max = max(self.max, duration_ns)
        if len(self.kept) < MAX_RUNS:
            self.kept.append(duration_ns)

    def statistics(self) -> SectionStatistics:
        ordered = sorted(self.kept)
        return SectionStatistics(
            self.calls, middle(ordered) / 1e9, tail(ordered) / 1e9, self.max / 1e9, self.sum / self.calls / 1e9
        )


class Windows:
    """The windows of one process. ``told`` is the stride that was set by a person or a launcher; 0: find one."""

    def __init__(self, told: int = 0) -> None:
        self._told = told
        self._found = 0
        self._closes_at: int | None = None
        self._began_after = -1
        """The closing step of the window before; of the first one, -1."""
        self._steps = 0
        self._closing_seen = False
        self._last = -1
        """The newest step that a run in the open window belongs to."""
        self._runs: dict[str, _Runs] = {}
        self._step_ends: deque[int] = deque(maxlen=STEPS_REMEMBERED)
        self._steps_seen = 0
        self._clock_began: float | None = None

    @property
    def stride(self) -> int:
        """Steps in a window; 0 while that is not decided."""
        return self._told or self._found

    @property
    def step_seconds(self) -> float:
        """Median time from the end of one step to the end of the next; 0 while it is not known."""
        gaps = [after - before for before, after in pairwise(self._step_ends)]
        return middle(sorted(gaps)) / 1e9 if gaps else 0.0

    def tell(self, stride: int) -> None:
        """Take a stride from outside; 0: go back to finding one."""
        if stride != self._told:
            self._told = stride
            self._reclose()

    def take(
        self, runs: Iterable[Run], *, completed: int | None, first: int | None, counts_steps: bool, now: float
    ) -> list[Window]:
        """Take in what was finished since the last call, in the order in which it ended; return the windows closed.

        Args:
            runs: what was finished.
            completed: the last completed step, read before ``runs`` were collected; None: none yet.
            first: the first step that this process completed; None: none yet.
            counts_steps: the process has entered a step at some time, so its windows are those of its steps.
            now: seconds, on a clock that only goes forward.
        """
        if not counts_steps:
            return self._by_the_clock(runs, now)
        if self._clock_began is not None:
            self._clock_began = None
            self._forget()
        closed: list[Window] = []
        for run in runs:
            if run.section == STEP_SECTION:
                self._step_ends.append(run.end_ns)
                self._steps_seen += 1
            if first is None or first <= run.iteration < first + WARM_UP_STEPS:
                continue
            # Other sections may be late: one on another thread can end, and be noted, after the step that closed.
            if run.iteration <= self._began_after and run.section == STEP_SECTION:
                self._jump(run.iteration)
            elif self._closes_at is not None and run.iteration > self._closes_at:
                closed += self._close()
            self._add(run)
        if self._steps_seen >= STEPS_BEFORE_STRIDE and not self._found:
            self._find()
        if self._closes_at is not None and completed == self._closes_at:
            closed += self._close()
        return closed

    def _add(self, run: Run) -> None:
        self._last = max(self._last, run.iteration)
        if self._closes_at is None and self.stride:
            self._reclose()
        if run.section == STEP_SECTION:
            self._steps += 1
            self._closing_seen |= run.iteration == self._closes_at
        self._runs.setdefault(run.section, _Runs()).add(run.duration_ns)

    def _close(self) -> list[Window]:
        """Close the open window; nothing is returned when its last step was jumped over."""
        closing, whole = self._closes_at, self._closing_seen
        window = self._made(closing)
        self._forget()
        assert closing is not None
        self._began_after = self._last = closing
        self._find()
        return [window] if whole else []

    def _made(self, closing: int | None) -> Window:
        statistics = {name: runs.statistics() for name, runs in self._runs.items()}
        beyond = sum(runs.calls - len(runs.kept) for runs in self._runs.values())
        return Window(closing, self._steps, statistics, beyond)

    def _forget(self) -> None:
        self._runs, self._steps, self._closing_seen, self._closes_at = {}, 0, False, None

    def _jump(self, iteration: int) -> None:
        self._forget()
        self._last = iteration
        self._began_after = iteration - 1
        self._step_ends.clear()

    def _find(self) -> None:
        """Decide the stride, or keep it while it is within a factor of 2 of what it should be."""
        seconds = self.step_seconds
        if self._steps_seen < STEPS_BEFORE_STRIDE or seconds <= 0:
            return
        steps = WINDOW_SECONDS / seconds
        if not self._found or not self._found / 2 <= steps <= self._found * 2:
            self._found = min(MAX_STRIDE, 2 ** max(0, round(math.log2(steps))))
            if not self._told:
                self._reclose()

    def _reclose(self) -> None:
        """The open window ends with the next step that the stride divides and that has not been seen yet."""
        stride = self.stride
        if not stride or (not self._runs and self._last < 0):
            self._closes_at = None
            return
        seen = self._last if self._steps == 0 else self._last + 1
        self._closes_at = -(-max(seen, self._began_after + 1) // stride) * stride
        self._closing_seen = False

    def _by_the_clock(self, runs: Iterable[Run], now: float) -> list[Window]:
        if self._clock_began is None:
            self._clock_began = now
        for run in runs:
            if not run.first:
                self._runs.setdefault(run.section, _Runs()).add(run.duration_ns)
        if now - self._clock_began < WINDOW_SECONDS:
            return []
        window = self._made(None)
        self._forget()
        self._clock_began = now
        return [window] if window.sections else []


def middle(ordered: Sequence[int]) -> float:
    """Median of sorted values."""
    half = len(ordered) // 2
    return float(ordered[half]) if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def tail(ordered: Sequence[int]) -> float:
    """Mean of the upper half of sorted values, the middle one included when their number is odd."""
    upper = ordered[len(ordered) // 2 :]
    return sum(upper) / len(upper)
