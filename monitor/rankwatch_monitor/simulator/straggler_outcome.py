"""Scenes of stragglers played through the core, and how well they were judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rankwatch.contract.enums import StragglerVerdict
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.replay.summary import overall
from rankwatch_monitor.replay.window_player import UNWATCHED, play
from rankwatch_monitor.simulator.straggler_plan import Plan
from rankwatch_monitor.simulator.straggler_scene import START, Scene


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one scene was judged."""

    blamed: frozenset[int]
    """Every rank that was ever called a straggler."""
    right: frozenset[int]
    missed: frozenset[int]
    alarms: int
    """Ranks that were called stragglers and are none, each time that it began."""
    latencies: tuple[int, ...]
    """Of each right rank the windows from the first slow one to when it was named, that one included."""
    cause_right: bool | None
    """Of all rightly named ranks, as of when they were slow last; None: there is none to be named, or nobody was."""
    verdict: StragglerVerdict
    """Over the whole scene."""
    verdict_right: bool
    node_or_job_right: bool
    """Rightly somebody, or rightly nobody, was blamed."""
    said: str


def judged(plan: Plan, policy: Mapping[str, Any] | None = None) -> Outcome:
    """Play a plan and compare what was said with its answer."""
    answer, fault = plan.answer(), plan.fault
    job = Job(plan.job_id, START, policy=Policy().changed({**UNWATCHED, **(policy or {})}))
    since = 0 if fault is None else fault.since
    named: dict[int, int] = {}
    alarms: set[str] = set()
    wrongly: set[int] = set()
    causes: dict[int, bool] = {}
    for window, _ in enumerate(play(Scene(plan).windows(), job)):
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
    whole = overall(job.performance)
    right = frozenset(named)
    return Outcome(
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
        said=whole.reason,
    )
