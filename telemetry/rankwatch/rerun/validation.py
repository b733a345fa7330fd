"""What one rank finds: a result is rejected, looked at once more in a re-run, and a verdict is told."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rankwatch.rerun import agreement, comparison, device, words
from rankwatch.rerun.device import Device
from rankwatch.rerun.injection import RerunErrorInjector
from rankwatch.rerun.telling import tell
from rankwatch.rerun.tracker import Tracker
from rankwatch.rerun.verdicts import Kind, RerunState, RerunValidationStatus, Verdict, Wish, judge, not_repeated

_log = logging.getLogger("rankwatch")


class ResultRejectedError(RuntimeError):
    """A fatal result was rejected while nothing is run again (mode ``disabled``)."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A result that a rank rejected."""

    message: str
    number: int
    """Which of the step's validations with this message it was, from 1."""
    step: int
    value: Any
    fatal: bool
    rank: int
    device: Device
    """The device that computed it."""

    @property
    def call(self) -> tuple[str, int]:
        """What tells this validation from the step's other ones."""
        return self.message, self.number


class Validation:
    """One rank's findings in a step; ``device_name`` goes before the device's own."""

    def __init__(self, injector: RerunErrorInjector, tracker: Tracker | None, device_name: str | None) -> None:
        self.injector = injector
        self.rejection: Rejection | None = None
        self.verdict: Verdict | None = None
        self._tracker, self._device_name = tracker, device_name

    @property
    def unsettled(self) -> Rejection | None:
        """The rejection, if another device has yet to tell; what is settled must not be judged a second time."""
        settled = self.verdict is not None and self.verdict.kind not in (Kind.REPRODUCIBLE, Kind.SAME_DEVICE)
        return None if settled else self.rejection

    def begin(self) -> None:
        """A new step begins: nothing is rejected yet."""
        self.rejection = self.verdict = None
        self.injector.settled()

    def look(
        self, call: tuple[str, int], step: int, result: Any, rejection_func: Callable[[Any], Any], fatal: bool
    ) -> None:
        """A result of the first run: reject it, or not. The first rejected one is looked into, a fatal one before."""
        message, number = call
        rank = agreement.rank()
        wrong = comparison.truth(rejection_func(result), message)  # in any case: it may count samples
        if self.rejection is not None:
            if self.rejection.fatal or not (fatal and wrong):
                return
            self.injector.settled()  # what was to be played is not looked into any more
        elif not (self.injector.maybe_inject(rank, step) or wrong):
            return
        value = comparison.kept(result)
        self.rejection = Rejection(message, number, step, value, fatal, rank, device.here(self._device_name))
        self._note(RerunValidationStatus.INITIAL_RUN, step, result, message)
        _log.error("%s", words.rejected(self._scene(self.rejection)))

    def compare(
        self,
        state: RerunState,
        call: tuple[str, int],
        result: Any,
        comparison_func: Callable[[Any, Any], float] | None,
        tolerance: float,
        fatal: bool,
    ) -> None:
        """A result of a re-run: where it is the rejected one once more, come to a verdict."""
        rejection = self.rejection
        if rejection is None or call != rejection.call or self.verdict is not None:
            return
        difference = self.injector.pretended(state)
        if difference is None:
            difference = comparison.difference(rejection.value, result, comparison_func)
        same = rejection.device.is_same(device.here(self._device_name))
        verdict = judge(state, differs=difference > tolerance, same_device=same, fatal=fatal)
        self._tell(rejection, verdict, comparison.shown(result))
        if verdict.status is not None:
            self._note(verdict.status, rejection.step, result, rejection.message)

    def wish(self, state: RerunState) -> Wish:
        """What this rank wants at the end of a run."""
        if self.rejection is None:
            return Wish.GO_ON
        if state is RerunState.INITIAL_RUN:
            return Wish.RERUN
        if self.verdict is None:
            self._tell(self.rejection, not_repeated(fatal=self.rejection.fatal), "")
        assert self.verdict is not None
        return self.verdict.wish

    def refuse(self, step: int, result: Any, rejection_func: Callable[[Any], Any], message: str, fatal: bool) -> None:
        """Look at a result where nothing is run again.

        Raises:
            ResultRejectedError: it is rejected, and fatal.
        """
        if not comparison.truth(rejection_func(result), message):
            return
        self._note(RerunValidationStatus.RERUN_DISABLED, step, result, message)
        here = device.here(self._device_name)
        scene = words.Scene(agreement.rank(), step, message, comparison.shown(result), here, here)
        sentence = words.refused(scene, fatal=fatal)
        tell(sentence)
        if fatal:
            raise ResultRejectedError(sentence)
        _log.warning("%s", sentence)

    def _tell(self, rejection: Rejection, verdict: Verdict, now: str) -> None:
        self.verdict = verdict
        if verdict.wish is not Wish.ELSEWHERE:
            self.injector.settled()
        sentence = words.found(self._scene(rejection), verdict.kind, verdict.wish, now)
        _log.log(logging.WARNING if verdict.wish is Wish.GO_ON else logging.ERROR, "%s", sentence)
        tell(sentence)

    def _scene(self, rejection: Rejection) -> words.Scene:
        here, value = device.here(self._device_name), comparison.shown(rejection.value)
        return words.Scene(rejection.rank, rejection.step, rejection.message, value, rejection.device, here)

    def _note(self, status: RerunValidationStatus, step: int, result: Any, message: str) -> None:
        if self._tracker is not None:
            here = device.here(self._device_name)
            self._tracker.note(status, agreement.rank(), step, here, comparison.shown(result), message)
