"""Whose doing it is that a job loses time: a worker's, a stage's, the workload's, a link's, or nobody's. Pure.

How this works
--------------
Every judged window is looked at by itself; a verdict is given when it holds in k of the last n windows. They are asked
in this order, the first that holds counts; of stage and workload, the one that loses more:

=============  ======================================================================================================
worker         stragglers are open: the same ranks are late against their peers again and again
link           a process group's transfers take longer than usual by more than the slowdown that matters
stage          all ranks of a pipeline stage together do more work than those of the other stages
workload       most windows have a rank that is far behind, but it is another one each time, by computing or input
unexplained    the same, but it is the host that ranks take turns in, or nothing that was measured; or many ranks
               are slower than the others in most windows, too many to name one
=============  ======================================================================================================

No node is to blame for a stage, a workload or a link.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from rankwatch.contract.enums import Cause, StragglerVerdict
from rankwatch_monitor.core.ranks import Floats, Ints
from rankwatch_monitor.core.straggler.lateness import CAUSES, Lateness
from rankwatch_monitor.core.straggler.links import SlowLink
from rankwatch_monitor.core.straggler.scores import Finding, Straggler

OUT_OF_NOISE: Final = 2.0
"""Windows in which the last rank is so many times further behind than noise would put it count as turns."""
ONE_RANK: Final = 0.6
"""Part of such windows in which the same rank is the last one, above which ranks do not take turns."""
MANY: Final = 0.25
"""Part of the ranks from which on those that are slow for good are a kind of their own, rather than single ones."""
PART_WORDS: Final = {Cause.DATA: "input", Cause.HOST: "host-side work", Cause.COMPUTE: "computation"}


class Criteria(NamedTuple):
    """What the policy asks for."""

    slowdown: float
    """Part of a step."""
    needed: int
    of: int


class Stage(NamedTuple):
    """The pipeline stage that has most to do."""

    number: int
    share: float
    """How much more than the others, as a part of the step."""
    ranks: tuple[int, ...]
    cause: Cause


class Turn(NamedTuple):
    """The rank that is furthest behind in one window."""

    rank: int
    share: float
    cause: Cause


@dataclass(slots=True)
class Windows:
    """What single windows said, lately: the memory of the verdict."""

    stages: deque[Stage | None] = field(default_factory=lambda: deque(maxlen=20))
    turns: deque[Turn | None] = field(default_factory=lambda: deque(maxlen=20))
    links: deque[SlowLink | None] = field(default_factory=lambda: deque(maxlen=20))


def heaviest_stage(late: Lateness, pipeline_R: Ints, slowdown: float) -> Stage | None:
    """The stage whose ranks do more work than those of the other stages, by more than ``slowdown`` of the step."""
    known_R = ~np.isnan(late.work_R) & (pipeline_R >= 0)
    stages = np.unique(pipeline_R[known_R])
    if len(stages) < 2:
        return None
    step = float(np.median(late.step_R[known_R]))
    typical = {int(s): float(np.median(late.work_R[known_R & (pipeline_R == s)])) for s in stages}
    number = max(typical, key=typical.__getitem__)
    share = (typical[number] - float(np.median([t for s, t in typical.items() if s != number]))) / step
    if not share > slowdown:
        return None
    members = tuple(int(r) for r in np.flatnonzero(known_R & (pipeline_R == number)))
    return Stage(number, share, members, Cause.COMPUTE)


def last_one(late: Lateness, share_R: Floats) -> Turn | None:
    """The rank that the others wait for in this window, and with what it is late."""
    if np.isnan(share_R).all():
        return None
    rank = int(np.nanargmax(share_R))
    excess_P = late.excess_RP[rank]
    cause = CAUSES[int(np.argmax(excess_P))] if not np.isnan(excess_P).any() else Cause.UNEXPLAINED
    return Turn(rank, float(share_R[rank]), cause)


def finding(
    windows: Windows,
    stragglers: Sequence[Straggler],
    ranks: int,
    usual: float,
    step: float,
    criteria: Criteria,
    lasting: Ints,
) -> Finding:
    """The verdict as of the newest window.

    Args:
        windows: what the last windows said.
        stragglers: those that are open.
        ranks: how many there are.
        usual: the job's own noise of one rank, as a part of the step (one standard deviation); NaN: not known yet.
        step: seconds of a step.
        criteria: what the policy asks for.
        lasting: ranks that are further behind than what matters in most windows.
    """
    if stragglers:
        return _workers(stragglers)
    if (link := _link(windows, step, criteria)) is not None:
        return link
    both = (_stage(windows, criteria), _turns(windows, ranks, usual, criteria, lasting))
    return max((each for each in both if each is not None), key=lambda each: each.share, default=Finding())


def _workers(stragglers: Sequence[Straggler]) -> Finding:
    first, others = stragglers[0], len(stragglers) - 1
    reason = (
        first.reason
        if not others
        else f"{first.reason} {others} more {'rank is' if others == 1 else 'ranks are'} slow."
    )
    worst = max((s.share or 0.0) for s in stragglers)
    since = min(s.since for s in stragglers)
    return Finding(StragglerVerdict.WORKER, first.cause, reason, since, tuple(s.rank for s in stragglers), worst)


def _link(windows: Windows, step: float, criteria: Criteria) -> Finding | None:
    recent = list(windows.links)[-criteria.of :]
    slow = [link for link in recent if link is not None and (link.seconds - link.usual) > criteria.slowdown * step]
    if len(slow) < criteria.needed or recent[-1] is None or recent[-1] not in slow:
        return None
    link = slow[-1]
    beside = "the other groups of its kind take" if link.against == "others" else "it took at its best"
    reason = (
        f"All members of process group {link.group!r} take long in its collectives, {_seconds(link.seconds)} of each "
        f"step where {beside} {_seconds(link.usual)}, and none of them is late: the link between them is slow."
    )
    share = (link.seconds - link.usual) / step
    return Finding(StragglerVerdict.LINK, Cause.COMMUNICATION, reason, share=share)


def _stage(windows: Windows, criteria: Criteria) -> Finding | None:
    recent = list(windows.stages)[-criteria.of :]
    newest = recent[-1] if recent else None
    if newest is None or sum(s is not None and s.number == newest.number for s in recent) < criteria.needed:
        return None
    share = float(np.median([s.share for s in recent if s is not None and s.number == newest.number]))
    more = f"Pipeline stage {newest.number} has more to do than the others, {_percent(share)} of a step on"
    reason = f"{more} all {len(newest.ranks)} of its ranks: the job's doing, no node is to blame."
    if len(newest.ranks) == 1:
        reason = (
            f"{more} rank {newest.ranks[0]}, its only rank: by its work or by its node, which nothing here can tell."
        )
    return Finding(StragglerVerdict.STAGE, newest.cause, reason, ranks=newest.ranks, share=share)


def _turns(windows: Windows, ranks: int, usual: float, criteria: Criteria, lasting: Ints) -> Finding | None:
    recent = [turn for turn in windows.turns if turn is not None]
    if len(recent) < criteria.of or np.isnan(usual):
        return None
    # The largest of R normal deviations is about sigma * sqrt(2 ln R).
    by_noise = usual * float(np.sqrt(2.0 * np.log(max(ranks, 2))))
    behind = [t for t in recent if t.share > criteria.slowdown]
    lost = float(np.mean([max(t.share, 0.0) for t in recent]))
    often = len(behind) * criteria.of >= criteria.needed * len(recent)
    beyond = lost > OUT_OF_NOISE * by_noise or usual > criteria.slowdown
    if not often or not beyond or not lost > criteria.slowdown:
        return None
    most = max(sum(t.rank == rank for t in behind) for rank in {t.rank for t in behind})
    if most > max(1.0, ONE_RANK * len(behind)):
        return None
    causes = [t.cause for t in behind]
    cause = max(set(causes), key=causes.count)
    lose = f"Steps lose {_percent(lost)} to waiting"
    if 2 * sum(t.rank in lasting for t in behind) > len(behind):
        reason = f"{lose} for {_the_same_ones(lasting, ranks, cause)}"
        return Finding(StragglerVerdict.UNEXPLAINED, cause, reason, ranks=tuple(map(int, lasting)), share=lost)
    if cause in (Cause.COMPUTE, Cause.DATA):
        reason = (
            f"{lose} for ranks that take turns in having more {PART_WORDS[cause]} than the others, as with sequences "
            "of different lengths: the job's doing, no node is to blame."
        )
        return Finding(StragglerVerdict.WORKLOAD, cause, reason, share=lost)
    reason = f"{lose} for ranks that take turns in being late, with {_with(cause)}: no rank is to blame by itself."
    return Finding(StragglerVerdict.UNEXPLAINED, cause, reason, share=lost)


def _the_same_ones(lasting: Ints, ranks: int, cause: Cause) -> str:
    """Ranks that are late again and again, and why none of them is called a straggler."""
    what = f"with more {PART_WORDS[cause]}" if cause in PART_WORDS else "with nothing that was measured"
    if len(lasting) == 1:
        who = f"rank {lasting[0]}, which is behind in most windows, {what}"
    else:
        who = f"{len(lasting)} of {ranks} ranks, which are behind in most windows, {what}"
    if len(lasting) < MANY * ranks or len(lasting) == 1:
        return f"{who}; but steps differ too much from window to window to be sure of a straggler."
    return f"{who}: too many for one of them to be at fault. Do they have other hardware, or other work?"


def _with(cause: Cause) -> str:
    return PART_WORDS.get(cause, "nothing that was measured")


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.995 else f"{1000 * seconds:.3g} ms"


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %"
