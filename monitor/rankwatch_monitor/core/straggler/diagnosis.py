"""Why a job as a whole loses time: one of its workers, a pipeline stage, the workload, or a slow link. Pure.

How this works
--------------
Each window is examined by itself; a verdict is given when it holds in k of the last n windows. The checks run in this
order and the first that holds counts; of stage and workload, the one that loses more:

=============  ======================================================================================================
worker         stragglers are open: the same ranks are late against their peers again and again
link           a process group's transfers take longer than usual by more than the slowdown that matters
stage          all ranks of a pipeline stage together do more work than those of the other stages; or, where ranks
               send to each other and have declared no stage, some have done more since their first steps
workload       most windows have a rank that is far behind, but another one each time, with more computation or input
unexplained    the same, but the ranks take turns in waiting for a CPU, in host-side work, or in nothing that was
               measured; or many ranks are slower than the others in most windows, too many to name one
=============  ======================================================================================================

No node is to blame for a stage, a workload or a link.

Slow links
----------
The last rank to enter a collective does not wait in it, so the shortest time of one collective over all members and
calls is the transfer itself. A group is compared with the others of its kind (the same name but for numbers: the
all-reduces of all data-parallel groups move as much as each other); where there are too few of those, with its own
earlier best.

Shapes: R ranks, P parts of a step. Times are seconds of one step.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from rankwatch.contract.enums import Cause, StragglerVerdict
from rankwatch_monitor.core.events import CollectiveWindow
from rankwatch_monitor.core.ranks import Bools, Floats, Ints
from rankwatch_monitor.core.straggler.findings import Finding, Straggler
from rankwatch_monitor.core.straggler.lateness import CAUSES, Lateness

KEPT: Final = 20
"""Windows whose observations are kept."""
OUT_OF_NOISE: Final = 2.0
"""How many times further behind than noise would put it the last rank must be, on average, for ranks to take turns."""
ONE_RANK: Final = 0.6
"""Fraction of such windows with the same rank last above which ranks do not take turns."""
MANY: Final = 0.25
"""Fraction of the ranks from which on the constantly slow ones are a class of their own rather than single ones."""
PART_WORDS: Final = {Cause.DATA: "input", Cause.HOST: "host-side work", Cause.COMPUTE: "computation"}

UNDECLARED: Final = -1
"""Number of a stage that no rank has declared."""
SHOWN: Final = 8
"""Ranks of an undeclared stage that its sentence names."""
STARVED: Final = 0.5
"""Fraction of what a rank is behind above which waiting for a CPU is the reason."""

SIBLINGS: Final = 2
"""Other groups of the same kind from which on they are the reference."""
SMOOTHED: Final = 3
"""Windows whose median is a group's transfer time; its own best is the best of those medians."""
EARLIER: Final = 5
"""Windows after which a group's own best is a reference."""
MAX_TRANSFERS: Final = 8_192
"""Process groups, by number of collectives, whose transfer times are kept."""


class Criteria(NamedTuple):
    """Thresholds of the policy."""

    slowdown: float
    """Fraction of a step that matters."""
    needed: int
    of: int
    """A verdict must hold in ``needed`` of the last ``of`` windows."""


class HeavyStage(NamedTuple):
    """The pipeline stage with the most work in one window."""

    number: int
    """:data:`UNDECLARED`: ranks that may be one."""
    share: float
    """How much more than the others, as a fraction of the step."""
    ranks: tuple[int, ...]
    cause: Cause
    times: float = 1.0
    """Its work divided by that of the others."""


class LastRank(NamedTuple):
    """The rank that is furthest behind in one window."""

    rank: int
    share: float
    cause: Cause
    starved: bool = False
    """Most of it is waiting for a CPU."""


class SlowLink(NamedTuple):
    """A process group whose transfers take too long."""

    group: str
    seconds: float
    """Of one step."""
    usual: float
    """Of its reference."""
    against: str
    """``others``: the other groups of its kind; ``itself``: its own earlier best."""


@dataclass(slots=True)
class WindowRecord:
    """What was observed in the last windows, the newest last."""

    stages: deque[HeavyStage | None] = field(default_factory=lambda: deque(maxlen=KEPT))
    last_ranks: deque[LastRank | None] = field(default_factory=lambda: deque(maxlen=KEPT))
    links: deque[SlowLink | None] = field(default_factory=lambda: deque(maxlen=KEPT))


# Of one window --------------------------------------------------------------------------------------------------------


def heaviest_stage(late: Lateness, pipeline_R: Ints, slowdown: float) -> HeavyStage | None:
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
    return HeavyStage(number, share, members, Cause.COMPUTE)


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


def last_rank(late: Lateness, signal_R: Floats, waited_R: Floats) -> LastRank | None:
    """The rank that is furthest behind, and the part of its step with the largest excess.

    ``waited_R``: seconds of a step for which each rank waited for a CPU.
    """
    if np.isnan(signal_R).all():
        return None
    rank = int(np.nanargmax(signal_R))
    excess_P = late.excess_RP[rank]
    cause = CAUSES[int(np.argmax(excess_P))] if not np.isnan(excess_P).any() else Cause.UNEXPLAINED
    share = float(signal_R[rank])
    starved = bool(waited_R[rank] > STARVED * share * late.step_R[rank])  # NaN never is
    return LastRank(rank, share, cause, starved)


# Transfers of process groups ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Transfer:
    """The collectives of one process group in one window: how long they take without waiting."""

    members: int = 0
    calls: int = 0
    shortest: float = inf
    """The least time of one collective over all members."""
    exposed: float = inf
    """The least exposed time of a member in the step."""

    def take(self, collectives: CollectiveWindow) -> None:
        """Add the report of one member."""
        self.members += 1
        self.calls = max(self.calls, collectives.calls)
        self.exposed = min(self.exposed, collectives.exposed)
        if collectives.shortest > 0:
            self.shortest = min(self.shortest, collectives.shortest)


@dataclass(slots=True)
class _Times:
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=SMOOTHED))
    best: float = inf
    windows: int = 0


class TransferTimes:
    """Transfer times of a job's process groups: the last ones and the best."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, int], _Times] = {}
        """By group and number of collectives: a step with fewer of them is no reference for one with more."""
        self._newest: set[tuple[str, int]] = set()

    def take(self, transfers: Mapping[str, Transfer]) -> None:
        """Add one window, by process group."""
        self._newest = set()
        for group, transfer in transfers.items():
            if transfer.members < 2:
                continue  # of one member it is unknown whether it waited
            seconds = transfer.calls * transfer.shortest if transfer.shortest < inf else transfer.exposed
            key = (group, transfer.calls)
            self._newest.add(key)
            times = self._times.pop(key, None) or _Times()
            self._times[key] = times  # re-inserted, so that the first one is the least recently used
            times.recent.append(seconds)
            times.windows += 1
            if len(times.recent) == SMOOTHED:
                times.best = min(times.best, median(times.recent))
        while len(self._times) > MAX_TRANSFERS:
            del self._times[next(iter(self._times))]

    def slowest(self) -> SlowLink | None:
        """The group that loses most against its reference; None: none loses anything."""
        now = {key: median(times.recent) for key in self._newest if len((times := self._times[key]).recent) == SMOOTHED}
        kinds: dict[tuple[str, int], list[tuple[str, int]]] = {}
        for group, calls in now:
            kinds.setdefault((_kind_of(group), calls), []).append((group, calls))
        found: list[SlowLink] = []
        for keys in kinds.values():
            ordered = sorted(now[key] for key in keys)
            for key in keys:
                times = self._times[key]
                if len(keys) > SIBLINGS:
                    found.append(SlowLink(key[0], now[key], _median_without(ordered, now[key]), "others"))
                if times.windows >= EARLIER:
                    found.append(SlowLink(key[0], now[key], times.best, "itself"))
        slow = [link for link in found if link.seconds > link.usual]
        return max(slow, key=lambda link: link.seconds - link.usual, default=None)


@lru_cache(maxsize=MAX_TRANSFERS)
def _kind_of(group: str) -> str:
    """A group's name without its numbers: what it has in common with its siblings."""
    return re.sub(r"\d+", "#", group)


def _median_without(ordered: list[float], one: float) -> float:
    """The median of all values but one of them."""
    place, others = bisect_left(ordered, one), len(ordered) - 1
    low, high = ((others - 1) // 2, others // 2)
    return 0.5 * (ordered[low + (low >= place)] + ordered[high + (high >= place)])


# The verdict ----------------------------------------------------------------------------------------------------------


def finding(
    record: WindowRecord,
    stragglers: Sequence[Straggler],
    ranks: int,
    noise: float,
    step: float,
    criteria: Criteria,
    often_behind: Ints,
) -> Finding:
    """The verdict as of the newest window.

    Args:
        record: observations of the last windows.
        stragglers: the open ones.
        ranks: how many ranks reported the newest window.
        noise: standard deviation of one rank's lateness as a fraction of the step; NaN: unknown.
        step: seconds of a step.
        criteria: thresholds of the policy.
        often_behind: ranks that are behind by more than the slowdown that matters in most windows.
    """
    if stragglers:
        return _worker(stragglers)
    if (link := _link(record, step, criteria)) is not None:
        return link
    both = (_stage(record, criteria), _taking_turns(record, ranks, noise, criteria, often_behind))
    return max((each for each in both if each is not None), key=lambda each: each.share, default=Finding())


def _worker(stragglers: Sequence[Straggler]) -> Finding:
    first, others = stragglers[0], len(stragglers) - 1
    reason = (
        first.reason
        if not others
        else f"{first.reason} {others} more {'rank is' if others == 1 else 'ranks are'} slow."
    )
    worst = max((s.stated_share or 0.0) for s in stragglers)
    since = min(s.since for s in stragglers)
    return Finding(StragglerVerdict.WORKER, first.cause, reason, since, tuple(s.rank for s in stragglers), worst)


def _link(record: WindowRecord, step: float, criteria: Criteria) -> Finding | None:
    recent = list(record.links)[-criteria.of :]
    slow = [link for link in recent if link is not None and (link.seconds - link.usual) > criteria.slowdown * step]
    if len(slow) < criteria.needed or recent[-1] is None or recent[-1] not in slow:
        return None
    link = slow[-1]
    reference = "the other groups of its kind take" if link.against == "others" else "it took at its best"
    reason = (
        f"All members of process group {link.group!r} take long in its collectives, {_seconds(link.seconds)} of each "
        f"step where {reference} {_seconds(link.usual)}, and none of them is late: the link between them is slow."
    )
    share = (link.seconds - link.usual) / step
    return Finding(StragglerVerdict.LINK, Cause.COMMUNICATION, reason, share=share)


def _stage(record: WindowRecord, criteria: Criteria) -> Finding | None:
    recent = list(record.stages)[-criteria.of :]
    newest = recent[-1] if recent else None
    if newest is None or sum(s is not None and s.number == newest.number for s in recent) < criteria.needed:
        return None
    share = float(np.median([s.share for s in recent if s is not None and s.number == newest.number]))
    if newest.number == UNDECLARED:
        return Finding(StragglerVerdict.STAGE, newest.cause, _undeclared(newest), ranks=newest.ranks, share=share)
    more = f"Pipeline stage {newest.number} has more to do than the others, {_percent(share)} of a step on"
    reason = f"{more} all {len(newest.ranks)} of its ranks: the stages are unbalanced, no node is to blame."
    if len(newest.ranks) == 1:
        reason = f"{more} rank {newest.ranks[0]}, its only rank: its work cannot be distinguished from its node."
    return Finding(StragglerVerdict.STAGE, newest.cause, reason, ranks=newest.ranks, share=share)


def _taking_turns(
    record: WindowRecord, ranks: int, noise: float, criteria: Criteria, often_behind: Ints
) -> Finding | None:
    recent = [last for last in record.last_ranks if last is not None]
    if len(recent) < criteria.of or np.isnan(noise):
        return None
    # The largest of R normal deviations is about sigma * sqrt(2 ln R).
    by_noise = noise * float(np.sqrt(2.0 * np.log(max(ranks, 2))))
    behind = [last for last in recent if last.share > criteria.slowdown]
    lost = float(np.mean([max(last.share, 0.0) for last in recent]))
    often = len(behind) * criteria.of >= criteria.needed * len(recent)
    beyond = lost > OUT_OF_NOISE * by_noise or noise > criteria.slowdown
    if not often or not beyond or not lost > criteria.slowdown:
        return None
    most = max(sum(last.rank == rank for last in behind) for rank in {last.rank for last in behind})
    if most > max(1.0, ONE_RANK * len(behind)):
        return None
    if 2 * sum(last.starved for last in behind) > len(behind):
        reason = (
            f"Steps lose {_percent(lost)} to waiting for ranks that take turns in waiting for a CPU: other processes "
            "use those of their nodes, and no single rank is to blame."
        )
        return Finding(StragglerVerdict.UNEXPLAINED, Cause.HOST, reason, share=lost)
    causes = [last.cause for last in behind]
    cause = max(set(causes), key=causes.count)
    lose = f"Steps lose {_percent(lost)} to waiting"
    if 2 * sum(last.rank in often_behind for last in behind) > len(behind):
        reason = f"{lose} for {_same_ranks(often_behind, ranks, cause)}"
        ranks_behind = tuple(map(int, often_behind))
        return Finding(StragglerVerdict.UNEXPLAINED, cause, reason, ranks=ranks_behind, share=lost)
    if cause in (Cause.COMPUTE, Cause.DATA):
        reason = (
            f"{lose} for ranks that take turns in having more {PART_WORDS[cause]} than the others, as with sequences "
            "of different lengths: the workload is uneven, no node is to blame."
        )
        return Finding(StragglerVerdict.WORKLOAD, cause, reason, share=lost)
    what = PART_WORDS.get(cause, "nothing that was measured")
    reason = f"{lose} for ranks that take turns in being late, with {what}: no single rank is to blame."
    return Finding(StragglerVerdict.UNEXPLAINED, cause, reason, share=lost)


def _undeclared(stage: HeavyStage) -> str:
    one = len(stage.ranks) == 1
    if one:
        which = f"Rank {stage.ranks[0]} has"
    else:
        numbers = ", ".join(map(str, stage.ranks[:SHOWN]))
        more = f" and {len(stage.ranks) - SHOWN} more" if len(stage.ranks) > SHOWN else ""
        which = f"Ranks {numbers}{more} have"
    nodes = "its node is" if one else "their nodes are"
    return (
        f"{which} done {stage.times:.1f} times the work of the others since the first steps, and ranks send to each "
        f"other as the stages of a pipeline do: the stages are unbalanced, or {nodes} slow. Where each rank declares "
        "its stage (dl.pipeline_parallel.rank in OTEL_RESOURCE_ATTRIBUTES), it is compared with that stage alone."
    )


def _same_ranks(often_behind: Ints, ranks: int, cause: Cause) -> str:
    """Names ranks that are late again and again, and why none of them is called a straggler."""
    what = f"with more {PART_WORDS[cause]}" if cause in PART_WORDS else "with nothing that was measured"
    if len(often_behind) == 1:
        which = f"rank {often_behind[0]}, which is behind in most windows, {what}"
    else:
        which = f"{len(often_behind)} of {ranks} ranks, which are behind in most windows, {what}"
    if len(often_behind) < MANY * ranks or len(often_behind) == 1:
        return f"{which}; but steps differ too much from window to window to be sure of a straggler."
    return f"{which}: too many for one of them to be at fault. Do they have other hardware, or other work?"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.995 else f"{1000 * seconds:.3g} ms"


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %"
