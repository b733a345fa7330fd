"""The hot path: sections, steps, heartbeats and progress, as training code calls them.

Each call writes a few integers into the slots (:mod:`rankwatch.recording.shared_slots`); everything more expensive is
done later by other threads. The order of the stores matters to readers in other processes: the time of an entry is
written before its id, and the time of the last close before the id is cleared, so that no reader sees an age that never
existed. A finished run is put into the ring before its entry is cleared, so that this process always finds it in one.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar, cast

from rankwatch.contract.semconv import STEP_SECTION
from rankwatch.recording.recorder import DROP_ARGUMENT, DROP_NAMES, DROP_OPEN, Recorder
from rankwatch.recording.shared_slots import (
    BEATS,
    COMPLETE,
    FINISHED,
    FIRST_TIME,
    ITERATION,
    LAST_BEAT,
    LAST_CLOSED,
    LAST_PROGRESS,
    POLLS_SHOULD_STOP,
    PROGRESS,
    STOP_PREEMPTS,
    STOP_SIGNALLED,
    STOP_STEP,
)

P = ParamSpec("P")
T = TypeVar("T")

_Opened = tuple[Recorder | None, int, int, int, "_Opened | None"]
"""Recorder, section id, word of the entry, time of entering; then what the same object had opened before."""

MAX_WORD = 2**62
"""Larger numbers are rejected; a word holds 63 bits."""

observers: Final[list[Callable[[str], None]]] = []
"""Called with the name of each section that is created; empty but under ``--auto``."""
_recorder: Recorder | None = None
_polling_recorder: Recorder | None = None
"""The recorder whose slots already have POLLS_SHOULD_STOP set: comparing is cheaper than storing it again."""


def attach(recorder: Recorder | None) -> Recorder | None:
    """Record into ``recorder`` from now on; None: nowhere. Return the previous one. For the session only."""
    global _recorder
    before, _recorder = _recorder, recorder
    return before


def attached() -> Recorder | None:
    """The recorder in use, for other modules of this package; None: there is none."""
    return _recorder


class Section:
    """A named stretch of the training loop, usable in ``with`` and as a decorator; made by :func:`section`.

    One object may be entered again while it is open, also on another thread: it keeps what it opened as a linked stack,
    whose top is read and replaced without a call in between, so without a switch of threads (see :class:`.Recorder`).
    """

    __slots__ = ("_name", "_opened")

    def __init__(self, name: str) -> None:
        self._name = name
        self._opened: _Opened | None = None
        if observers:
            for observe in tuple(observers):
                observe(name)

    def __enter__(self) -> Section:
        recorder = _recorder
        if recorder is None:
            # Kept, so that leaving a section entered before init() does not close another one.
            self._opened = (None, 0, 0, 0, self._opened)
            return self
        try:
            section_id = recorder.ids[self._name]
        except (KeyError, TypeError):
            section_id = recorder.section_id(self._name)
        entry = 0
        if section_id:
            try:
                entry = recorder.free.pop()
            except IndexError:
                recorder.drop(DROP_OPEN)
        else:
            recorder.drop(DROP_NAMES)
        now = monotonic_ns()
        self._opened = (recorder, section_id, entry, now, self._opened)
        if entry:
            words = recorder.words
            words[entry + 1] = now
            words[entry] = section_id
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        opened = self._opened
        if opened is None:
            return
        recorder, section_id, entry, entered, self._opened = opened
        if recorder is None:
            return
        now = monotonic_ns()
        words = recorder.words
        if section_id:
            recorder.finished.append((section_id, entered, now, recorder.iteration))
            words[FINISHED] += 1
        words[LAST_CLOSED] = now
        if entry:
            words[entry] = 0
            recorder.free.append(entry)
        words[PROGRESS] += 1
        if section_id > FIRST_TIME and kind is None:  # a run that failed may not have come to what takes its time
            recorder.first_finish(section_id)

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Decorate: the section is open during each call; of a coroutine function, until it returns."""
        import functools
        import inspect

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
                with self._again():
                    return await function(*args, **kwargs)

            return cast(Callable[P, T], awaited)

        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> T:
            with self._again():
                return function(*args, **kwargs)

        return called

    def _again(self) -> Section:
        """A section of its own for each call, so that calls on several threads cannot swap their times."""
        return Section(self._name)


class Step(Section):
    """The section ``step``; left without an exception, it completes an iteration. Made by :func:`step`."""

    __slots__ = ("_iteration",)

    def __init__(self, iteration: int | None = None) -> None:
        super().__init__(STEP_SECTION)
        self._iteration = iteration

    def __enter__(self) -> Section:
        recorder = _recorder
        if recorder is not None:
            if self._iteration is not None:
                recorder.iteration = _whole(self._iteration, recorder, recorder.iteration)
                recorder.numbered = True
            if recorder.iteration >= recorder.boundary:
                recorder.at_boundary()
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        recorder = self._opened[0] if self._opened is not None else None
        super().__exit__(kind, error, trace)
        if recorder is not None and kind is None:
            recorder.complete_step()

    def _again(self) -> Section:
        return Step(self._iteration)


section = Section
"""``section(name)``: a named section of at most 63 bytes of UTF-8; 64 different names and 32 open at once are seen."""


def step(iteration: int | None = None) -> Section:
    """Return the section of one training step: ``with rankwatch.step(): ...``.

    ``iteration`` is the 0-based index of the step being run; without it, the one after the last completed step. A
    step that ends in an exception is closed but not completed.
    """
    return Step(iteration)


def heartbeat() -> None:
    """Record a heartbeat. Ranks that never send one have no heartbeat limit."""
    recorder = _recorder
    if recorder is not None:
        words = recorder.words
        words[LAST_BEAT] = monotonic_ns()
        words[BEATS] += 1


def progress(n: int = 1) -> None:
    """Count progress finer than a step: ``n`` micro-batches, files or tokens. Finished sections count by themselves."""
    recorder = _recorder
    if recorder is not None:
        try:
            words = recorder.words
            words[PROGRESS] += n
            words[LAST_PROGRESS] = monotonic_ns()
        except (TypeError, ValueError):
            recorder.drop(DROP_ARGUMENT)


def should_stop() -> bool:
    """Return whether the agreed stop step has been completed: save, then leave the loop.

    Call it after each step, or after every n-th step on all ranks. It is true *at or past* the agreed step: a stop step
    is only set while no rank has completed it, so all ranks see it at their first call from that step on and stop at
    the same step, however rarely they call. The first call marks the script as one that follows a stop step; a script
    that never calls it is stopped by signals alone.
    """
    recorder = _recorder
    if recorder is None:
        return False
    if recorder is not _polling_recorder:
        _mark_polling(recorder)
    words = recorder.words
    stop = words[STOP_STEP]
    return stop != 0 and words[ITERATION] >= stop


def preempted() -> bool:
    """Return whether a stop step was agreed upon because of a preemption, not by an order."""
    recorder = _recorder
    return recorder is not None and recorder.words[STOP_PREEMPTS] != 0


def request_stop() -> None:
    """Request what the scheduler's signal requests: all ranks save and stop after the same step.

    It stores one number, so a signal handler may call it. Under ``rankwatch run`` :func:`should_stop` is true after the
    step that the launchers agree on; without it, nothing follows.
    """
    recorder = _recorder
    if recorder is not None:
        recorder.words[STOP_SIGNALLED] = monotonic_ns()


def _mark_polling(recorder: Recorder) -> None:
    global _polling_recorder
    _polling_recorder = recorder
    recorder.words[POLLS_SHOULD_STOP] = 1


def mark_complete() -> None:
    """Mark the training as complete, so that no launcher runs this job again.

    Call it after the last checkpoint and before :func:`rankwatch.shutdown`; one rank is enough.
    """
    recorder = _recorder
    if recorder is not None:
        recorder.words[COMPLETE] = 1


def _whole(value: Any, recorder: Recorder, otherwise: int) -> int:
    try:
        number = int(value)
    except Exception:  # noqa: BLE001 - the boundary to training code: a tensor's int() raises what it likes
        number = -1
    if 0 <= number < MAX_WORD:
        return number
    recorder.drop(DROP_ARGUMENT)
    return otherwise
