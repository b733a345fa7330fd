"""Scenes of stragglers played through the core, and how well they were judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rankwatch.wire.policy import Policy
from rankwatch.wire.vocabulary import StragglerVerdict
from rankwatch_monitor.core.state import Job
from rankwatch_monitor.overall import Overall, overall
from rankwatch_monitor.scenes.straggler_steps import START, Scene
from rankwatch_monitor.scenes.stragglers import Plan
from rankwatch_monitor.window_play import UNWATCHED, play


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one scene was judged."""

    blamed: frozenset[int]
    """Every rank that was ever called a straggler."""
    right: frozenset[int]
    missed: frozenset[int]
    alarms: int
    """Ranks that were called stragglers and are none, each time that it began."""
    latency: int | None
    """Windows from the first slow one to when the first right rank was named; None: it was not, or there is none."""
    last_latency: int | None
    """The same for the last of the right ranks, where all were named."""
    cause_right: bool | None
    """None: there is none to be named, or nobody was."""
    verdict: StragglerVerdict
    """Over the whole scene."""
    verdict_right: bool
    node_or_job_right: bool
    """Rightly somebody, or rightly nobody, was blamed."""
    seconds: float
    """Longest time that one judgement took."""
    said: str


def judged(plan: Plan, policy: Mapping[str, Any] | None = None) -> Outcome:
    """Play a plan and compare what was said with its answer."""
    answer, fault = plan.answer(), plan.fault
    job = Job(plan.job_id, START, policy=Policy().changed({**UNWATCHED, **(policy or {})}))
    named: dict[int, int] = {}
    seen: dict[str, int] = {}
    causes: set[bool] = set()
    slowest = 0.0
    for window, _ in enumerate(play(Scene(plan).windows(), job)):
        told = job.performance.told
        slowest = max(slowest, told.scores.seconds if told.scores is not None else 0.0)
        for straggler in told.stragglers:
            seen.setdefault(straggler.id, straggler.rank)
            named.setdefault(straggler.rank, window)
            if straggler.rank in answer.ranks and straggler.open:
                causes.add(straggler.cause == answer.cause)
    whole: Overall = overall(job.performance)
    right = frozenset(named) & answer.ranks
    since = 0 if fault is None else fault.since
    blamed = frozenset(named)
    return Outcome(
        blamed=blamed,
        right=right,
        missed=answer.ranks - blamed,
        alarms=sum(rank not in answer.ranks for rank in seen.values()),
        latency=min((named[rank] - since + 1 for rank in right), default=None),
        last_latency=max((named[r] - since + 1 for r in right), default=None) if right == answer.ranks else None,
        cause_right=None if not causes or answer.cause is None else causes == {True},
        verdict=whole.verdict,
        verdict_right=whole.verdict is answer.verdict
        or (answer.or_healthy and whole.verdict is StragglerVerdict.HEALTHY),
        node_or_job_right=bool(answer.ranks) == bool(blamed),
        seconds=slowest,
        said=whole.reason,
    )
