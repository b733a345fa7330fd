"""Plays straggler scenes through the core and compares the verdicts with the expected ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rankwatch.contract.enums import StragglerVerdict
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.replay.player import NO_HANG_DETECTION, play_windows
from rankwatch_monitor.replay.summary import summarize
from support.simulator.straggler_plan import StragglerPlan
from support.simulator.straggler_scene import START, StragglerScene


@dataclass(frozen=True, slots=True)
class StragglerOutcome:
    """The verdicts of one scene compared with the expected ones."""

    blamed: frozenset[int]
    """Every rank that was ever named a straggler."""
    right: frozenset[int]
    missed: frozenset[int]
    alarms: int
    """False stragglers, counted each time one begins."""
    latencies: tuple[int, ...]
    """Windows from the first slow one until each right rank was named, inclusive."""
    cause_right: bool | None
    """Whether all rightly named ranks have the right cause, as of their last slow window; None: none was named."""
    verdict: StragglerVerdict
    """Over the whole scene."""
    verdict_right: bool
    node_or_job_right: bool
    """Whether a rank was blamed exactly when one is at fault."""
    reason: str


def evaluate(plan: StragglerPlan, policy: Mapping[str, Any] | None = None) -> StragglerOutcome:
    """Play a plan and compare the verdicts with the expected ones."""
    answer, fault = plan.answer(), plan.fault
    job = Job(plan.job_id, START, policy=Policy().changed({**NO_HANG_DETECTION, **(policy or {})}))
    since = 0 if fault is None else fault.since
    named: dict[int, int] = {}
    alarms: set[str] = set()
    wrongly: set[int] = set()
    causes: dict[int, bool] = {}
    for window, _ in enumerate(play_windows(StragglerScene(plan).windows(), job)):
        performance = job.performance
        for straggler in performance.stragglers:
            rank = straggler.rank
            if rank not in answer.ranks or (window < since and rank not in named):
                alarms.add(straggler.id)
                wrongly.add(rank)
            elif straggler.id not in alarms:
                named.setdefault(rank, window)
                if straggler.open:
                    causes[rank] = straggler.cause == answer.cause
    whole = summarize(job.performance)
    right = frozenset(named)
    return StragglerOutcome(
        blamed=right | wrongly,
        right=right,
        missed=answer.ranks - right,
        alarms=len(alarms),
        latencies=tuple(window - since + 1 for window in named.values()),
        cause_right=None if not causes or answer.cause is None else all(causes.values()),
        verdict=whole.verdict,
        verdict_right=whole.verdict is answer.verdict
        or (answer.or_healthy and whole.verdict is StragglerVerdict.HEALTHY),
        node_or_job_right=bool(answer.ranks) == bool(right | wrongly),
        reason=whole.reason,
    )
