"""The kernels of a job with their trends, as ``GET /jobs/{id}/kernels`` shows them. Derived when they are read."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np

from rankwatch.contract.enums import KernelSource, Part
from rankwatch.profiling.source import NO_SOURCE
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.ranks import Floats
from rankwatch_monitor.core.regression.sample import PARTS, rounded
from rankwatch_monitor.core.straggler.kernel_trends import Kernel
from rankwatch_monitor.core.views.rankings import host_of

SHOWN_SOURCES: Final = 8


@dataclass(frozen=True, slots=True)
class SourceView:
    """Ranks whose kernel timings come from one source."""

    source: str
    """``cupti``, ``kineto-cuda``, ``kineto-cpu`` or ``none``."""
    reason: str
    """Why it is not another."""
    ranks: int


@dataclass(frozen=True, slots=True)
class KernelView:
    """One kernel over all ranks; seconds of one call."""

    name: str
    """With its launch shape; without a GPU an operator with its input shapes."""
    share: float
    """Of the time that all ranks spent in kernels; collectives are left out."""
    ranks: int
    """Ranks that reported it."""
    median: float
    """Median over the ranks of the median of each."""
    tail: float | None
    """The same of the mean of the slower half."""
    fastest: float
    """Median of the fastest rank."""
    slowest_rank: int
    slowest_host: str
    slowest: float
    """Median of the slowest rank."""
    relative: float | None
    """Median of the fastest rank divided by that of the slowest: its part of the relative score; null: one rank."""
    change: float | None
    """The median now, divided by its usual one: the lower quartile of the trend. Null: too few points."""
    slower_since: float | None
    """Unix seconds since when ``change`` has been 1.25 or more."""
    trend: list[float | None]
    """Medians at the times of ``points``; null: not reported."""
    slowest_trend: list[float | None]
    """The same of the rank that was the slowest at each time."""
    slowest_ranks: list[int | None]
    """Which rank that was."""
    uneven_since: float | None
    """Unix seconds since when the slowest rank has taken 1.1 times the median or more; null: it does not."""
    straggler: float | None
    """Median of the rank that is named as ``straggler``; null: none is, or it has not reported this kernel."""


@dataclass(frozen=True, slots=True)
class KernelsView:
    """The costliest kernels of a job."""

    at: float | None
    """Unix seconds of the last report."""
    since: float | None
    """Unix seconds at which the trends begin: with the first report to this monitor; they are not stored."""
    spacing: float
    """Seconds that a point of the trends covers."""
    reason: str
    """Why there are no kernels; empty: there are."""
    sources: list[SourceView]
    points: list[float]
    """Unix seconds."""
    kernels: list[KernelView]
    """By total time, the costliest first."""
    omitted: int
    """Further kernels that were reported."""
    compute: float | None
    """Seconds of a step that the median rank computes: all kernels but collectives; null: not profiled."""
    step: float | None
    """Seconds of the profiled step, median over the ranks."""
    straggler: int | None
    """The rank that the others wait for longest now; null: no rank is slow."""


def kernels(job: Job) -> KernelsView:
    """The kernels of a job."""
    trends, parts_RP = job.performance.kernel_trends, job.performance.parts_RP
    points = [round(at, 1) for at in trends.points]
    rank = next((each.rank for each in job.performance.open_stragglers), None)
    medians = _medians(job, rank)
    return KernelsView(
        at=trends.at,
        since=points[0] if points else None,
        spacing=trends.spacing,
        reason="" if trends.kernels else _absence(job),
        sources=_sources(job),
        points=points,
        kernels=[_kernel(job, each, medians.get(each.name)) for each in trends.kernels],
        omitted=trends.omitted,
        compute=_middle(parts_RP[:, PARTS.index(Part.COMPUTE)]),
        step=_middle(parts_RP.sum(axis=1)),
        straggler=rank,
    )


def _medians(job: Job, rank: int | None) -> dict[str, float]:
    """The medians that a rank last reported, by kernel."""
    table = job.performance.kernels
    if rank is None or rank >= len(table["median"]):
        return {}
    known = zip(table.names, table["median"][rank].tolist(), strict=True)
    return {name: rounded(seconds) for name, seconds in known if math.isfinite(seconds)}


def _kernel(job: Job, kernel: Kernel, straggler: float | None) -> KernelView:
    trends = job.performance.kernel_trends
    change = trends.change(kernel)
    slowest = trends.slowest(kernel.name)
    return KernelView(
        name=kernel.name,
        share=round(kernel.share, 4),
        ranks=kernel.ranks,
        median=rounded(kernel.median),
        tail=rounded(kernel.tail) if math.isfinite(kernel.tail) else None,
        fastest=rounded(kernel.fastest),
        slowest_rank=kernel.slowest_rank,
        slowest_host=host_of(job, kernel.slowest_rank),
        slowest=rounded(kernel.slowest),
        relative=round(kernel.fastest / kernel.slowest, 4) if kernel.ranks > 1 and kernel.slowest else None,
        change=None if change is None else round(change.ratio, 3),
        slower_since=None if change is None else change.since,
        trend=[None if value is None else rounded(value) for value in trends.trend(kernel.name)],
        slowest_trend=[None if point is None else rounded(point.seconds) for point in slowest],
        slowest_ranks=[None if point is None else point.rank for point in slowest],
        uneven_since=trends.uneven_since(kernel),
        straggler=straggler,
    )


def _middle(seconds_R: Floats) -> float | None:
    """The median of what is known."""
    known_R = seconds_R[np.isfinite(seconds_R)]
    return rounded(float(np.median(known_R))) if len(known_R) else None


def _sources(job: Job) -> list[SourceView]:
    found = Counter(job.performance.sources_of.values())
    return [SourceView(source, reason, ranks) for (source, reason), ranks in found.most_common(SHOWN_SOURCES)]


def _absence(job: Job) -> str:
    sources = _sources(job)
    timed = next((each for each in sources if each.source != NO_SOURCE), None)
    if timed is not None:
        return (
            f"Kernels are timed by {timed.source} and have not been reported yet: a rank reports them after a few "
            f"sampled steps, then every {job.policy.report_interval:.0f} s (report_interval)."
        )
    if job.policy.kernel_timings is KernelSource.OFF:
        return "Kernel timings are switched off: set kernel_timings to auto in the policy."
    if sources:
        why = f": {sources[0].reason.rstrip('.')}" if sources[0].reason else ""
        return f"No rank has kernel timings{why}. kernel_timings=auto in the policy takes what a rank can use."
    if job.ended is not None:
        return "No kernel timings are known of this job; they are kept in memory while it runs, and not stored."
    return (
        "No rank has reported kernel timings yet. They come with the windows of steps, about every 10 s, of ranks that "
        "use rankwatch.step() and torch, unless kernel_timings is off."
    )
