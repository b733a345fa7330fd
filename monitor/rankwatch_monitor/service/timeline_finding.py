"""What the section timeline shows, in sentences: which rank works longest, in what, and how long the others wait.

A step's time in collectives is known where the step was profiled; a rank works in the rest of it. Without that, the
section that takes longest compared with the other ranks is named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Any, Final, NamedTuple

from rankwatch.cli.formatting import capital
from rankwatch_monitor.core.nodes import format_ranks
from rankwatch_monitor.core.straggler.describe import seconds
from rankwatch_monitor.service.span_store import RankStep

Lanes = Mapping[int, Sequence[RankStep]]
"""The steps shown of each rank."""

NOTABLE: Final = 0.05
"""Waiting below this share of a step is not worth a sentence."""
LONGER: Final = 1.25
"""A section at this multiple of the others' median is."""
NAMED: Final = 2
LEAST: Final = 0.2
"""Sections that are named at most, and the share of the lag that one has at least."""
ALIKE: Final = 0.1
"""Steps whose times differ by less than this share are alike."""
SAME: Final = 0.05
"""Waiting in sampled steps and in whole windows is the same within this share."""
UNMEASURED: Final = "how long ranks wait for others was not measured"


class Work(NamedTuple):
    """What a rank does in a step, in the mean of those in which its waiting was measured."""

    rank: int
    works: float
    waits: float
    sections: Mapping[str, float]
    """Seconds of each section's own work: without what is nested in it, and without time in collectives."""


def sentences(
    lanes: Lanes, blamed: Sequence[int], known: int, lateness: Mapping[int, float | None], size: int
) -> dict[str, str]:
    """:func:`finding` and :func:`basis`, for the API."""
    return {"finding": finding(lanes, blamed, known), "basis": basis(lanes, lateness, size)}


def figures(lanes: Lanes, sections: Sequence[str]) -> dict[int, dict[str, Any]]:
    """The figures that the sentences are made of, by rank, for the API; ``own`` in the order of ``sections``."""
    works = {each.rank: each for each in measured(lanes)}
    found = {}
    for rank, steps in lanes.items():
        work = works.get(rank)
        own = work.sections if work else {} if works else _own(steps)
        found[rank] = {
            "works": work and round(work.works, 6),
            "waits": work and round(work.waits, 6),
            "own": [round(own[name], 6) if name in own else None for name in sections],
        }
    return found


def finding(lanes: Lanes, blamed: Sequence[int], known: int) -> str:
    """Which rank works longest or which section takes longest, in a sentence; empty: no steps are shown.

    Args:
        lanes: the steps shown.
        blamed: ranks that a culprit or a straggler was found in; only for those the others are said to wait.
        known: ranks of the job of which spans are kept; where all of them are shown, no other can be the slow one.
    """
    if not any(lanes.values()):
        return ""
    works = measured(lanes)
    if absent := _absent(lanes):
        return absent
    return _sections(lanes) if len(works) < 2 else _waiting(lanes, works, blamed, known)


def basis(lanes: Lanes, lateness: Mapping[int, float | None], size: int) -> str:
    """What the figures are of, and the job's own figure beside them; empty: they are of all ranks, or nothing is known.

    Args:
        lanes: the steps shown.
        lateness: of the open stragglers, the costliest first: seconds of each step that the others wait for them.
        size: the ranks of the job.
    """
    works = measured(lanes)
    if not works:
        return ""
    shown = ((rank, late) for rank, late in lateness.items() if late is not None and rank in lanes)
    whole = next((_over_windows(works, rank, late) for rank, late in shown), "")
    if len(lanes) >= size:
        return f"Measured in sampled steps; {whole}." if whole else ""
    rest = f" in sampled steps; on all ranks and {whole}" if whole else ""
    return f"Measured on {len(lanes):,} of {size:,} ranks{rest}."


def measured(lanes: Lanes) -> list[Work]:
    """The ranks of which waiting was measured."""
    found = []
    for rank, every in lanes.items():
        if steps := _measured(every):
            works = fmean(step.seconds - _waited(step) for step in steps)
            found.append(Work(rank, works, fmean(map(_waited, steps)), _own(steps)))
    return found


def _waiting(lanes: Lanes, works: Sequence[Work], blamed: Sequence[int], known: int) -> str:
    longest = min(works, key=lambda each: each.waits)
    others = [each for each in works if each is not longest]
    lag = median(each.waits for each in others) - longest.waits
    when = _in_steps(lanes, _measured)
    if lag < NOTABLE * (longest.works + longest.waits):
        low, high = seconds(min(each.works for each in works)), seconds(max(each.works for each in works))
        took = low if low == high else f"{low} to {high}"
        most = seconds(max(each.waits for each in works) - longest.waits)
        alike = f"the {len(works)} ranks work about equally long, {took} of a step"
        return f"{when} {alike}, and wait {most} for each other at most."
    whom = "for it" if longest.rank in blamed or len(works) == known else "longer than it"
    one = len(others) == 1
    rest = f"rank {others[0].rank} works" if one else f"the other {len(others)} work"
    took = f"{rest} {seconds(median(each.works for each in others))} and {'waits' if one else 'wait'} {seconds(lag)}"
    return f"{when} rank {longest.rank} works {seconds(longest.works)}; {took} {whom}.{_causes(longest, others, lag)}"


def _causes(slow: Work, others: Sequence[Work], lag: float) -> str:
    """`` It takes longer in backward (+40 ms) and forward (+20 ms).``"""
    more = {
        name: took - median(each.sections.get(name, 0.0) for each in others) for name, took in slow.sections.items()
    }
    named = sorted((name for name in more if more[name] >= LEAST * lag), key=lambda name: -more[name])[:NAMED]
    words = " and ".join(f"{name} (+{seconds(more[name])})" for name in named)
    return f" It takes longer in {words}." if words else ""


def _sections(lanes: Lanes) -> str:
    """The section that takes longest compared with the other ranks, where waiting was not measured."""
    if len(lanes) < 2:
        return f"One rank is shown; {UNMEASURED}."
    when, step = _in_steps(lanes, list), median(each.seconds for steps in lanes.values() for each in steps)
    taken = {rank: _taken(steps) for rank, steps in lanes.items()}
    most, worst = 0.0, ""
    for name in dict.fromkeys(name for sections in taken.values() for name in sections):
        took = {rank: sections.get(name, 0.0) for rank, sections in taken.items()}
        rank = max(took, key=took.__getitem__)
        usual = median(each for other, each in took.items() if other != rank)
        more = took[rank] - usual
        if more >= NOTABLE * step and took[rank] >= LONGER * usual and more > most:
            most = more
            worst = f"rank {rank} takes {seconds(took[rank])} for {name}, the others {seconds(usual)}"
    return f"{when} {worst or 'no section takes much longer on one of these ranks than on the others'}; {UNMEASURED}."


def _absent(lanes: Lanes) -> str:
    """That a few ranks have no sections of the newest step; empty: all have them, or most do not."""
    newest = max(step.iteration for steps in lanes.values() for step in steps)
    without = [rank for rank, steps in lanes.items() if all(step.iteration != newest for step in steps)]
    if not without or 2 * len(without) >= len(lanes):
        return ""
    ranks = f"{capital(format_ranks(without))} {'has' if len(without) == 1 else 'have'}"
    rest = len(lanes) - len(without)
    others = "the other rank has" if rest == 1 else f"the other {rest} ranks have"
    return f"{ranks} sent no sections of step {newest:,}; {others}."


def _over_windows(works: Sequence[Work], rank: int, late: float) -> str:
    """How long the others wait for a rank in whole windows, beside what the sampled steps show."""
    longest = min(each.waits for each in works)
    waits = sorted(each.waits for each in works)[1:]
    if waits and abs(median(waits) - longest - late) <= SAME * late:
        return f"over whole windows it is the same within {100 * SAME:.0f} %"
    return f"over whole windows the others wait {seconds(late)} of each step for rank {rank}"


def _in_steps(lanes: Lanes, of: Callable[[Sequence[RankStep]], Sequence[RankStep]]) -> str:
    """``In this step``, ``In each of these 2 steps``."""
    shown = [step for steps in lanes.values() for step in of(steps)]
    number = len({step.iteration for step in shown})
    if number == 1:
        return "In this step"
    took = [step.seconds for step in shown]
    return f"{'In each' if max(took) <= (1 + ALIKE) * min(took) else 'On average'} of these {number} steps"


def _measured(steps: Sequence[RankStep]) -> list[RankStep]:
    return [step for step in steps if step.waits is not None]


def _waited(step: RankStep, start: float = 0.0, end: float = float("inf")) -> float:
    """Seconds in collectives between two moments of a step."""
    return sum(max(0.0, min(end, at + each) - max(start, at)) for at, each in step.waits or ())


def _own(steps: Sequence[RankStep]) -> dict[str, float]:
    found: dict[str, float] = {}
    for step in steps:
        works = [span.duration - _waited(step, span.start, span.start + span.duration) for span in step.spans]
        rests, around = list(works), dict[int, int]()
        for i, span in enumerate(step.spans):  # outer ones first
            around[span.depth] = i
            if span.depth:
                rests[around[span.depth - 1]] -= works[i]
        for span, rest in zip(step.spans, rests, strict=True):
            found[span.section] = found.get(span.section, 0.0) + max(0.0, rest) / len(steps)
    return found


def _taken(steps: Sequence[RankStep]) -> dict[str, float]:
    """Seconds of a step in each section, with what is nested in it and with time in collectives."""
    found: dict[str, float] = {}
    for step in steps:
        for span in step.spans:
            found[span.section] = found.get(span.section, 0.0) + span.duration / len(steps)
    return found
