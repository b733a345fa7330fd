"""Samples one step in many: starts and stops a source on the training thread, hands the recording to the exporter's.

How this works
--------------
The hot path compares the step's number with ``recorder.boundary`` and calls :meth:`Sampler.at_boundary` when it is
reached: at the entry of the step to be sampled, and at the entry of the one after it, so that loading between the two
is in the sample. Off, the boundary is never reached.

===============  =====================================================================================================
training thread  at_boundary(): start, stop, put the recording in its one place; decide where the next boundary is
exporter's       set() says what to sample and begins anew by a boundary of 0, "look at the next step"; collect() takes
                 the recording out of its place and reads it
any              interrupt(): end a window of this thread and throw it away (the user's profiler, a fork, shutdown)
===============  =====================================================================================================

Only the thread that started a window can end it. One that lasts too long, or that has to end while its thread is
somewhere else, is ended there by a call that the interpreter makes on the main thread between two instructions.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final, NamedTuple

from rankwatch.profiling.source import MAX_EVENTS, Interval, Source, SourceBusy, Trace
from rankwatch.recording.recorder import NEVER, Recorder

DROP_WINDOW: Final = "kernel_window"
"""A window that was to be sampled and was not: its source failed, or made way for the user's profiler or a fork."""
FAILURES: Final = 3
"""Windows in a row that fail before their source is given up."""


class Plan(NamedTuple):
    """What to sample: each step whose number ``every`` divides."""

    source: Source
    every: int


class _Open(NamedTuple):
    """The window that is being recorded."""

    plan: Plan
    iteration: int
    thread: int
    begin: int
    """Nanoseconds since the epoch, once the source had started."""
    begin_monotonic: int
    cost_ns: int


class Recording(NamedTuple):
    """A window that was recorded and not read yet."""

    source: Source
    iteration: int
    raw: Any
    step: Interval
    """In nanoseconds since the epoch."""
    monotonic: Interval
    """The same on the monotonic clock, on which sections are."""
    cost_ns: int
    """What starting and stopping took on the training thread."""


class Sample(NamedTuple):
    """What one sampled step did."""

    iteration: int
    step: Interval
    monotonic: Interval
    trace: Trace
    cost_ns: int
    """What it took altogether, on both threads."""


class Sampler:
    """The sampler of one session."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._plan: Plan | None = None
        self._open: _Open | None = None
        self._recording: Recording | None = None
        self._failures = 0
        self.failure = ""
        """Why the source was given up."""
        recorder.at_boundary = self.at_boundary

    @property
    def plan(self) -> Plan | None:
        """What is sampled."""
        return self._plan

    def set(self, plan: Plan | None) -> None:
        """Sample by ``plan`` from the next step on; None: nothing. On the exporter's thread; cheap to repeat."""
        recorder = self._recorder
        if plan != self._plan:
            if plan is None or self._plan is None or plan.source is not self._plan.source:
                self._failures, self.failure = 0, ""
            self._plan = plan
            recorder.boundary = 0
        elif plan is not None and recorder.boundary > recorder.iteration + plan.every:
            # The training thread stored what it had worked out before the plan was changed, or the numbers went back.
            recorder.boundary = 0

    def at_boundary(self) -> None:
        """Begin or end a window; on the training thread. Never raises."""
        try:
            self._at_boundary(self._recorder.iteration)
        except Exception as error:  # noqa: BLE001 - the boundary to training code; torch may raise what it likes
            self._open = None
            self._recorder.boundary = self._recorder.iteration + 1
            self._failed(error)

    def interrupt(self) -> None:
        """End this thread's window, if it has one, and throw it away. Never raises."""
        window = self._open
        if window is None or window.thread != threading.get_ident():
            return
        self._open = None
        self._recorder.boundary = 0
        try:
            window.plan.source.stop()
        except SourceBusy:  # not at this place in the script: it is tried again, or the next step ends it
            self._open = window
            return
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(error, dropped=0)
        self._recorder.drop(DROP_WINDOW)

    def collect(self) -> Recording | None:
        """The newest recording, to be handed to :meth:`read`; None: there is none."""
        return self._recording

    def read(self, recording: Recording) -> Sample | None:
        """Read a recording, on the exporter's thread, and make room for the next one; None: it could not be read."""
        began = time.thread_time_ns()
        try:
            trace = recording.source.read(recording.raw, MAX_EVENTS)
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(error)
            return None
        finally:
            self._recording = None
        self._failures = 0
        cost = recording.cost_ns + time.thread_time_ns() - began
        return Sample(recording.iteration, recording.step, recording.monotonic, trace, cost)

    def awaits(self, iteration: int) -> bool:
        """Whether the sample of a step may still come."""
        # In this order: the training thread stores the recording before it forgets the window.
        window, recording = self._open, self._recording
        return (window is not None and window.iteration == iteration) or (
            recording is not None and recording.iteration == iteration
        )

    def busy_for(self) -> float:
        """Seconds that the open window has lasted; 0 when there is none."""
        window = self._open
        return (time.monotonic_ns() - window.begin_monotonic) / 1e9 if window is not None else 0.0

    def order_end(self) -> None:
        """Have the open window ended and thrown away soon, on whatever thread this is called."""
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
            if wanted and iteration == window.iteration:  # the same step again, after an exception
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
        self._open = _Open(plan, iteration, threading.get_ident(), time.time_ns(), now, now - began)

    def _end(self, window: _Open) -> None:
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
            self.failure = f"{FAILURES} windows in a row failed: {lines[0][:200] if lines else type(error).__name__}"
            self._plan = None


_to_end: Sampler | None = None
_end_it: Any = None
"""What the interpreter calls; made once and kept for ever, since nobody can say when it is called."""


def _call_on_main_thread(sampler: Sampler) -> None:
    global _to_end, _end_it
    import ctypes

    if _end_it is None:
        _end_it = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_end_now)
    if _to_end is None:
        _to_end = sampler
        if ctypes.pythonapi.Py_AddPendingCall(_end_it, None) != 0:
            _to_end = None  # the interpreter's list is full: it is asked again at the next report


def _end_now(_: int | None) -> int:
    global _to_end
    sampler, _to_end = _to_end, None
    if sampler is not None:
        sampler.interrupt()
    return 0
