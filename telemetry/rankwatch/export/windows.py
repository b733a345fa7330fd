"""What a rank's sections took in each window of steps. Pure.

How this works
--------------
A window is closed by a step whose number is divisible by the *stride*, so that all ranks close the same ones without a
word between them. It holds the steps after the window before, up to and including that one. Finished sections carry the
number of their step and come in the order in which they ended, so one open window is all that is kept.

===================  =================================================================================================
stride               the power of two nearest to 10 s of steps, decided after 8 steps of the process (steps of 10 s: 4)
                     and then changed only when it is off by more than a factor of 2: the ranks must stay together
a stride that is     is kept while its windows last long enough to be told one by one; else it is doubled until they do,
told                 so that all ranks still close, and sample, the same ones
first two steps      of a process belong to no window: they compile, load and warm up
numbers that go back open a window anew; those that leap over the closing step, or were lost, close it
the same number      again (micro-batches of one step, a step made again) is one step for the stride
no steps at all      windows of 10 s by the clock, which carry no number; first runs of a section are left out
===================  =================================================================================================
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from rankwatch.contract.intervals import window_seconds
from rankwatch.contract.semconv import STEP_SECTION
from rankwatch.export.section_runs import Run, Runs, SectionStatistics, middle

STEPS_BEFORE_STRIDE: Final = 8
LONG_STEPS: Final = 4
"""So many are enough to decide a stride of 1."""
WARM_UP_STEPS: Final = 2
MAX_STRIDE: Final = 2**20
STEPS_REMEMBERED: Final = 64
"""Ends of steps from which the time of one is taken."""


@dataclass(frozen=True, slots=True)
class Window:
    """A window that was closed."""

    iteration: int | None
    """The step that closed it; None: the process counts no steps."""
    steps: int
    sections: Mapping[str, SectionStatistics] = field(default_factory=dict)
    beyond: int = 0
    """Runs that only count, maximum and mean know of."""


class Windows:
    """The windows of one process.

    ``told`` is the stride that was set by a person or a launcher; 0: find one. ``shortest``: seconds that a window of
    such a stride lasts at least. ``world_size``: ranks of the job; the windows of very many last longer.
    """

    def __init__(self, told: int = 0, shortest: float = 0.0, world_size: int = 1) -> None:
        self._told = told
        self._world_size = world_size
        self._shortest = shortest
        self._times = 1
        """What ``told`` is multiplied with, a power of two."""
        self._found = 0
        self._closes_at: int | None = None
        self._began_after = -1
        """The closing step of the window before; of the first one, -1."""
        self._steps = 0
        self._last = -1
        """The newest step that a run in the open window belongs to."""
        self._runs: dict[str, Runs] = {}
        self._step_ends: deque[int] = deque(maxlen=STEPS_REMEMBERED)
        self._last_step = -1
        self._steps_seen = 0
        self._clock_began: float | None = None

    @property
    def seconds(self) -> float:
        """About how long a window is to last, when nobody has told a stride."""
        return window_seconds(self._world_size)

    @property
    def stride(self) -> int:
        """Steps in a window; 0 while that is not decided."""
        return self._told * self._times or self._found

    @property
    def step_seconds(self) -> float:
        """Median time from the end of one step to the end of the next; 0 while it is not known."""
        gaps = [after - before for before, after in pairwise(self._step_ends)]
        return middle(sorted(gaps)) / 1e9 if gaps else 0.0

    def tell(self, stride: int) -> None:
        """Take a stride from outside; 0: go back to finding one."""
        if stride != self._told:
            self._told, self._times = stride, 1
            self._lengthen()
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
                self._note_step(run)
            if first is None or first <= run.iteration < first + WARM_UP_STEPS:
                continue
            # Other sections may be late: one on another thread can end, and be noted, after the step that closed.
            if run.iteration < self._began_after and run.section == STEP_SECTION:
                self._jump(run.iteration)
            elif self._closes_at is not None and run.iteration > self._closes_at:
                closed.append(self._close(self._closes_at))
            self._add(run)
        if not self._found:
            self._find()
        if self._closes_at is not None and completed == self._closes_at:
            closed.append(self._close(self._closes_at))
        return closed

    def _note_step(self, run: Run) -> None:
        if run.iteration == self._last_step:
            self._step_ends[-1] = run.end_ns
            return
        self._last_step = run.iteration
        self._step_ends.append(run.end_ns)
        self._steps_seen += 1

    def _add(self, run: Run) -> None:
        self._last = max(self._last, run.iteration)
        if self._closes_at is None and self.stride:
            self._reclose()
        if run.section == STEP_SECTION:
            self._steps += 1
        self._runs.setdefault(run.section, Runs()).add(run.duration_ns)

    def _close(self, closing: int) -> Window:
        window = self._made(closing)
        self._forget()
        self._began_after = self._last = closing
        self._find()
        return window

    def _made(self, closing: int | None) -> Window:
        statistics = {name: runs.statistics() for name, runs in self._runs.items()}
        beyond = sum(runs.calls - len(runs.kept) for runs in self._runs.values())
        return Window(closing, self._steps, statistics, beyond)

    def _forget(self) -> None:
        self._runs, self._steps, self._closes_at = {}, 0, None

    def _jump(self, iteration: int) -> None:
        self._forget()
        self._last = iteration
        self._began_after = iteration - 1
        self._step_ends.clear()
        self._last_step = -1

    def _find(self) -> None:
        """Decide the stride, or keep it while it is within a factor of 2 of what it should be."""
        seconds = self.step_seconds
        enough = LONG_STEPS if seconds >= self.seconds else STEPS_BEFORE_STRIDE
        if self._steps_seen < enough or seconds <= 0:
            return
        self._lengthen()
        steps = self.seconds / seconds
        if not self._found or not self._found / 2 <= steps <= self._found * 2:
            self._found = min(MAX_STRIDE, 2 ** max(0, round(math.log2(steps))))
            if not self._told:
                self._reclose()

    def _lengthen(self) -> None:
        """Multiply a stride that was told as often as its windows need; less again once a quarter would do."""
        seconds = self._told * self.step_seconds
        if seconds <= 0 or self._steps_seen < STEPS_BEFORE_STRIDE:
            return
        times = min(MAX_STRIDE, 2 ** max(0, math.ceil(math.log2(max(self._shortest / seconds, 1.0)))))
        if times > self._times or times * 4 <= self._times:
            self._times = times
            self._reclose()

    def _reclose(self) -> None:
        """The open window ends with the next step that the stride divides and that has not been seen yet."""
        stride = self.stride
        if not stride or (not self._runs and self._last < 0):
            self._closes_at = None
            return
        seen = self._last if self._steps == 0 else self._last + 1
        self._closes_at = -(-max(seen, self._began_after + 1) // stride) * stride

    def _by_the_clock(self, runs: Iterable[Run], now: float) -> list[Window]:
        if self._clock_began is None:
            self._clock_began = now
        for run in runs:
            if not run.first:
                self._runs.setdefault(run.section, Runs()).add(run.duration_ns)
        if now - self._clock_began < self.seconds:
            return []
        window = self._made(None)
        self._forget()
        self._clock_began = now
        return [window] if window.sections else []
