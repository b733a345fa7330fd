"""Combines a rank's step windows, sampled steps, kernels, CPU time and device readings for each export.

Each report calls :meth:`Profiling.mark` before the finished sections are collected and :meth:`Profiling.take` after.
A closed window is queued until the sample of its last step has been read, or cannot come any more;
:meth:`Profiling.next` returns one window for each export. All of this runs on the exporter thread, which imports this
module.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from rankwatch.contract import semconv
from rankwatch.contract.enums import Part
from rankwatch.contract.intervals import window_seconds, window_spread
from rankwatch.contract.semconv import Metric
from rankwatch.contract.statistics import CollectiveWindow, KernelStatistics, OperationWindow
from rankwatch.profiling.cpu import CpuClock
from rankwatch.profiling.nvml import Devices
from rankwatch.profiling.plan import of_settings, with_pushed
from rankwatch.profiling.sampler import ProfiledStep, Recording, SamplingController, StepPace
from rankwatch.recording.recorder import Recorder, SectionRun
from rankwatch.recording.section_statistics import WARM_UP_STEPS, StepWindows, Window
from rankwatch.recording.shared_slots import FIRST_ITERATION, ITERATION
from rankwatch.settings import Settings

DEVICES_SECONDS: Final = 10.0
MAX_QUEUED: Final = 8
"""Windows queued for export; only strides far below a second close more of them between two exports."""
MAX_REMEMBERED: Final = 4096
"""Section runs kept until their step's sample is read."""
REPORTS_A_WINDOW: Final = 1.5
"""Export intervals that a window of a configured stride lasts at least; each interval reads one recording."""
MAX_LOGGED: Final = 100

DROP_WINDOWS: Final = "windows"
DROP_RUNS: Final = "window_runs"
DROP_PROFILING: Final = "profiling_error"

Points = Sequence[tuple[float | int, Mapping[str, str]]]

_log = logging.getLogger("rankwatch")


class Mark(NamedTuple):
    """State read before the finished section runs are collected."""

    completed: int | None
    first: int | None
    counts_steps: bool
    recording: Recording | None


@dataclass(frozen=True, slots=True)
class Speed:
    """What one export reports about the rank's speed."""

    window: Window | None = None
    parts: Mapping[Part, float] = field(default_factory=dict)
    collectives: Mapping[str, CollectiveWindow] = field(default_factory=dict)
    operations: Mapping[str, OperationWindow] = field(default_factory=dict)
    cpu: tuple[float, float] | None = None
    """Seconds used and waited for each step of the window."""
    kernels: Mapping[str, KernelStatistics] = field(default_factory=dict)
    source: tuple[str, str] | None = None
    """The source of kernel timings, and the reason for that choice."""
    devices: Mapping[Metric, Points] = field(default_factory=dict)


class _QueuedWindow(NamedTuple):
    window: Window
    cpu: tuple[float, float] | None
    due: float
    """Earliest time of its export, in monotonic seconds."""


class Profiling:
    """Profiling of one session. Methods run on the exporter thread unless they name another."""

    def __init__(self, recorder: Recorder, settings: Settings) -> None:
        self._recorder = recorder
        self._settings = settings
        self._own = self._plan = of_settings(settings)
        self._logged: set[str] = set()
        self._windows = StepWindows(
            self._plan.configured_stride, REPORTS_A_WINDOW * settings.export_interval, settings.world_size
        )
        self._sampling = SamplingController(recorder, settings, self._notify)
        self._queue: deque[_QueuedWindow] = deque()
        self._sections: deque[SectionRun] = deque(maxlen=MAX_REMEMBERED)
        self._warm = False
        self._cpu = CpuClock()
        self._cpu_until = -1
        """The last completed step at the last reading of the CPU clock."""
        self._devices = Devices(settings.local_rank)
        self._devices_due = self._now = 0.0
        self._export_delay = random.uniform(0.0, window_spread(settings.world_size))
        """Delay of this rank's windows in seconds, which spreads the exports of a large job."""
        self._ending = self._closing = False

    def configure(self, pushed: Mapping[str, Any]) -> None:
        """Apply settings pushed by the launcher; on the liveness thread."""
        self._plan, problems = with_pushed(self._own, pushed)
        for problem in problems:
            self._notify(problem, of_node=True)

    def before_fork(self) -> None:
        """End this thread's window, which a child would go on recording; on the thread that forks."""
        if self._sampling.sampler is not None:
            self._sampling.sampler.interrupt()

    def stop(self) -> None:
        """Stop sampling; on the thread that shuts down. The last report contains the last windows."""
        self._closing = True
        if self._sampling.sampler is not None:
            self._sampling.sampler.set(None)
            self._sampling.sampler.request_end()

    def mark(self) -> Mark:
        """Read the state that must precede the collection of finished section runs."""
        words, sampler = self._recorder.words, self._sampling.sampler
        completed, first = words[ITERATION], words[FIRST_ITERATION]
        return Mark(
            completed - 1 if completed else None,
            first - 1 if first else None,
            semconv.STEP_SECTION in self._recorder.ids,
            sampler.collect() if sampler is not None else None,
        )

    def take(self, mark: Mark, runs: Sequence[SectionRun], now: float, *, ending: bool = False) -> None:
        """Add the section runs finished since the last call; ``now`` is monotonic seconds. Never raises."""
        self._ending, self._now = ending, now
        try:
            self._take(mark, runs, now)
        except Exception:  # noqa: BLE001 - thread boundary: a failure must not stop the export of liveness
            self._failed()

    def next(self, now: float) -> Speed:
        """Return the content of the next export. Never raises."""
        try:
            return self._next(now)
        except Exception:  # noqa: BLE001 - as above
            self._failed()
            return Speed()

    def take_profiled(self) -> ProfiledStep | None:
        """Remove and return the step profiled last, for spans; None: there is no new one."""
        return self._sampling.take_profiled()

    def more(self) -> bool:
        """Whether another window is ready for export."""
        if not self._queue:
            return False
        if self._ending:
            return True
        iteration, due = self._queue[0].window.iteration, self._queue[0].due
        return self._now >= due and (iteration is None or not self._sampling.awaits(iteration))

    def _take(self, mark: Mark, runs: Sequence[SectionRun], now: float) -> None:
        self._sections.extend(runs)
        self._windows.configure(self._plan.configured_stride)
        closed = self._windows.add(
            runs, completed=mark.completed, first=mark.first, counts_steps=mark.counts_steps, now=now
        )
        cpu = self._cpu_time(mark, bool(closed))
        self._log_short_interval()
        for window in closed:
            self._recorder.drop(DROP_RUNS, window.runs_not_kept)
            self._queue.append(_QueuedWindow(window, cpu, now + self._export_delay))
        while len(self._queue) > MAX_QUEUED:
            self._queue.popleft()
            self._recorder.drop(DROP_WINDOWS)
        self._sample(mark)

    def _log_short_interval(self) -> None:
        """Log on rank 0 that the configured interval is too short and was increased."""
        stride, plan = self._windows.stride, self._plan
        if self._settings.rank == 0 and not plan.stride and stride > plan.interval > 0:
            self._notify(
                f"profiling_interval={plan.interval} is less than a rank can resolve: of steps this fast, one in "
                f"{stride} is profiled"
            )

    def _sample(self, mark: Mark) -> None:
        pace = StepPace(self._windows.stride, self._windows.step_seconds, self._warm)
        if mark.recording is not None:
            self._sampling.read(mark.recording, self._sections, self._plan, pace)
        self._sampling.update(self._plan, pace, closing=self._closing or self._ending)

    def _next(self, now: float) -> Speed:
        devices = self._read_devices(now)
        if not self.more():
            return Speed(devices=devices)
        queued, sampling = self._queue.popleft(), self._sampling
        iteration = queued.window.iteration
        sampled = sampling.result(iteration) if iteration is not None else None
        kernels = sampling.report(now, self._plan.report_interval, ending=self._ending)
        return Speed(
            queued.window,
            sampled.parts if sampled else {},
            sampled.collectives if sampled else {},
            sampled.operations if sampled else {},
            queued.cpu,
            kernels,
            sampling.source_and_reason,
            devices,
        )

    def _cpu_time(self, mark: Mark, closed: bool) -> tuple[float, float] | None:
        """CPU time per step since the last window; None: not available."""
        if mark.first is None or mark.completed is None or (self._warm and not closed):
            return None
        steps, self._cpu_until = mark.completed - self._cpu_until, mark.completed
        if not self._warm or steps < 1:  # time before the first window, or step numbers went back
            self._warm = self._warm or mark.completed + 1 >= mark.first + WARM_UP_STEPS
            self._cpu.per_step(1)
            return None
        return self._cpu.per_step(steps)

    def _read_devices(self, now: float) -> Mapping[Metric, Points]:
        if now < self._devices_due:
            return {}
        self._devices_due = now + max(DEVICES_SECONDS, window_seconds(self._settings.world_size))
        return self._devices.read() or {}

    def _failed(self) -> None:
        if not self._recorder.dropped.get(DROP_PROFILING):
            _log.warning("profiling failed; further failures are only counted", exc_info=True)
        self._recorder.drop(DROP_PROFILING)

    def _notify(self, message: str, *, of_node: bool = False) -> None:
        if message not in self._logged and len(self._logged) < MAX_LOGGED:
            self._logged.add(message)
            _log.log(logging.DEBUG if of_node and self._settings.local_rank else logging.WARNING, "%s", message)
