"""What a rank tells of its speed: windows, sampled steps, kernels, CPU time and its device, put together.

How this works
--------------
Each report calls :meth:`Profiling.mark` before the finished sections are collected and :meth:`Profiling.take` after.
Windows that were closed wait in order until the sample of the step that closed them has been read, or until it is
clear that there is none; :meth:`Profiling.next` hands them out, one for each export. All of this is done on the
exporter's thread, which imports it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from rankwatch.cpu import CpuClock
from rankwatch.kernels.sampler import Recording
from rankwatch.kernels.sampling import Pace, Sampling
from rankwatch.kernels.source import Interval
from rankwatch.kernels.statistics import CollectiveStatistics, KernelStatistics
from rankwatch.nvml import Devices
from rankwatch.profiling_plan import handed_down, of_settings
from rankwatch.recorder import Recorder
from rankwatch.settings import Settings
from rankwatch.slots import FIRST_ITERATION, ITERATION
from rankwatch.windows import WARM_UP_STEPS, Run, Window, Windows
from rankwatch.wire import names
from rankwatch.wire.names import Metric
from rankwatch.wire.vocabulary import Part

DEVICES_SECONDS: Final = 10.0
MAX_WAITING: Final = 8
"""Windows that wait to be told; more are closed between two exports only by strides far below a second."""
MAX_DATA: Final = 4096
"""Sections in which the rank waited for input that are remembered until their step's sample is read."""
MAX_SAID: Final = 100

DROP_WINDOWS: Final = "windows"
DROP_RUNS: Final = "window_runs"
DROP_PROFILING: Final = "profiling_error"

Points = Sequence[tuple[float | int, Mapping[str, str]]]

_log = logging.getLogger("rankwatch")


class Mark(NamedTuple):
    """What was so before the finished sections were collected."""

    completed: int | None
    first: int | None
    counts_steps: bool
    recording: Recording | None


@dataclass(frozen=True, slots=True)
class Speed:
    """What is told of a rank's speed in one export; what is not in it is not told."""

    window: Window | None = None
    parts: Mapping[Part, float] = field(default_factory=dict)
    collectives: Mapping[str, CollectiveStatistics] = field(default_factory=dict)
    cpu: tuple[float, float] | None = None
    """Seconds used and waited for each step of the window."""
    kernels: Mapping[str, KernelStatistics] = field(default_factory=dict)
    source: tuple[str, str] | None = None
    """Where kernel timings come from, and why not from elsewhere."""
    devices: Mapping[Metric, Points] = field(default_factory=dict)


class _Waiting(NamedTuple):
    window: Window
    cpu: tuple[float, float] | None


class Profiling:
    """What the exporter asks for everything about speed; three methods say that they are called on other threads."""

    def __init__(self, recorder: Recorder, settings: Settings) -> None:
        self._recorder = recorder
        self._settings = settings
        self._own = self._plan = of_settings(settings)
        self._said: set[str] = set()
        self._windows = Windows(self._plan.told_stride)
        self._sampling = Sampling(recorder, settings, self._say)
        self._waiting: deque[_Waiting] = deque()
        self._data: deque[Interval] = deque(maxlen=MAX_DATA)
        self._cpu = CpuClock()
        self._devices = Devices(settings.local_rank)
        self._devices_due = 0.0
        self._ending = self._closing = False

    def configure(self, handed: Mapping[str, Any]) -> None:
        """Take what the launcher handed down; on the pulse's thread."""
        self._plan, problems = handed_down(self._own, handed)
        for problem in problems:
            self._say(problem)

    def before_fork(self) -> None:
        """End a window of this thread, for the child would record it on and on; on the thread that forks."""
        if self._sampling.sampler is not None:
            self._sampling.sampler.interrupt()

    def stop(self) -> None:
        """Sample nothing any more; on the thread that shuts down. The last report tells the last windows."""
        self._closing = True
        if self._sampling.sampler is not None:
            self._sampling.sampler.set(None)
            self._sampling.sampler.order_end()

    def mark(self) -> Mark:
        """Look, before the finished sections are collected, what they will surely hold."""
        words, sampler = self._recorder.words, self._sampling.sampler
        completed, first = words[ITERATION], words[FIRST_ITERATION]
        return Mark(
            completed - 1 if completed else None,
            first - 1 if first else None,
            names.STEP_SECTION in self._recorder.ids,
            sampler.collect() if sampler is not None else None,
        )

    def take(self, mark: Mark, runs: Iterable[Run], now: float, *, ending: bool = False) -> None:
        """Take in what was finished since the last call; ``now`` in seconds on the monotonic clock. Never raises."""
        self._ending = ending
        try:
            self._take(mark, list(runs), now)
        except Exception:  # noqa: BLE001 - what is told of hangs must go out, whatever happens here
            self._failed()

    def next(self, now: float) -> Speed:
        """What is to be told in the next export. Never raises."""
        try:
            return self._next(now)
        except Exception:  # noqa: BLE001 - as above
            self._failed()
            return Speed()

    def more(self) -> bool:
        """Whether another window can be told at once."""
        if not self._waiting:
            return False
        iteration = self._waiting[0].window.iteration
        return iteration is None or self._ending or not self._sampling.awaits(iteration)

    def _take(self, mark: Mark, runs: list[Run], now: float) -> None:
        self._data.extend((r.end_ns - r.duration_ns, r.end_ns) for r in runs if r.section in names.DATA_SECTIONS)
        self._windows.tell(self._plan.told_stride)
        closed = self._windows.take(
            runs, completed=mark.completed, first=mark.first, counts_steps=mark.counts_steps, now=now
        )
        warm = (
            mark.first is not None and mark.completed is not None and mark.completed + 1 >= mark.first + WARM_UP_STEPS
        )
        cpu = self._cpu_time(sum(window.steps for window in closed), warm=warm)
        for window in closed:
            self._recorder.drop(DROP_RUNS, window.beyond)
            self._waiting.append(_Waiting(window, cpu))
        while len(self._waiting) > MAX_WAITING:
            self._waiting.popleft()
            self._recorder.drop(DROP_WINDOWS)
        self._sample(mark, warm=warm)

    def _sample(self, mark: Mark, *, warm: bool) -> None:
        not_before = mark.first + WARM_UP_STEPS if warm and mark.first is not None else None
        pace = Pace(self._windows.stride, self._windows.step_seconds, not_before)
        if mark.recording is not None:
            self._sampling.read(mark.recording, self._data, self._plan, pace)
        self._sampling.steer(self._plan, pace, closing=self._closing or self._ending)

    def _next(self, now: float) -> Speed:
        devices = self._read_devices(now)
        if not self.more():
            return Speed(devices=devices)
        waiting, sampling = self._waiting.popleft(), self._sampling
        iteration = waiting.window.iteration
        sampled = sampling.result(iteration) if iteration is not None else None
        kernels = sampling.report(now, self._plan.report_interval, ending=self._ending)
        return Speed(
            waiting.window,
            sampled.parts if sampled else {},
            sampled.collectives if sampled else {},
            waiting.cpu,
            kernels,
            sampling.told,
            devices,
        )

    def _cpu_time(self, steps: int, *, warm: bool) -> tuple[float, float] | None:
        if not warm:
            self._cpu.per_step(1)  # what was used so far belongs to no window
            return None
        return self._cpu.per_step(steps) if steps else None

    def _read_devices(self, now: float) -> Mapping[Metric, Points]:
        if now < self._devices_due:
            return {}
        self._devices_due = now + DEVICES_SECONDS
        return self._devices.read() or {}

    def _failed(self) -> None:
        if not self._recorder.dropped.get(DROP_PROFILING):
            _log.warning(
                "what is known of this rank's speed could not be told; more of this is only counted", exc_info=True
            )
        self._recorder.drop(DROP_PROFILING)

    def _say(self, words: str) -> None:
        if words not in self._said and len(self._said) < MAX_SAID:
            self._said.add(words)
            _log.warning("%s", words)
