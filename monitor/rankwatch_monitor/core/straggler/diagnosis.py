"""Why a job as a whole loses time: workers, a pipeline stage, the workload, or a slow link. Pure.

Each window is examined by itself; something is found when it holds in k of the last n windows. What is found is ordered
by what it costs, and the first is the verdict:

=============  ======================================================================================================
worker         stragglers are open: the same ranks, or all ranks of a node, are late again and again; where all slow
               nodes are of one rack, switch or NVLink domain, and are most of it, that is named
stage          all ranks of a pipeline stage together do more work than those of the other stages; or, where ranks
               send to each other and have declared no stage, some have done more since their first steps
link           a process group's transfers take longer than usual, its members are on several nodes, and none is late
workload       most windows have a rank that is far behind, but another one each time, with more computation or input
unexplained    the same, but the ranks take turns in waiting for a CPU, in host-side work, or in nothing that was
               measured; or many ranks are slower than the others in most windows, too many to name one; or transfers
               are slow that no network is between
=============  ======================================================================================================

Links and turns are only looked for where no rank is slow by itself.

Shapes: R ranks, P parts of a step. Times are seconds of one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from rankwatch.contract.enums import Cause, StragglerVerdict
from rankwatch_monitor.core.places import shared_place
from rankwatch_monitor.core.ranks import Bools, Floats, Ints
from rankwatch_monitor.core.slow_cause import UNDECLARED, HeavyStage, SlowLink, SlowNode, Turns
from rankwatch_monitor.core.straggler.attribution import stage_loss, uneven_loss
from rankwatch_monitor.core.straggler.findings import Finding, Straggler
from rankwatch_monitor.core.straggler.lateness import CAUSES, Lateness
from rankwatch_monitor.core.straggler.window import Window
from rankwatch_monitor.core.words import slow as words

NO_PLACES: Final[Mapping[str, Sequence[str]]] = {}
OUT_OF_NOISE: Final = 2.0
"""How many times further behind than noise would put it the last rank must be, on average, for ranks to take turns."""
ONE_RANK: Final = 0.6
"""Fraction of such windows with the same rank last above which ranks do not take turns."""
WAITED: Final = 0.33
"""Fraction of what all of them lose above which the ranks' mean wait for a CPU is: the last of them waits longest."""
STARVED: Final = 0.5
"""Fraction of what a rank is behind above which waiting for a CPU is the reason."""


class Criteria(NamedTuple):
    """Thresholds of the policy."""

    slowdown: float
    """Fraction of a step that matters."""
    needed: int
    of: int
    """A finding must hold in ``needed`` of the last ``of`` windows."""


class LastRank(NamedTuple):
    """The rank that is furthest behind in one window."""

    rank: int
    share: float
    cause: Cause
    lost: float
    """By which fraction the step is longer for what ranks do beyond their peers."""
    starved: bool = False
    """Most of it is waiting for a CPU."""
    waited: float = 0.0
    """The fraction of a step for which the ranks wait for a CPU on average, over all steps of the window."""


class Observed(NamedTuple):
    """What one window shows of the job as a whole."""

    stage: HeavyStage | None
    last: LastRank | None
    link: SlowLink | None


# Of one window --------------------------------------------------------------------------------------------------------


def heaviest_stage(window: Window, pipeline_R: Ints, named_R: Bools, hosts: Sequence[str]) -> HeavyStage | None:
    """The stage whose ranks do more work than those of the other stages.

    Args:
        pipeline_R: the declared stage of each rank.
        named_R: ranks that are slow by themselves: they are no measure of a stage.
    """
    pipeline, work_R = window.pipeline, window.late.work_R
    known_R = ~np.isnan(work_R) & (pipeline_R >= 0) & ~named_R
    present_P = np.bincount(pipeline.stage_R[known_R], minlength=pipeline.stages)
    if pipeline.stages < 2 or np.count_nonzero(present_P) < 2:
        return None
    busiest, seconds = stage_loss(pipeline, work_R, known_R)
    member_R = ~np.isnan(work_R) & (pipeline.stage_R == busiest)
    if (member_R & named_R).any():
        return None
    step = float(np.median(window.late.step_R[known_R]))
    ranks = tuple(np.flatnonzero(member_R).tolist())
    there = {hosts[rank] for rank in ranks}
    elsewhere = {hosts[rank] for rank in np.flatnonzero(~np.isnan(work_R) & ~member_R).tolist()}
    host = there.pop() if len(there) == 1 and elsewhere - there else ""
    host = "" if host in elsewhere else host
    share = seconds / step
    return HeavyStage(int(pipeline_R[ranks[0]]), share, ranks, Cause.COMPUTE, host=host)


def undeclared_stage(late: Lateness, signal_R: Floats, always_R: Bools, slowdown: float) -> HeavyStage | None:
    """The ranks that were behind from the beginning and are, by more than ``slowdown`` of the step, as one stage."""
    with np.errstate(invalid="ignore"):
        heavy_R = always_R & (signal_R > slowdown) & ~np.isnan(late.work_R)
    others_R = ~heavy_R & ~np.isnan(late.work_R)
    if not heavy_R.any() or not others_R.any():
        return None
    own, usual = float(np.median(late.work_R[heavy_R])), float(np.median(late.work_R[others_R]))
    if not usual > 0:
        return None
    share = (own - usual) / float(np.median(late.step_R[heavy_R]))
    ranks = tuple(int(r) for r in np.flatnonzero(heavy_R))
    return HeavyStage(UNDECLARED, share, ranks, Cause.COMPUTE, own / usual)


def last_rank(window: Window, waited_R: Floats) -> LastRank | None:
    """The rank that is furthest behind, and the part of its step with the largest excess.

    ``waited_R``: seconds of a step for which each rank waited for a CPU.
    """
    late, signal_R = window.late, np.where(window.alone_R, np.nan, window.signal_R)
    if np.isnan(signal_R).all():
        return None
    rank = int(np.nanargmax(signal_R))
    excess_P = late.excess_RP[rank]
    cause = CAUSES[int(np.argmax(excess_P))] if not np.isnan(excess_P).any() else Cause.UNEXPLAINED
    share = lost = float(signal_R[rank])
    if window.pipeline.stages > 1 and not np.isnan(late.work_R).all():
        level_P = window.pipeline.levels(late.work_R, ~np.isnan(late.work_R))
        lost = uneven_loss(window.pipeline, late.work_R, level_P) / float(np.nanmedian(late.step_R))
    starved = bool(waited_R[rank] > STARVED * share * late.step_R[rank])  # NaN never is
    waited_R = waited_R / window.step_R
    waited = 0.0 if np.isnan(waited_R).all() else float(np.nanmean(waited_R))
    return LastRank(rank, share, cause, lost, starved, waited)


# The findings ---------------------------------------------------------------------------------------------------------


class Newest(NamedTuple):
    """All ranks as of the newest window."""

    ranks: int
    """How many reported it."""
    noise: float
    """Standard deviation of one rank's lateness as a fraction of the step; NaN: unknown."""
    step: float
    """Seconds of a step."""
    often_behind: Ints
    """Ranks that are behind by more than the slowdown that matters in most windows."""


def findings(
    observed: Sequence[Observed],
    stragglers: Sequence[Straggler],
    nodes: Mapping[str, tuple[int, ...]],
    newest: Newest,
    criteria: Criteria,
    places: Mapping[str, Sequence[str]] = NO_PLACES,
) -> list[Finding]:
    """Why the job loses time as of the newest window, the costliest first.

    Args:
        nodes: those that are slow as a whole, with their ranks.
        newest: what the newest window and those before it show of all ranks.
        places: labels of the hosts, the widest first.
    """
    found = [*_workers(stragglers, nodes, places), _stage(observed, criteria)]
    if not stragglers:
        found += [_link(observed, newest.step, criteria), _taking_turns(observed, newest, criteria)]
    return sorted((each for each in found if each is not None), key=lambda each: -each.share)


def _workers(
    stragglers: Sequence[Straggler], nodes: Mapping[str, tuple[int, ...]], places: Mapping[str, Sequence[str]]
) -> Iterator[Finding]:
    """One finding for each slow node, one for all other slow ranks; one for all that are of one rack or switch."""
    left = list(stragglers)
    if (place := shared_place(places, {straggler.host for straggler in stragglers})) is not None:
        share = max(straggler.stated_share or 0.0 for straggler in stragglers)
        yield _worker(left, f"{words.place(place, share)} {left[0].reason}", place=place.label)
        return
    for host in nodes:
        if here := [straggler for straggler in left if straggler.host == host]:
            left = [straggler for straggler in left if straggler.host != host]
            share = max(straggler.stated_share or 0.0 for straggler in here)
            yield _worker(here, words.node(SlowNode(host, len(here), share)) + " " + here[0].reason, host)
    if left:
        yield _worker(left, left[0].reason + words.more(len(left) - 1))


def _worker(stragglers: Sequence[Straggler], reason: str, host: str = "", place: str = "") -> Finding:
    share = max(straggler.stated_share or 0.0 for straggler in stragglers)
    since = min(straggler.since for straggler in stragglers)
    ranks = tuple(straggler.rank for straggler in stragglers)
    return Finding(StragglerVerdict.WORKER, stragglers[0].cause, reason, since, ranks, share, host, place)


def _held(observed: Sequence[Observed], criteria: Criteria, same: Callable[[Observed], bool]) -> bool:
    """Whether the newest window shows the same as enough of the last ones."""
    recent = observed[-criteria.of :]
    return bool(recent) and same(recent[-1]) and sum(map(same, recent)) >= criteria.needed


def _link(observed: Sequence[Observed], step: float, criteria: Criteria) -> Finding | None:
    def slow(each: Observed) -> bool:
        return each.link is not None and each.link.seconds - each.link.usual > criteria.slowdown * step

    link = observed[-1].link if observed else None
    if link is None or not _held(observed, criteria, slow):
        return None
    verdict, cause = StragglerVerdict.LINK, Cause.COMMUNICATION
    if link.starved:
        verdict, cause = StragglerVerdict.UNEXPLAINED, Cause.HOST
    elif link.host:
        verdict = StragglerVerdict.UNEXPLAINED
    host = link.slow_host if verdict is StragglerVerdict.LINK else ""
    return Finding(verdict, cause, words.link(link), share=(link.seconds - link.usual) / step, host=host)


def _stage(observed: Sequence[Observed], criteria: Criteria) -> Finding | None:
    if not observed or (newest := observed[-1].stage) is None:
        return None

    def share_of(each: Observed) -> float:
        return each.stage.share if each.stage is not None and each.stage.number == newest.number else 0.0

    if not _held(observed, criteria, lambda each: share_of(each) > criteria.slowdown):
        return None
    recent = [share for share in map(share_of, observed[-criteria.of :]) if share > criteria.slowdown]
    stage = newest._replace(share=float(np.median(recent)))
    return Finding(StragglerVerdict.STAGE, stage.cause, words.stage(stage), None, stage.ranks, stage.share, stage.host)


def _taking_turns(observed: Sequence[Observed], newest: Newest, criteria: Criteria) -> Finding | None:
    ranks, noise = newest.ranks, newest.noise
    recent = [each.last for each in observed if each.last is not None]
    if len(recent) < criteria.of or np.isnan(noise):
        return None
    # The largest of R normal deviations is about sigma * sqrt(2 ln R).
    by_noise = noise * float(np.sqrt(2.0 * np.log(max(ranks, 2))))
    behind = [last for last in recent if last.share > criteria.slowdown]
    lost = float(np.mean([max(last.share, 0.0) for last in recent]))
    often = len(behind) * criteria.of >= criteria.needed * len(recent)
    beyond = lost > OUT_OF_NOISE * by_noise or noise > criteria.slowdown
    lost = float(np.mean([max(last.lost, 0.0) for last in recent]))
    if not often or not beyond or not lost > criteria.slowdown:
        return None
    most = max(sum(last.rank == rank for last in behind) for rank in {last.rank for last in behind})
    if most > max(1.0, ONE_RANK * len(behind)):
        return None
    causes = [last.cause for last in behind]
    turns = Turns(lost, max(set(causes), key=causes.count), ranks)
    verdict = StragglerVerdict.UNEXPLAINED
    named: tuple[int, ...] = ()
    # A profiled step may be delayed by more than others on average: averages are compared with averages too.
    waited = float(np.mean([last.waited for last in recent]))
    if 2 * sum(last.starved for last in behind) > len(behind) or waited > WAITED * lost:
        turns = replace(turns, cause=Cause.HOST, starved=True)
    elif 2 * sum(last.rank in newest.often_behind for last in behind) > len(behind):
        named = tuple(map(int, newest.often_behind))
        turns = replace(turns, often_behind=named)
    elif turns.cause in (Cause.COMPUTE, Cause.DATA):
        verdict = StragglerVerdict.WORKLOAD
    return Finding(verdict, turns.cause, words.turns(turns), None, named, lost)
