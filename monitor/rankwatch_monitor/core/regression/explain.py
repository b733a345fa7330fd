"""Why steps take another time than before: finds when it changed, compares both sides, says what the change is made of.

How this works
--------------
The moment is the one asked for, or the largest lasting change of the median step time in the last hour; how such a
change is told from noise stands in ``change_points``. An episode of less than :data:`EPISODE` seconds counts only when
there is nothing else, and of two changes about as large the one to longer steps is meant. Up to :data:`REACH` seconds
on each side, within which nothing else changed, are compared: the parts of the step, whose shares add up to the change
(``contributors``), and what else changed at that time (``circumstances``).

A cause is named only when it makes up more than half of the change. Everything here is a comparison of medians over
ranks and time: it works as well when all ranks slow alike, which no comparison of ranks can see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from rankwatch.contract.enums import Cause, Part
from rankwatch.contract.semconv import DATA_SECTIONS
from rankwatch_monitor.core.ranks import Floats
from rankwatch_monitor.core.regression import change_points
from rankwatch_monitor.core.regression.change_points import SIDE, Change
from rankwatch_monitor.core.regression.circumstances import circumstances
from rankwatch_monitor.core.regression.comparison import (
    Circumstance,
    Contributor,
    PartChange,
    Sides,
    clock_time,
    percent,
    span,
)
from rankwatch_monitor.core.regression.contributors import contributors, part_changes
from rankwatch_monitor.core.regression.history import History
from rankwatch_monitor.core.regression.sample import Sample

HOUR: Final = 3600.0
"""Seconds that are looked at: the last ones, or on each side of the moment asked for."""
REACH: Final = 1800.0
"""Seconds of each side that are compared at most."""
EPISODE: Final = 180.0
NEAR: Final = 120.0
"""How far from the moment asked for a change may lie to be the one that is meant: people round."""
STEADY: Final = 86_400.0
"""How far is looked back to say since when nothing changed."""
MOST: Final = 0.5
"""Share of the change that a cause must exceed to be named."""
SLOWER_FIRST: Final = 1.1
TWICE: Final = 1.5
"""From this factor on it is told as a factor, below it in percent."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What changed, and what it is made of."""

    kind: str
    """``change``, ``drift``, ``steady``, or ``unknown`` when there is too little to say."""
    sentence: str
    since: float | None = None
    """Unix seconds of the change; of a steady job since when it is steady."""
    before: float | None = None
    after: float | None = None
    """Seconds of a step."""
    cause: str = ""
    """A part of the step, or ``unexplained``; empty when nothing changed."""
    parts: tuple[PartChange, ...] = ()
    contributors: tuple[Contributor, ...] = ()
    circumstances: tuple[Circumstance, ...] = ()

    @property
    def factor(self) -> float | None:
        """How many times as long a step takes."""
        return self.after / self.before if self.before and self.after else None

    def to_json(self) -> dict[str, Any]:
        """For the API."""
        lists = ("parts", "contributors", "circumstances")
        rows = {name: [each._asdict() for each in getattr(self, name)] for name in lists}
        return {**asdict(self), "factor": self.factor, **rows}


def explain(history: History, at: float | None = None) -> Explanation:
    """Say why steps take another time than before.

    Args:
        history: of the job.
        at: unix seconds of the moment that is meant; without it the largest lasting change of the last hour.

    Raises:
        ValueError: nothing is kept of that moment.
    """
    latest, first_at = history.latest, history.first_at
    if latest is None or first_at is None:
        return Explanation("unknown", "Nothing is known yet: no window of steps of this job was judged so far.")
    now = latest.at
    if at is None:
        samples = history.window(now - HOUR)
        step_T = _steps(samples)
        if change := _largest(samples, change_points.changes(step_T)):
            return _told(samples, change, now)
        if line := change_points.drift(step_T):
            return _drifted(samples, line, now)
        return _steady(history, samples, now)
    if not first_at <= at <= now + 1:
        raise ValueError(
            f"nothing is kept of {clock_time(at, now)}: what is known of this job's steps reaches from "
            f"{clock_time(first_at, now)} to {clock_time(now, now)} (UTC)"
        )
    return _at(history.window(at - HOUR, at + HOUR), at, now)


def _steps(samples: Sequence[Sample]) -> Floats:
    return np.array([sample.step for sample in samples], dtype=np.float64)


def _largest(samples: Sequence[Sample], found: Sequence[Change]) -> Change | None:
    def size(change: Change) -> tuple[bool, float]:
        before = _began(samples, change.at) - _began(samples, change.first)
        after = samples[change.end - 1].at - _began(samples, change.at)
        # What reaches the end of what is looked at may have lasted, or may last, for longer.
        lasting = (before >= EPISODE or change.first == 0) and (after >= EPISODE or change.end == len(samples))
        return lasting, abs(float(np.log(change.factor))) * (SLOWER_FIRST if change.factor > 1 else 1.0)

    return max(found, key=size, default=None)


def _began(samples: Sequence[Sample], at: int) -> float:
    """When a sample's time began: with the end of the one before, unless there is a gap."""
    begin = samples[at].at - samples[at].seconds
    return max(begin, samples[at - 1].at) if at else begin


def _at(samples: Sequence[Sample], at: float, now: float) -> Explanation:
    """The change next to a moment, or what was before and after it."""
    found = change_points.changes(_steps(samples))
    near = [change for change in found if abs(_began(samples, change.at) - at) <= NEAR]
    if near:
        return _told(samples, max(near, key=lambda change: abs(float(np.log(change.factor)))), now)
    split = int(np.searchsorted([sample.at for sample in samples], at, side="right"))
    edges = [0, *(change.at for change in found), len(samples)]
    first = max(edge for edge in edges if edge <= split)
    end = min((edge for edge in edges if edge > split), default=len(samples))
    if min(split - first, end - split) < SIDE:
        words = f"Too little is known around {clock_time(at, now)} to compare: {split - first} windows before it and "
        return Explanation("unknown", f"{words}{end - split} after it, where {SIDE} are needed.")
    step_T = _steps(samples)
    before, after = float(np.median(step_T[first:split])), float(np.median(step_T[split:end]))
    change = Change(first, split, end, before, after)
    if change_points.differs(step_T[first:split], step_T[split:end]):
        return _told(samples, change, now)
    words = f"Nothing changed at {clock_time(at, now)}: steps took {span(before)} before and {span(after)} after"
    return Explanation("steady", f"{words}.", _began(samples, first), before, after)


def _told(samples: Sequence[Sample], change: Change, now: float) -> Explanation:
    since = _began(samples, change.at)
    before = [sample for sample in samples[change.first : change.at] if sample.at >= since - REACH]
    after = [sample for sample in samples[change.at : change.end] if sample.at <= since + REACH]
    sides = Sides(before or samples[change.at - 1 : change.at], after or samples[change.at : change.at + 1])
    return _compared("change", sides, since, f"since {clock_time(since, now)}")


def _drifted(samples: Sequence[Sample], line: change_points.Drift, now: float) -> Explanation:
    sixth = max(SIDE, len(samples) // 6)
    since = _began(samples, 0)
    words = f"little by little since {clock_time(since, now)}, without a moment at which it changed"
    del line
    return _compared("drift", Sides(samples[:sixth], samples[-sixth:]), since, words)


def _steady(history: History, samples: Sequence[Sample], now: float) -> Explanation:
    if len(samples) < 2 * SIDE:
        words = (
            f"Too little is known yet: {len(samples)} windows of steps in the last hour, where {2 * SIDE} are needed"
        )
        return Explanation("unknown", f"{words}.")
    step_T = _steps(samples)
    level = float(np.median(step_T))
    noise = 1.4826 * float(np.median(np.abs(np.log(step_T / level))))
    longer = history.window(now - STEADY)
    other = np.abs(np.log(_steps(longer) / level)) > max(np.log1p(2 * change_points.LEAST), 4 * noise)
    # Three of another level in a row; fewer are spikes.
    runs = np.convolve(other, np.ones(SIDE), "valid") >= SIDE if len(other) >= SIDE else np.zeros(0, dtype=np.bool_)
    begins = int(np.flatnonzero(runs)[-1]) + SIDE if runs.any() else 0
    since = _began(longer, min(begins, len(longer) - 1))
    words = f"Nothing changed in the last hour: steps have taken {span(level)} since {clock_time(since, now)}."
    return Explanation("steady", words, since, level, level)


def _compared(kind: str, sides: Sides, since: float, when: str) -> Explanation:
    before, after = sides.step()
    if before == after:
        return Explanation("steady", f"Steps take {span(after)} as before.", since, before, after)
    parts, found, besides = part_changes(sides), contributors(sides), circumstances(sides)
    cause, words = _cause(parts, found)
    at_the_same_time = f"; at the same time {besides[0].sentence}" if besides else ""
    head = f"{_head(after / before)} {when} ({span(before)} -> {span(after)})"
    sentence = f"{head}: {words}{at_the_same_time}."
    return Explanation(kind, sentence, since, before, after, cause, parts, found, besides)


def _head(factor: float) -> str:
    if factor >= TWICE:
        return f"Steps take {factor:.1f} times as long"
    if factor > 1:
        return f"Steps take {percent(factor - 1)} longer"
    return f"Steps take {percent(1 - factor)} less time"


def _cause(parts: Sequence[PartChange], found: Sequence[Contributor]) -> tuple[str, str]:
    """The part that makes up most of the change and the words for it; ``unexplained`` when none does."""
    if not parts:
        return _section_cause(found)
    measured = [part for part in parts if part.part != Cause.UNEXPLAINED]
    main = max(measured, key=lambda part: part.share)
    inside = [each for each in found if each.part == main.part]
    if main.share > MOST:
        waited = next((each for each in inside if each.kind == "rank" and each.share > MOST), None)
        if main.part == Part.COMMUNICATION and waited is not None:
            return main.part, f"{_share(waited.share)} is {waited.sentence}"
        detail = f", most of all {inside[0].sentence}" if inside else ""
        return main.part, f"{_share(main.share)} is {main.part} ({span(main.before)} -> {span(main.after)}){detail}"
    rest = next((part.share for part in parts if part.part == Cause.UNEXPLAINED), 0.0)
    if rest > MOST:
        return str(Cause.UNEXPLAINED), f"unexplained, as {_share(rest)} lies in no part that is measured"
    told = ", ".join(f"{part.part} {percent(part.share)}" for part in parts if part.share > 0)
    return str(Cause.UNEXPLAINED), f"unexplained, as no part makes up more than half of it ({told})"


def _section_cause(found: Sequence[Contributor]) -> tuple[str, str]:
    """The same where the parts of a step are not known: by sections."""
    unexplained = str(Cause.UNEXPLAINED)
    sections = [each for each in found if each.kind == "section"]
    if not sections:
        return unexplained, "unexplained, as neither parts of the step nor sections are known on both sides"
    first = sections[0]
    if first.share <= MOST:
        return (
            unexplained,
            f"unexplained, as no section makes up more than half of it ({percent(first.share)}: {first.name})",
        )
    cause = str(Part.DATA) if first.part == Part.DATA or first.name in DATA_SECTIONS else unexplained
    return cause, f"{_share(first.share)} is {first.sentence}"


def _share(share: float) -> str:
    return "all of it" if share >= 0.95 else f"{percent(share)} of it"
