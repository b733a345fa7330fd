"""Rankings of ranks by their scores, and scores and stragglers as JSON. Derived when they are read.

Ranks without a score (NaN) are left out of rankings, and null in JSON. Shapes: R ranks, S sections.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from rankwatch.cli.formatting import percent
from rankwatch.contract.enums import ScoreReference, StragglerVerdict
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.plain import copied
from rankwatch_monitor.core.ranks import Floats
from rankwatch_monitor.core.straggler.findings import Finding, Straggler, cost_rate
from rankwatch_monitor.core.straggler.scores import Scores
from rankwatch_monitor.core.views import responses
from rankwatch_monitor.core.views.host_activity import HostActivity, history_of
from rankwatch_monitor.core.views.job_verdict import findings
from rankwatch_monitor.core.views.throttling import throttle_of
from rankwatch_monitor.core.words import slow as words

GPU_SCORES: Final[Mapping[str, str]] = {
    "gpu_relative": "gpu_relative_R",
    "gpu_individual": "gpu_individual_R",
    "gpu_robust": "gpu_robust_R",
}
"""Arrays of :class:`Scores` by their names in the API."""
SECTION_SCORES: Final[Mapping[str, str]] = {
    "relative": "section_relative_RS",
    "individual": "section_individual_RS",
    "robust": "section_robust_RS",
}
LIVE_OPEN: Final = 50
"""Open stragglers in the live stream, the costliest first; the API lists all."""
LIVE_ENDED: Final = 20
LIVE_WORST: Final = 10
RESOLUTION: Final = 200
"""Steps between 0 and 1 of a byte of the live grid."""
UNKNOWN: Final = 255
"""Byte of a rank without a value."""


def gpu_scores(scores: Scores) -> dict[str, Floats]:
    """The three GPU scores by name, each of shape (R,)."""
    return {name: getattr(scores, array) for name, array in GPU_SCORES.items()}


def section_scores(scores: Scores, section: int) -> dict[str, Floats]:
    """The three scores of one section by name, each of shape (R,)."""
    return {name: getattr(scores, array)[:, section] for name, array in SECTION_SCORES.items()}


def lateness(job: Job) -> tuple[Floats, Floats]:
    """Seconds of each step for which the others wait for each rank, and the fraction of the step, shape (R,) each.

    Of open stragglers as their sentences state it, of other ranks as of the newest window; NaN: unknown.
    """
    scores = job.performance.scores
    if scores is None:
        return np.empty(0), np.empty(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        share_R = scores.lateness_share()
    late_R, share_R = scores.lateness_R.copy(), np.where(np.isfinite(share_R), share_R, np.nan)
    for each in job.performance.open_stragglers:
        if each.lateness is not None and each.share is not None and each.rank < len(late_R):
            late_R[each.rank], share_R[each.rank] = each.lateness, each.stated_share
    return late_R, share_R


def longest_wait(job: Job) -> str:
    """``the others wait at most 3.5 % of a step, for rank 13 (a straggler from 5 % on)``; empty: unknown."""
    if (found := job.performance.late) is not None:
        return words.late(found)
    _, share_R = lateness(job)
    if job.world_size == 1 or not np.isfinite(share_R).any():
        return ""
    rank = int(np.nanargmax(share_R))
    share, limit = percent(max(0.0, float(share_R[rank]))), f"{100 * job.policy.straggler_slowdown:.3g} %"
    by_lateness = job.policy.straggler_reference is ScoreReference.ROBUST
    decides = f"a straggler from {limit} on" if by_lateness else "its scores decide: straggler_reference is fastest"
    return f"the others wait at most {share} of a step, for rank {rank} ({decides})"


def lowest(score_R: Floats, number: int) -> list[int]:
    """Ranks with the lowest scores, the lowest first; equal ones by rank."""
    known = np.flatnonzero(~np.isnan(score_R))
    if number < len(known) // 8:  # of 100,000 ranks only possible candidates are sorted
        bound = np.partition(score_R[known], number)[number]
        known = known[score_R[known] <= bound]
    ordered = known[np.argsort(score_R[known], kind="stable")]
    return [int(rank) for rank in ordered[:number]]


def highest(score_R: Floats, number: int) -> list[int]:
    """Ranks with the highest scores, the highest first; equal ones by rank."""
    return lowest(-score_R, number)


def min_median_max(score_R: Floats) -> dict[str, float] | None:
    """Minimum, median and maximum over the ranks that have a score; None when none has one."""
    known = score_R[~np.isnan(score_R)]
    if not len(known):
        return None
    return {"min": _rounded(known.min()), "median": _rounded(np.median(known)), "max": _rounded(known.max())}


def worst(scores: Scores, number: int) -> list[int]:
    """The worst ``number`` ranks: alternately the next by robust score and the next by lateness.

    Without robust scores, by relative ones.
    """
    score_R = scores.gpu_relative_R if np.all(np.isnan(scores.gpu_robust_R)) else scores.gpu_robust_R
    slow, late = lowest(score_R, number), highest(scores.lateness_R, number)
    ranks: dict[int, None] = {}
    for place in range(number):
        ranks |= dict.fromkeys(each[place] for each in (slow, late) if place < len(each))
    return list(ranks)[:number]


def host_of(job: Job, rank: int) -> str:
    """The host of a rank; empty where unknown, as of a rank of an earlier, larger attempt."""
    hosts = job.columns.hosts
    return hosts[rank] if rank < len(hosts) else ""


# JSON -----------------------------------------------------------------------------------------------------------------


def _findings(job: Job, now: float) -> list[Finding]:
    """The verdict, then all else that was found, by cost; of a healthy job how far it is from having a straggler."""
    found, *others = findings(job, now)
    trains = job.ended is None and job.open_incident is None and not job.performance.open_stragglers
    if found.verdict is StragglerVerdict.HEALTHY and trains and (waits := longest_wait(job)):
        found = replace(found, reason=f"No straggler: {waits}.")
    return [found, *others]


def _throttled(job: Job, slow: Sequence[Straggler]) -> responses.Throttle | None:
    """What throttles the GPU of the costliest slow rank; None: nothing, or none is slow."""
    found = throttle_of(job, slow[0]) if slow else None
    return None if found is None else copied(responses.Throttle, found)


def score_table(job: Job, now: float, number: int | None = None) -> responses.Scores:
    """The scores as ``GET /jobs/{id}/scores`` shows them, of all ranks or of the ``number`` worst."""
    performance = job.performance
    scores = performance.scores
    found, found_now = performance.open_stragglers, _findings(job, now)
    shown: responses.Scores = {
        "at": None,
        "gpu_at": None,
        "reference": job.policy.straggler_reference,
        "processing_seconds": None,
        "overall": {},
        "lowest": {},
        "ranks": [],
        "stragglers": shown_stragglers(found),
        "finding": found_now[0],
        "findings": found_now,
        "late": performance.late,
        "throttled": _throttled(job, found),
        "cost_gpu_hours": performance.cost_gpu_hours,
        "cost_rate": cost_rate(found[0]) if found else "",
    }
    if scores is None:
        return shown
    chosen = range(len(scores.lateness_R)) if number is None else worst(scores, number)
    return {
        **shown,
        "at": scores.at,
        "gpu_at": scores.gpu_at,
        "processing_seconds": scores.seconds,
        "overall": {
            name: cast("responses.Overall | None", min_median_max(score_R))
            for name, score_R in gpu_scores(scores).items()
        },
        "lowest": {name: next(iter(lowest(score_R, 1)), None) for name, score_R in gpu_scores(scores).items()},
        "ranks": _rows(job, scores, chosen),
    }


def _rows(job: Job, scores: Scores, ranks: Sequence[int]) -> list[responses.RankScores]:
    chosen = np.asarray(ranks, dtype=np.intp)
    late_R, share_R = lateness(job)
    columns = gpu_scores(scores) | {"lateness": late_R, "lateness_share": share_R}
    figures = {name: _json_numbers(column_R[chosen]) for name, column_R in columns.items()}
    by_section = [
        (name, {kind: _json_numbers(score_R[chosen]) for kind, score_R in section_scores(scores, s).items()})
        for s, name in enumerate(scores.sections)
    ]
    rows = [
        {
            "rank": int(rank),
            "host": host_of(job, int(rank)),
            **{name: column[at] for name, column in figures.items()},
            "sections": {
                name: {kind: column[at] for kind, column in kinds.items()}
                for name, kinds in by_section
                if any(column[at] is not None for column in kinds.values())
            },
        }
        for at, rank in enumerate(ranks)
    ]
    return cast("list[responses.RankScores]", rows)


def rank_scores(job: Job) -> list[dict[str, float]]:
    """The known scores of each rank, as ``GET /jobs/{id}/ranks`` shows them."""
    known: list[dict[str, float]] = [{} for _ in range(len(job.columns))]
    scores = job.performance.scores
    if scores is None:
        return known
    for name, column_R in (gpu_scores(scores) | {"lateness_share": lateness(job)[1]}).items():
        for row, value in zip(known, _json_numbers(column_R), strict=False):
            if value is not None:
                row[name] = value
    return known


def stragglers(job: Job) -> list[Straggler]:
    """Open stragglers, the costliest first, then ended ones, the newest first."""
    performance = job.performance
    ended = sorted((s for s in performance.stragglers if not s.open), key=lambda s: -(s.ended or 0.0))
    return performance.open_stragglers + ended


def shown_stragglers(found: Iterable[Straggler]) -> list[Straggler]:
    """They as the API has them."""
    return [replace(each, share=each.stated_share) for each in found]


def live_view(job: Job, now: float, activity: HostActivity | None = None) -> responses.Live | None:
    """Scores and stragglers in the live stream; None while there are none."""
    performance = job.performance
    if performance.scores is None and not performance.stragglers:
        return None
    every = stragglers(job)
    open_ones = [s for s in every if s.open]
    return {
        **score_table(job, now, LIVE_WORST),
        "stragglers": shown_stragglers(open_ones[:LIVE_OPEN]),
        "open": len(open_ones),
        "of_host": _of_host(job, open_ones, now, activity),
        "ended": shown_stragglers(every[len(open_ones) :][:LIVE_ENDED]),
    }


def _of_host(
    job: Job, found: Sequence[Straggler], now: float, activity: HostActivity | None
) -> responses.OfSlowHost | None:
    """What incidents of all jobs show of the costliest straggler's host; None: it was named in none."""
    if not found or not (host := found[0].host):
        return None
    history = history_of(job, host, now, activity)
    return {"host": host, "text": history.fact} if history.about else None


def grid_bytes(job: Job) -> dict[str, bytes]:
    """One byte a rank for the page's grid, by name.

    ``robust`` is the robust GPU score, ``lateness`` the fraction of a step for which the others wait for this rank (0
    when it waits for them), both in units of 1/200; 255: unknown.
    """
    scores = job.performance.scores
    if scores is None:
        return {}
    shown = {"robust": scores.gpu_robust_R, "lateness": lateness(job)[1]}
    return {name: in_bytes(RESOLUTION * value_R).tobytes() for name, value_R in shown.items()}


def in_bytes(value_R: Floats) -> npt.NDArray[np.uint8]:
    """Rounded to whole numbers, within the range of a byte; :data:`UNKNOWN` for what is not finite."""
    known_R = np.isfinite(value_R)
    whole_R = np.clip(np.round(np.where(known_R, value_R, 0.0)), 0, UNKNOWN - 1)
    return np.where(known_R, whole_R, UNKNOWN).astype(np.uint8)


def _json_numbers(values: Floats) -> list[float | None]:
    """For JSON: NaN is null, and numbers have four decimals."""
    return [value if math.isfinite(value) else None for value in np.round(values, 4).tolist()]


def _rounded(value: float | np.floating[Any]) -> float:
    return round(float(value), 4)
