"""The input of publishers: one job at one moment, as plain data that another thread may keep.

:func:`snapshot` copies from a job on the event loop, so publishers never touch a live job. It is bounded: it
holds the worst ranks, and the newest incidents and stragglers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from rankwatch.contract.enums import JobState
from rankwatch.profiling.source import KINETO_CPU, NO_SOURCE
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.liveness import TERMINAL_STATES
from rankwatch_monitor.core.plain import plain
from rankwatch_monitor.core.ranks import Floats
from rankwatch_monitor.core.straggler.findings import Straggler
from rankwatch_monitor.core.straggler.scores import Scores
from rankwatch_monitor.core.views import downtime, incident_view, job_view, phases, rankings
from rankwatch_monitor.core.views.host_activity import HostActivity
from rankwatch_monitor.core.views.job_verdict import finding

KEPT: Final = 50
"""Incidents, and stragglers, in a snapshot: the newest."""
SECTIONS: Final = 8
"""Sections with scores in a snapshot; each has nine numbers."""


class Spread(NamedTuple):
    """One score over all ranks that have it."""

    min: float
    median: float
    max: float


class WorstRank(NamedTuple):
    """One row of the table of the worst ranks. A score is None if there is nothing to compare with."""

    rank: int
    host: str
    gpu_relative: float | None
    gpu_individual: float | None
    gpu_robust: float | None
    lateness: float | None
    """Seconds per step for which the others wait for it."""
    cause: str
    reason: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One job at one moment; times are unix seconds."""

    at: float
    job_id: str
    name: str
    created_at: float
    state: JobState
    reason: str
    world_size: int
    attempt: int
    restarts: int
    iteration: int | None
    goodput: float | None
    report_interval: float
    policy: Mapping[str, Any]
    verdict: str
    verdict_reason: str
    spreads: Mapping[str, Spread]
    """By name of the score: ``gpu_relative``, ``section/step/robust``; scores that no rank has are omitted."""
    lateness: float | None
    """Of the latest rank, seconds per step."""
    step_seconds: float | None
    """Median over ranks."""
    cost_gpu_hours: float
    worst: tuple[WorstRank, ...]
    stragglers: tuple[Mapping[str, Any], ...]
    """As the API shows them, the oldest first."""
    incidents: tuple[Mapping[str, Any], ...]
    """As the API shows them, with the duration of each phase, the oldest first."""
    steps_per_second: float | None = None
    """0 while no step completes, None while unknown."""
    headline: str = ""
    on_cpu: bool = False
    """Kernel timings are those of torch's operators on the CPU, of all ranks that have some."""

    @property
    def over(self) -> bool:
        """Whether the job has ended, as far as is known."""
        return self.state in TERMINAL_STATES

    @property
    def open_stragglers(self) -> int:
        """Number of ranks that are slow now."""
        return sum(s["ended"] is None for s in self.stragglers)


def snapshot(job: Job, now: float, activity: HostActivity | None = None) -> Snapshot:
    """The job as publishers show it at ``now`` (unix seconds); ``activity``: from which hosts all jobs are heard."""
    performance, found = job.performance, finding(job, now)
    scores = performance.scores
    summary = job_view.summary(job, now, activity)
    return Snapshot(
        at=now,
        job_id=job.id,
        name=job.name,
        created_at=job.created_at,
        state=summary["state"],
        reason=summary["reason"],
        world_size=job.world_size,
        attempt=job.attempt,
        restarts=job.restarts,
        iteration=summary["iteration"],
        goodput=summary["goodput"],
        report_interval=job.policy.report_interval,
        policy=job.policy.to_json(),
        verdict=str(summary["verdict"]),
        verdict_reason=found.reason,
        spreads=_spreads(scores) if scores is not None else {},
        lateness=_lateness(_reduced(np.max, scores.lateness_R)) if scores is not None else None,
        step_seconds=_reduced(np.median, scores.step_R) if scores is not None else None,
        cost_gpu_hours=performance.cost_gpu_hours,
        worst=_worst(job, scores, performance.open_stragglers) if scores is not None else (),
        stragglers=tuple(s.to_json() for s in performance.stragglers[-KEPT:]),
        incidents=tuple(
            plain(incident_view.shown(job, each, now, activity))
            | {f"{name}_s": seconds for name, seconds in phases.durations(job, each, now).items()}
            | {"total_s": downtime.total(job, each)}
            for each in job.incidents[-KEPT:]
        ),
        steps_per_second=summary["iterations_per_second"],
        headline=summary["headline"],
        on_cpu=performance.sources.keys() - {NO_SOURCE} == {KINETO_CPU},
    )


def _spreads(scores: Scores) -> dict[str, Spread]:
    columns = rankings.gpu_scores(scores)
    for s, name in enumerate(scores.sections[:SECTIONS]):
        columns |= {f"section/{name}/{kind}": score_R for kind, score_R in rankings.section_scores(scores, s).items()}
    known = {name: values_R[~np.isnan(values_R)] for name, values_R in columns.items()}
    return {
        name: Spread(float(np.min(some)), float(np.median(some)), float(np.max(some)))
        for name, some in known.items()
        if len(some)
    }


def _reduced(reduce: Any, values_R: Floats) -> float | None:
    known = values_R[~np.isnan(values_R)]
    return float(reduce(known)) if len(known) else None


def _worst(job: Job, scores: Scores, stragglers: list[Straggler]) -> tuple[WorstRank, ...]:
    """The stragglers, the costliest first, then the ranks with the lowest scores, as many as the report prints."""
    slow = {straggler.rank: straggler for straggler in reversed(stragglers)}
    robust_R, relative_R = scores.gpu_robust_R, scores.gpu_relative_R
    score_R = np.where(np.isnan(robust_R), relative_R, robust_R)
    known_R = np.flatnonzero(~np.isnan(score_R) | ~np.isnan(scores.lateness_R))
    # NaN sorts last. Among equal scores, or without kernel timings, the latest rank comes first.
    order = known_R[np.lexsort((-np.nan_to_num(scores.lateness_R[known_R]), score_R[known_R]))]
    named = [s.rank for s in stragglers if s.rank < len(score_R)][:KEPT]
    others = [int(rank) for rank in order[: job.policy.num_gpu_perf_scores_to_print + len(named)] if rank not in slow]
    shown = dict.fromkeys(named + others[: max(0, job.policy.num_gpu_perf_scores_to_print - len(named))])
    return tuple(_row(job, scores, rank, slow.get(rank)) for rank in shown)


def _row(job: Job, scores: Scores, rank: int, straggler: Straggler | None) -> WorstRank:
    hosts = job.columns.hosts
    host = straggler.host if straggler is not None else hosts[rank] if rank < len(hosts) else ""
    return WorstRank(
        rank=rank,
        host=host,
        gpu_relative=_number(scores.gpu_relative_R[rank]),
        gpu_individual=_number(scores.gpu_individual_R[rank]),
        gpu_robust=_number(scores.gpu_robust_R[rank]),
        lateness=_lateness(_number(scores.lateness_R[rank])),
        cause=str(straggler.cause) if straggler is not None else "",
        reason=straggler.reason if straggler is not None else "",
    )


def _number(value: np.float64) -> float | None:
    return None if np.isnan(value) else float(value)


def _lateness(seconds: float | None) -> float | None:
    """Seconds for which others wait for a rank: 0 for one that itself waits for longer than its peers."""
    return None if seconds is None else max(0.0, seconds)
