"""Samples one step in many: starts and stops a source on the training thread, reads it on the exporter thread.

The hot path compares the step's number with ``recorder.boundary`` and calls :meth:`Sampler.at_boundary` when it is
reached: on entry to the sampled step and on entry to the next, so that the sample includes loading between the two.
While sampling is off, the boundary is never reached.

===============  =====================================================================================================
training thread  at_boundary(): start, stop, store the recording; compute the next boundary
exporter thread  set() replaces the plan and sets the boundary to 0, "at the next step"; collect() and read() convert
                 the recording to a sample
any              interrupt(): end this thread's window and discard it (the user's profiler, a fork, shutdown)
===============  =====================================================================================================

Only the thread that started a window can end it. A window of the main thread that lasts too long, or is ended from
another thread, is ended by a pending call, which the interpreter makes on the main thread between two instructions.

:class:`SamplingController` decides on the exporter thread what is sampled and how often:

=========  ===========================================================================================================
enabled    the plan names a source, the rank is profiled, torch is imported and the warm-up is over: the source and
           the sampler are created
changed    another source, or the process has started to use a GPU: the old source is closed once no window is open
disabled   the source is closed once no window is open; the boundary becomes "never" at the next step
failed     :data:`FAILURES` consecutive windows failed: logged once; no retry until sampling is switched off and on
=========  ===========================================================================================================

The cost is kept below ``COST_LIMIT`` of the time by sampling only every 2nd, 4th ... window.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final, NamedTuple

from rankwatch.contract.enums import KernelSource
from rankwatch.contract.semconv import DATA_SECTIONS
from rankwatch.contract.statistics import KernelStatistics
from rankwatch.profiling.cupti import CuptiSource
from rankwatch.profiling.kineto import KinetoSource
from rankwatch.profiling.plan import ProfilingPlan
from rankwatch.profiling.process_groups import with_groups
from rankwatch.profiling.source import MAX_EVENTS, NO_SOURCE, Interval, Sample, Source, SourceBusy, SourceUnavailable
from rankwatch.profiling.statistics import KernelTable, StepParts, step_parts
from rankwatch.profiling.trace import Notify, TraceRequests
from rankwatch.recording.recorder import NEVER, Recorder, SectionRun
from rankwatch.settings import Settings

DROP_WINDOW: Final = "kernel_window"
"""Windows that were not sampled: the source failed, or was stopped for the user's profiler or a fork."""
FAILURES: Final = 3
"""Consecutive failed windows after which a source is closed."""


class SamplePlan(NamedTuple):
    """What to sample: every step whose number is divisible by ``every``."""

    source: Source
    every: int


class _OpenWindow(NamedTuple):
    """The window that is being recorded."""

    plan: SamplePlan
    iteration: int
    thread: int
    begin: int
    """Nanoseconds since the epoch when the source had started."""
    begin_monotonic: int
    cost_ns: int


class Recording(NamedTuple):
    """A recorded window that has not been read."""

    source: Source
    iteration: int
    raw: Any
    step: Interval
    """Nanoseconds since the epoch."""
    monotonic: Interval
    """The same on the monotonic clock, which section runs use."""
    cost_ns: int
    """Time to start and stop the source on the training thread."""


class Sampler:
    """The sampler of one session."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._plan: SamplePlan | None = None
        self._open: _OpenWindow | None = None
        self._recording: Recording | None = None
        self._failures = 0
        self.failure = ""
        """Why the source was closed; empty: it was not."""
        recorder.at_boundary = self.at_boundary

    def set(self, plan: SamplePlan | None) -> None:
        """Sample by ``plan`` from the next step on; None: stop. On the exporter thread; idempotent."""
        recorder = self._recorder
        if plan != self._plan:
            if plan is None or self._plan is None or plan.source is not self._plan.source:
                self._failures, self.failure = 0, ""
            self._plan = plan
            recorder.boundary = 0
        elif plan is not None and recorder.boundary > recorder.iteration + plan.every:
            # The training thread stored a boundary of the previous plan, or the step numbers went back.
            recorder.boundary = 0

    def at_boundary(self) -> None:
        """Start or end a window; on the training thread. Never raises."""
        try:
            self._at_boundary(self._recorder.iteration)
        except Exception as error:  # noqa: BLE001 - boundary to training code; torch can raise anything
            self._open = None
            self._recorder.boundary = self._recorder.iteration + 1
            self._failed(error)

    def interrupt(self) -> None:
        """End and discard this thread's window, if one is open. Never raises."""
        window = self._open
        if window is None or window.thread != threading.get_ident():
            return
        self._open = None
        self._recorder.boundary = 0
        try:
            window.plan.source.stop()
        except SourceBusy:  # not possible here: it is retried, or the next step ends it
            self._open = window
            return
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(error, dropped=0)
        self._recorder.drop(DROP_WINDOW)

    def collect(self) -> Recording | None:
        """The recording to pass to :meth:`read`; None: there is none."""
        return self._recording

    def read(self, recording: Recording) -> Sample | None:
        """Convert a recording to a sample, so that the next window can be recorded; None: it cannot be read."""
        began = time.thread_time_ns()
        try:
            trace = with_groups(recording.source.read(recording.raw, MAX_EVENTS), recording.step)
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(error)
            return None
        finally:
            self._recording = None
        self._failures = 0
        cost = recording.cost_ns + time.thread_time_ns() - began
        return Sample(recording.iteration, recording.step, recording.monotonic, trace, cost)

    def awaits(self, iteration: int) -> bool:
        """Whether the sample of a step is still expected."""
        # In this order, because the training thread stores the recording before it clears the window.
        window, recording = self._open, self._recording
        return (window is not None and window.iteration == iteration) or (
            recording is not None and recording.iteration == iteration
        )

    def busy_for(self) -> float:
        """Duration of the open window in seconds; 0: none is open."""
        window = self._open
        return (time.monotonic_ns() - window.begin_monotonic) / 1e9 if window is not None else 0.0

    def request_end(self) -> None:
        """End and discard the open window soon; on any thread."""
        window = self._open
        if window is None:
            return
        self._recorder.boundary = 0
        if window.thread == threading.get_ident():
            self.interrupt()
        elif window.thread == threading.main_thread().ident:
            _call_on_main_thread(self)

    def _at_boundary(self, iteration: int) -> None:
        recorder, window, plan = self._recorder, self._open, self._plan
        if window is not None:
            if window.thread != threading.get_ident():
                return
            wanted = plan is not None and plan.source is window.plan.source
            if wanted and iteration == window.iteration:  # the step is repeated, after an exception
                recorder.boundary = iteration + 1
                return
            if wanted and iteration > window.iteration:
                self._end(window)
            else:
                self.interrupt()
        if plan is None:
            recorder.boundary = NEVER
            return
        if iteration % plan.every or self._recording is not None:
            recorder.boundary = (iteration // plan.every + 1) * plan.every
            return
        recorder.boundary = iteration + 1
        began = time.monotonic_ns()
        try:
            plan.source.start()
        except SourceBusy:
            recorder.drop(DROP_WINDOW)
            return
        now = time.monotonic_ns()
        self._open = _OpenWindow(plan, iteration, threading.get_ident(), time.time_ns(), now, now - began)

    def _end(self, window: _OpenWindow) -> None:
        end, monotonic = time.time_ns(), time.monotonic_ns()
        raw = window.plan.source.stop()
        cost = window.cost_ns + time.monotonic_ns() - monotonic
        self._recording = Recording(
            window.plan.source,
            window.iteration,
            raw,
            (window.begin, max(end, window.begin + 1)),
            (window.begin_monotonic, monotonic),
            cost,
        )
        self._open = None

    def _failed(self, error: Exception, dropped: int = 1) -> None:
        self._recorder.drop(DROP_WINDOW, dropped)
        self._failures += 1
        if self._failures >= FAILURES:
            lines = str(error).strip().splitlines()
            self.failure = f"{FAILURES} consecutive windows failed: {lines[0][:200] if lines else type(error).__name__}"
            self._plan = None


_pending_sampler: Sampler | None = None
_pending_call: Any = None
"""The pending call; never freed, since the interpreter may call it at any time."""


def _call_on_main_thread(sampler: Sampler) -> None:
    global _pending_sampler, _pending_call
    import ctypes

    if _pending_call is None:
        _pending_call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_end_pending)
    if _pending_sampler is None:
        _pending_sampler = sampler
        if ctypes.pythonapi.Py_AddPendingCall(_pending_call, None) != 0:
            _pending_sampler = None  # the interpreter's queue is full: retried at the next report


def _end_pending(_: int | None) -> int:
    global _pending_sampler
    sampler, _pending_sampler = _pending_sampler, None
    if sampler is not None:
        sampler.interrupt()
    return 0


# What is sampled, and how often ---------------------------------------------------------------------------------------

COST_LIMIT: Final = 0.003
"""Largest cost of sampling as a part of the time, on both threads together."""
CHOSEN_COST_LIMIT: Final = 0.03
"""The same where the number of steps in a window is configured, and with it the sampling rate."""
COST_AGAIN: Final = 0.75
"""Part of the limit; sampling becomes more frequent if its cost stays below this."""
MAX_MULTIPLE: Final = 64
"""At least one window in this many is sampled, at any cost: about every 10 minutes."""
SAMPLES_REPORTED: Final = 3
"""Sampled windows that a report of kernels holds at least: the median of fewer is that of one slow step."""
GOLDEN: Final = 0.6180339887
MAX_SAMPLES: Final = 8
COSTS_REMEMBERED: Final = 8
"""Samples whose costs are averaged, since those with shapes cost more than the others."""
LONGEST_SAMPLE: Final = (5.0, 4.0)
"""Longest sample: seconds, plus multiples of the median step time; a longer one is discarded."""

DROP_EVENTS: Final = "kernel_events"
DROP_KERNELS: Final = "kernels"


class ProfiledStep(NamedTuple):
    """A sampled step as it is sent as spans; nanoseconds on the monotonic clock."""

    iteration: int
    begin_ns: int
    runs: Sequence[SectionRun]
    """Its sections."""
    waits: Sequence[Interval]
    """Its exposed communication."""


class StepPace(NamedTuple):
    """Step timing of the process."""

    stride: int
    """Steps in a window; 0: unknown."""
    step_seconds: float
    warm: bool
    """Whether the warm-up is over."""


class SamplingController:
    """Controls the sampling of one session."""

    def __init__(self, recorder: Recorder, settings: Settings, notify: Notify) -> None:
        self._recorder = recorder
        self._settings = settings
        self._notify = notify
        self.sampler: Sampler | None = None
        self._source: Source | None = None
        self._chosen: tuple[KernelSource, bool] | None = None
        """The source that the plan requested, and whether a GPU was in use then."""
        self._reason = "no steps were made yet"
        self._multiple = 1
        self._costs: deque[float] = deque(maxlen=COSTS_REMEMBERED)
        self._table: KernelTable | None = None
        self._sampled = 0
        self._report_due: float | None = None
        self._results: dict[int, StepParts] = {}
        self._profiled: ProfiledStep | None = None
        self._traces = TraceRequests(settings, notify)

    @property
    def source_and_reason(self) -> tuple[str, str]:
        """The source in use, and the reason for that choice."""
        return (self._source.name if self._source is not None else NO_SOURCE), self._reason

    def update(self, plan: ProfilingPlan, pace: StepPace, *, closing: bool = False) -> None:
        """Create, keep or close the source, as plan, process and step timing require."""
        sampler = self.sampler
        if sampler is not None and sampler.busy_for() > LONGEST_SAMPLE[0] + LONGEST_SAMPLE[1] * pace.step_seconds:
            sampler.request_end()
        if self._source is not None and sampler is not None and sampler.failure:
            self._reason = sampler.failure
            self._notify(f"kernel timings are switched off: {sampler.failure}; all else goes on")
            self._release()
            return
        unwanted = self._unwanted(plan)
        if unwanted or (self._chosen is not None and self._source is None):
            self._traces.refuse(plan, unwanted or self._reason)
        torch = torch_in_use()
        choice = None if unwanted or closing or torch is None else (plan.source, uses_gpu(torch))
        if self._chosen is not None and choice != self._chosen:
            if not self._release(keep_results=closing):
                return
            self._chosen = None
        if closing:
            return
        if unwanted or torch is None:
            self._reason = unwanted or "the script has not imported torch"
            return
        if not pace.warm or not pace.stride:
            return
        if self._chosen is None and choice is not None:
            self._chosen = choice
            sampler = self.sampler = self.sampler or Sampler(self._recorder)
            self._source, self._reason = choose_source(plan.source, torch, sampler.interrupt)
            if self._source is None:
                self._notify(f"there are no kernel timings: {self._reason}; all else goes on", of_node=True)
            self._table, self._sampled, self._report_due, self._multiple = KernelTable(), 0, None, 1
        if self._source is not None and sampler is not None:
            # With an open trace request the next window is sampled, at any cost.
            multiple = 1 if self._traces.open(plan) else self._multiple
            sampler.set(SamplePlan(self._source, pace.stride * multiple))

    def read(self, recording: Recording, sections: Sequence[SectionRun], plan: ProfilingPlan, pace: StepPace) -> None:
        """Read a recording; ``sections`` finished recently, in nanoseconds on the monotonic clock."""
        sample = self.sampler.read(recording) if self.sampler is not None else None
        if sample is None or self._table is None:
            return
        began = time.thread_time_ns()
        trace = sample.trace
        self._recorder.drop(DROP_EVENTS, trace.truncated)
        self._recorder.drop(DROP_KERNELS, self._table.take(trace.kernels))
        # Both clocks were read together when the window began.
        shift = sample.step[0] - sample.monotonic[0]
        begin, end = sample.monotonic
        within = [
            (run.section, run.start_ns + shift, run.end_ns + shift)
            for run in sections
            if run.end_ns > begin and run.start_ns < end
        ]
        if not trace.truncated:
            data = [(start, stop) for name, start, stop in within if name in DATA_SECTIONS]
            result = self._results[sample.iteration] = step_parts(trace, sample.step, data)
            self._profiled = ProfiledStep(
                sample.iteration,
                begin,
                [run for run in sections if run.iteration == sample.iteration],
                [(start - shift, stop - shift) for start, stop in result.waits],
            )
            while len(self._results) > MAX_SAMPLES:
                del self._results[next(iter(self._results))]
        self._sampled += 1
        self._adjust_rate((sample.cost_ns + time.thread_time_ns() - began) / 1e9, pace, chosen=plan.interval > 0)
        self._traces.answer(plan, sample, within)

    def awaits(self, iteration: int) -> bool:
        """Whether the sample of a step is still expected."""
        return iteration not in self._results and self.sampler is not None and self.sampler.awaits(iteration)

    def result(self, iteration: int) -> StepParts | None:
        """Remove and return the result of a step; None: it was not sampled."""
        return self._results.pop(iteration, None)

    def take_profiled(self) -> ProfiledStep | None:
        """Remove and return the step sampled last; None: it was returned already."""
        profiled, self._profiled = self._profiled, None
        return profiled

    def report(self, now: float, interval: float, *, ending: bool) -> Mapping[str, KernelStatistics]:
        """The kernels since the last report; empty if none is due or too little was sampled.

        The first report is due early. The second follows after 0.5 to 1.5 intervals, depending on the rank, and the
        others at intervals from there, which spreads the reports of a large job.
        """
        if self._table is None or not (ending or self._sampled >= SAMPLES_REPORTED):
            return {}
        if not ending and self._report_due is not None and now < self._report_due:
            return {}
        kernels = self._table.report()
        if kernels:
            self._sampled = 0
            first = self._report_due is None
            # Multiples of the golden ratio modulo 1 are evenly distributed for any number of ranks (Weyl).
            self._report_due = now + interval * (0.5 + self._settings.rank * GOLDEN % 1 if first else 1.0)
        return kernels

    def _unwanted(self, plan: ProfilingPlan) -> str:
        if plan.source is KernelSource.OFF:
            return "kernel_timings is off"
        if self._settings.rank not in plan.ranks:
            return f"profiled_ranks is {plan.ranks}, which leaves this rank out"
        return ""

    def _release(self, *, keep_results: bool = False) -> bool:
        """Close the source; False: a window is open or unread, so the caller retries."""
        sampler = self.sampler
        if sampler is not None:
            sampler.set(None)
            if sampler.busy_for():
                sampler.request_end()
                return False
            if sampler.collect() is not None:
                return False
        source, self._source = self._source, None
        if not keep_results:
            self._table = None
            self._results.clear()
        if source is not None:
            source.close()
        return True

    def _adjust_rate(self, cost: float, pace: StepPace, *, chosen: bool) -> None:
        """Halve the sampling rate above the cost limit; double it when the cost would stay well below."""
        window = pace.stride * pace.step_seconds
        if window <= 0:
            return
        self._costs.append(cost)
        # Missing samples count as 0, because the first one, with shapes, is expensive.
        part = sum(self._costs) / COSTS_REMEMBERED / (window * self._multiple)
        limit = CHOSEN_COST_LIMIT if chosen else COST_LIMIT
        if part > limit and self._multiple < MAX_MULTIPLE:
            self._multiple *= 2
        elif part * 2 < COST_AGAIN * limit and self._multiple > 1 and len(self._costs) == COSTS_REMEMBERED:
            self._multiple //= 2


# The source -----------------------------------------------------------------------------------------------------------


class SourceChoice(NamedTuple):
    """A source or None, and the reason for that choice."""

    source: Source | None
    reason: str


def torch_in_use() -> ModuleType | None:
    """The script's torch, once its import is complete."""
    torch = sys.modules.get("torch")
    if torch is None or getattr(torch.__spec__, "_initializing", False):
        return None
    return torch


def uses_gpu(torch: ModuleType) -> bool:
    """Whether this process uses a GPU; does not call the driver."""
    return bool(torch.cuda.is_initialized())


def choose_source(wanted: KernelSource, torch: ModuleType, end_window: Callable[[], None]) -> SourceChoice:
    """Create the source for ``wanted``; ``end_window`` ends an open window when the user starts a profiler."""
    gpu = uses_gpu(torch)
    try:
        if wanted is KernelSource.CUPTI or (wanted is KernelSource.AUTO and gpu):
            if not gpu:
                raise SourceUnavailable("cupti needs a GPU, and this process uses none; set kernel_timings=auto")
            return SourceChoice(CuptiSource(), "")
        source = KinetoSource(torch, on_device=gpu, end_window=end_window)
        return SourceChoice(source, "kernel_timings=kineto" if gpu else "this process uses no GPU")
    except SourceUnavailable as error:
        return SourceChoice(None, str(error))
    except Exception as error:  # noqa: BLE001 - boundary to foreign libraries; training continues
        lines = str(error).strip().splitlines()
        return SourceChoice(None, f"it cannot be set up: {lines[0][:200] if lines else type(error).__name__}")
