"""Validation on one rank: rejects results, compares them with those of the re-run, and reports the verdict."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import rankwatch
from rankwatch.contract.enums import NoticeKind
from rankwatch.rerun import collectives, comparison, device, messages
from rankwatch.rerun.device import Device
from rankwatch.rerun.injection import RerunErrorInjector
from rankwatch.rerun.tracker import RejectionTracker
from rankwatch.rerun.verdicts import (
    RankVerdict,
    RerunFinding,
    RerunState,
    RerunValidationStatus,
    Vote,
    judge,
    not_reached,
)

_log = logging.getLogger("rankwatch")


class ResultRejectedError(RuntimeError):
    """A fatal result was rejected in mode ``disabled``, which does not re-run steps."""


@dataclass(frozen=True, slots=True)
class RejectedResult:
    """A result that a rank rejected."""

    message: str
    number: int
    """Number of the validation among those of the step with this message, from 1."""
    step: int
    value: Any
    fatal: bool
    rank: int
    device: Device
    """The device that computed it."""

    @property
    def call(self) -> tuple[str, int]:
        """Key of this validation within the step."""
        return self.message, self.number


class ResultValidator:
    """Validates the results of one rank's step; ``device_name`` overrides the device's own name."""

    def __init__(self, injector: RerunErrorInjector, tracker: RejectionTracker | None, device_name: str | None) -> None:
        self.injector = injector
        self.rejection: RejectedResult | None = None
        self.verdict: RankVerdict | None = None
        self._tracker, self._device_name = tracker, device_name

    @property
    def open_rejection(self) -> RejectedResult | None:
        """The rejection, unless it has a final verdict; only then another device has to decide."""
        final = self.verdict is not None and self.verdict.finding not in (
            RerunFinding.REPRODUCIBLE,
            RerunFinding.SAME_DEVICE,
        )
        return None if final else self.rejection

    def begin(self) -> None:
        """Begin a step, in which nothing is rejected yet."""
        self.rejection = self.verdict = None
        self.injector.clear()

    def check(
        self, call: tuple[str, int], step: int, result: Any, rejection_func: Callable[[Any], Any], fatal: bool
    ) -> None:
        """Check a result of the first run. The first rejected result is investigated; a fatal one takes precedence."""
        message, number = call
        rank = collectives.rank()
        wrong = comparison.to_bool(rejection_func(result), message)  # always called: it may count samples
        if self.rejection is not None:
            if self.rejection.fatal or not (fatal and wrong):
                return
            self.injector.clear()  # a real fatal error replaces the injected one
        elif not (self.injector.maybe_inject(rank, step) or wrong):
            return
        value = comparison.snapshot(result)
        self.rejection = RejectedResult(message, number, step, value, fatal, rank, device.here(self._device_name))
        self._append_to_tracker(RerunValidationStatus.INITIAL_RUN, step, result, message)
        _log.error("%s", messages.rejected(self._context(self.rejection)))

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
        difference = self.injector.simulated_difference(state)
        if difference is None:
            difference = comparison.difference(rejection.value, result, comparison_func)
        same = rejection.device.is_same(device.here(self._device_name))
        verdict = judge(state, differs=difference > tolerance, same_device=same, fatal=fatal)
        self._report(rejection, verdict, comparison.format_result(result))
        if verdict.status is not None:
            self._append_to_tracker(verdict.status, rejection.step, result, rejection.message)

    def vote(self, state: RerunState) -> Vote:
        """Return this rank's vote at the end of a run."""
        if self.rejection is None:
            return Vote.CONTINUE
        if state is RerunState.INITIAL_RUN:
            return Vote.RERUN
        if self.verdict is None:
            self._report(self.rejection, not_reached(fatal=self.rejection.fatal), "")
        assert self.verdict is not None
        return self.verdict.vote

    def check_without_rerun(
        self, step: int, result: Any, rejection_func: Callable[[Any], Any], message: str, fatal: bool
    ) -> None:
        """Check a result in mode ``disabled``.

        Raises:
            ResultRejectedError: it is rejected and fatal.
        """
        if not comparison.to_bool(rejection_func(result), message):
            return
        self._append_to_tracker(RerunValidationStatus.RERUN_DISABLED, step, result, message)
        here = device.here(self._device_name)
        context = messages.RejectionContext(
            collectives.rank(), step, message, comparison.format_result(result), here, here
        )
        text = messages.not_rerun(context, fatal=fatal)
        _notify(text)
        if fatal:
            raise ResultRejectedError(text)
        _log.warning("%s", text)

    def _report(self, rejection: RejectedResult, verdict: RankVerdict, now: str) -> None:
        self.verdict = verdict
        if verdict.vote is not Vote.RESUME_ELSEWHERE:
            self.injector.clear()
        text = messages.verdict(self._context(rejection), verdict.finding, verdict.vote, now)
        _log.log(logging.WARNING if verdict.vote is Vote.CONTINUE else logging.ERROR, "%s", text)
        _notify(text)

    def _context(self, rejection: RejectedResult) -> messages.RejectionContext:
        here, value = device.here(self._device_name), comparison.format_result(rejection.value)
        return messages.RejectionContext(
            rejection.rank, rejection.step, rejection.message, value, rejection.device, here
        )

    def _append_to_tracker(self, status: RerunValidationStatus, step: int, result: Any, message: str) -> None:
        if self._tracker is not None:
            here = device.here(self._device_name)
            self._tracker.append(status, collectives.rank(), step, here, comparison.format_result(result), message)


def _notify(text: str) -> None:
    """Raise an incident, if this rank has a Rankwatch session."""
    if rankwatch.is_initialized():
        rankwatch.tell(NoticeKind.WRONG_RESULT, text)
