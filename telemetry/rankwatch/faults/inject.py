"""Injects faults into this rank. Their notation is in :mod:`rankwatch.faults.spec`.

=====================  ============================================================================================
RANKWATCH_INJECT set   :func:`rankwatch.init` calls :func:`arm`. On the ranks concerned, ``Section.__enter__`` is
                       replaced by one that injects faults that are due; once all are done, it is restored. Other
                       ranks run unmodified code.
after a delay          a thread waits, then injects; faults of the main thread are injected there by a signal
the script itself      may call :func:`maybe_inject` where a fault is to strike: then that place is used
from a program         :func:`simulate`
=====================  ============================================================================================

Each fault strikes once in a process and in the attempt it names, so that a restarted job gets past it.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from rankwatch import settings
from rankwatch.contract.semconv import STEP_SECTION
from rankwatch.faults import spec
from rankwatch.faults.actions import MAIN_THREAD_ONLY, FaultUnavailableError, carry_out
from rankwatch.faults.spec import FIRST_ATTEMPT, FOREVER, Fault, Kind, parse, parse_all
from rankwatch.recording import sections
from rankwatch.recording.recorder import Recorder
from rankwatch.recording.sections import Section
from rankwatch.recording.shared_slots import ATTEMPT, PHASE, PHASE_RUNNING, RANK, WORLD_SIZE
from rankwatch.settings import Settings

__all__ = ["FIRST_ATTEMPT", "FOREVER", "Fault", "Kind", "arm", "maybe_inject", "parse", "parse_all", "simulate"]

_log = logging.getLogger("rankwatch")


class Plan:
    """The faults that are meant for this rank in this attempt, and which of them wait to strike."""

    def __init__(self, text: str, rank: int, attempt: int, world_size: int, job_id: str) -> None:
        self.identity = (text, rank, attempt)
        self._job = (world_size, job_id)
        self._waiting: dict[int, Fault] = {}
        self._count = 0
        self._called_for: set[str | None] = set()
        """Sections (None: none) with which the script has called maybe_inject(): there it decides."""
        for fault in parse_all(text):
            self.add(fault)

    def add(self, fault: Fault) -> tuple[int, Fault] | None:
        """Take in one more fault; return its place and what it is when all is drawn, or None if it is not for here."""
        place, self._count = self._count, self._count + 1
        world_size, job_id = self._job
        settled = fault.settled(world_size=world_size, job_id=job_id, index=place)
        _, rank, attempt = self.identity
        if rank == 0 and settled.rank is not None and settled.rank >= world_size:
            _log.warning("there is no rank %d among %d to inject a fault into", settled.rank, world_size)
        if not settled.concerns(rank=rank, attempt=attempt):
            return None
        self._waiting[place] = settled
        return place, settled

    def waiting(self) -> list[tuple[int, Fault]]:
        """The faults that have not struck yet, by their places. One that slows is never done."""
        return list(self._waiting.items())

    def wants_entering(self) -> bool:
        """Whether one of them waits for a section to be entered."""
        return any(fault.delay is None or fault.kind is Kind.SLOW for _, fault in self.waiting())

    def called(self, step: int, section: str | None) -> None:
        """The script is at a place that it chose itself."""
        self._called_for.add(section)
        for place, fault in self.waiting():
            if fault.is_due(step, section):
                self.strike(place, fault)

    def entered(self, name: str, step: int) -> None:
        """A section was entered."""
        for place, fault in self.waiting():
            # The section "step" is where faults strike that name none.
            here = None if name == STEP_SECTION and fault.section is None else name
            if fault.section not in self._called_for and fault.is_due(step, here):
                self.strike(place, fault)

    def begin_to_slow(self, place: int) -> None:
        """The delay of a slow rank is over: from the next step on it slows."""
        if (fault := self._waiting.get(place)) is not None:
            self._waiting[place] = replace(fault, delay=None, step=0)

    def strike(self, place: int, fault: Fault) -> None:
        """Strike, unless another thread has done so.

        Raises:
            FaultUnavailableError: it cannot be done here.
        """
        if fault.kind is not Kind.SLOW:
            if self._waiting.pop(place, None) is None:  # in one bytecode, so for one thread only
                return
            _log.warning("injecting a fault on purpose: %s", fault)
        carry_out(fault)


_plan: Plan | None = None
_plain_enter: Final[Callable[[Section], Section]] = Section.__enter__


def arm(loaded: Settings, recorder: Recorder) -> None:
    """Have the faults of RANKWATCH_INJECT strike this rank. For :func:`rankwatch.init`.

    Never raises: errors are logged, and no fault is injected.
    """
    try:
        plan = _the_plan(loaded.inject or "", loaded)
        for place, fault in plan.waiting():
            if loaded.slots_dir is None:  # else the launcher has said so, once for all ranks
                _log.warning("a fault will be injected on purpose: %s", fault)
            if fault.delay is not None:
                _after_delay(plan, place, fault, recorder, loaded.stack_signal)
        _strike_on_entering(plan)
    except ValueError as error:
        _log.error("no fault is injected: %s: %s", spec.VARIABLE, error)


def maybe_inject(step: int, section: str | None = None) -> None:
    """Strike here, if a fault of RANKWATCH_INJECT is meant for this step. Needless where ``rankwatch.step()`` is used.

    A script that calls this in every step, within a section with its name, decides itself where in the step a fault
    strikes. ``step`` is the 0-based index of the step being run. Costs next to nothing where no fault is asked for.

    Raises:
        ValueError: RANKWATCH_INJECT cannot be read. A demonstration without its fault would be a false one.
        rankwatch.faults.actions.InjectedFaultError: the fault of kind ``exception``.
        rankwatch.faults.actions.FaultUnavailableError: the fault cannot be done in this process.
    """
    plan = _plan
    if plan is None:
        loaded, _ = settings.load()
        plan = _the_plan(loaded.inject or "", loaded)
    plan.called(step, section)


def simulate(
    kind: str,
    *,
    rank: int | str = "random",
    step: int | None = None,
    section: str | None = None,
    delay: float | None = None,
    attempt: int | str = FIRST_ATTEMPT,
    seconds: float | None = None,
    factor: float | None = None,
    code: int | None = None,
    seed: int | None = None,
) -> None:
    """Have a fault strike, as RANKWATCH_INJECT does. To be called on all ranks alike, after :func:`rankwatch.init`.

    Without ``step``, ``section`` and ``delay`` it strikes at once. ``delay`` is in seconds from this call, and becomes
    up to 20 % longer; ``rank`` may be ``"random"`` and ``attempt`` may be ``"any"``. The other ranks do nothing.

    Raises:
        ValueError: a part is invalid, or the parts contradict each other.
        rankwatch.faults.actions.FaultUnavailableError: it strikes at once and cannot be done in this process.
    """
    given = {
        "kind": kind,
        "rank": rank,
        "step": step,
        "section": section,
        "delay": delay,
        "attempt": attempt,
        "seconds": seconds,
        "factor": factor,
        "code": code,
        "seed": seed,
    }
    fault = spec.of({name: value for name, value in given.items() if value is not None})
    loaded, _ = settings.load()
    recorder = sections.attached()
    plan = _the_plan(loaded.inject or "", loaded, recorder)
    if (mine := plan.add(fault)) is None:
        return
    place, fault = mine
    if delay is not None:
        _after_delay(plan, place, fault, recorder, loaded.stack_signal)
    elif step is None and section is None:
        plan.strike(place, fault)
    _strike_on_entering(plan)


def _the_plan(text: str, loaded: Settings, recorder: Recorder | None = None) -> Plan:
    """The plan of this process in this attempt; a restarted session keeps it."""
    global _plan
    rank, world_size, attempt = loaded.rank, loaded.world_size, loaded.attempt
    if recorder is not None:  # arguments of init() take precedence over the environment
        words = recorder.words
        rank, world_size, attempt = words[RANK], words[WORLD_SIZE], words[ATTEMPT]
    if _plan is None or _plan.identity != (text, rank, attempt):
        _plan = Plan(text, rank, attempt, world_size, str(loaded.job_id))
    return _plan


def _strike_on_entering(plan: Plan) -> None:
    """Inject faults that are due on entry to a section; restores the class once all are done."""
    if not plan.wants_entering():
        return

    def entering(self: Section) -> Section:
        _plain_enter(self)
        opened = self._opened
        recorder = opened[0] if opened is not None else None
        if recorder is None:
            return self
        try:
            plan.entered(self._name, recorder.iteration)
        except FaultUnavailableError as error:
            _log.error("%s", error)
        except BaseException:
            # A section that was not entered is not left, either: without this it would stay open for ever.
            self.__exit__(*sys.exc_info())
            raise
        if not plan.wants_entering():
            _put_back()
        return self

    Section.__enter__ = entering  # type: ignore[method-assign]


def _put_back() -> None:
    Section.__enter__ = _plain_enter  # type: ignore[method-assign]


# After a delay ------------------------------------------------------------------------------------------------------


def _after_delay(plan: Plan, place: int, fault: Fault, recorder: Recorder | None, stack_signal: int | None) -> None:
    """Strike after the fault's delay, unless the session is over by then.

    Raises:
        ValueError: the fault must strike the main thread, and this is another one.
    """
    on_main = fault.kind in MAIN_THREAD_ONLY
    number = _main_thread_signal(lambda: plan.strike(place, fault), stack_signal) if on_main else 0
    delay = fault.delay or 0.0

    def wait() -> None:
        time.sleep(delay)
        if recorder is not None and recorder.words[PHASE] != PHASE_RUNNING:
            return
        try:
            if on_main:
                main = threading.main_thread().ident
                assert main is not None
                signal.pthread_kill(main, number)
            elif fault.kind is Kind.SLOW:
                plan.begin_to_slow(place)
            else:
                plan.strike(place, fault)
        except FaultUnavailableError as error:
            _log.error("%s", error)

    threading.Thread(target=wait, name="rankwatch-fault", daemon=True).start()


def _main_thread_signal(action: Callable[[], None], stack_signal: int | None) -> int:
    """Install the action as the handler of an unused signal, which runs it on the main thread between two bytecodes.

    Raises:
        ValueError: this is not the main thread, so no handler can be set.
    """
    for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1):
        if number != stack_signal and signal.getsignal(number) is signal.SIG_DFL:
            break
    else:
        raise ValueError("every real-time signal is in use, and one is needed to strike the main thread")

    def handle(*_: Any) -> None:
        try:
            action()
        except FaultUnavailableError as error:
            _log.error("%s", error)

    signal.signal(number, handle)
    signal.siginterrupt(number, False)  # interrupted calls of C libraries are restarted
    return number
