"""Explains why steps take another time than before: when it changed, what the change consists of, what else changed.

The moment is the one asked for, or that of :func:`~.comparison.recent`. Up to :data:`REACH` seconds on each side,
within which nothing else changed, are compared:

*  the parts of the step, whose shares add up to the change (:func:`part_changes`),
*  what is behind them: sections, kernels, collectives, waited-for ranks, waiting for a CPU (:func:`contributors`), with
   shares that add up to the whole change at most (``attribution``),
*  what else changed at that time: policy, world, hosts, clocks (:func:`correlated_changes`). That two things happened
   at the same time makes neither the cause of the other.

A cause is named only when it makes up more than half of the change. Medians over ranks and time are compared, so it
works as well when all ranks slow alike, which no comparison of ranks can see.

Shapes: T samples over time. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from rankwatch.cli.formatting import count
from rankwatch.contract.enums import Cause, Part
from rankwatch.contract.semconv import DATA_SECTIONS
from rankwatch_monitor.core.events import throttle_words
from rankwatch_monitor.core.plain import named, plain
from rankwatch_monitor.core.regression import change_points
from rankwatch_monitor.core.regression.attribution import LEAST_SHARE, Contributor, PartChange, attributed
from rankwatch_monitor.core.regression.change_points import SIDE
from rankwatch_monitor.core.regression.comparison import HOUR, Comparison, Evidence, began, compare, recent, steps
from rankwatch_monitor.core.regression.history import History
from rankwatch_monitor.core.regression.sample import (
    KERNELS,
    OWN_PARTS,
    Sample,
    SectionSample,
    SlowRank,
    weighted_median,
)
from rankwatch_monitor.core.words.step_times import (
    TWICE,
    change_words,
    clock_time,
    duration,
    percent,
    slow_words,
    steady,
    unsure,
)

# Which change
REACH: Final = 1800.0
"""Seconds of each side that are compared at most."""
NEAR: Final = 120.0
"""How far from the moment asked for a change may be to be the one that is meant: people round."""
SAME_MOMENT: Final = 30.0
"""Seconds between a change and the beginning of a straggler, which is known by windows, up to which both are one."""
STEADY: Final = 86_400.0
"""Seconds searched for the beginning of a steady time."""

# Contributors
MOSTLY_CAUSED: Final = 0.5
"""Share of the change that a cause must exceed to be named."""
MOSTLY: Final = 0.6
"""Fraction of the time for which a rank must be the slowest to be named as the slowest."""
MOST_CONTRIBUTORS: Final = 12
MOST_SLOW: Final = 5
ON_ONE_RANK: Final = 0.25
"""How much more than the median rank's a section of one rank must have grown, as a share, to be named."""
ON_ONE_RANK_FIRST: Final = 1.2
"""Factor by which a section that grew on one rank is preferred: the others may wait in one that grew on all ranks."""

# Correlated changes
NEAR_SAMPLES: Final = 3
"""Samples on each side of the change in which a policy change counts as simultaneous."""
CLOCK: Final = 0.03
CLOCK_MIN: Final = 0.05
"""Least change of the median and of the lowest clock, as a fraction."""
TEMPERATURE: Final = 5.0
"""Least change in degrees."""
CPU_WAIT: Final = 0.05
"""Least change of the wait for a CPU, as a share of the change of the step."""
LATENESS: Final = 0.1
"""Least lateness of a rank that became the slowest, as a share of the change of the step."""
NAMED_HOSTS: Final = 5

MOST_SEEN: Final = 3
ALIKE: Final = 0.1
"""Seconds that differ by less than this share are the same ones."""
REST: Final = "; for the rest, compare the ranks in the section timeline"
HIDDEN: Final = "; the rest is in sections in which waiting hides it: the section timeline shows it"


class CorrelatedChange(NamedTuple):
    """Something else that changed at the same time; not necessarily the cause."""

    kind: str
    sentence: str
    before: Any
    after: Any
    code: str = ""
    """The reason of a throttling."""


class KnownSlow(NamedTuple):
    """What is known of a straggler."""

    since: float
    """Unix seconds since when it has been slow."""
    gpu: str = ""
    """``GPU 5``, if its throttling is the cause."""
    throttling: tuple[str, ...] = ()
    """The reasons."""
    throttled_since: float = -np.inf
    ended: float | None = None
    host: str = ""
    cause: str = ""
    step_before: float | None = None

    def explains(self, change: CorrelatedChange) -> bool:
        """Whether a change is that its GPU, and no other one, is throttled since it became slow."""
        one = change.kind == "throttling" and (change.before, change.after) == (0, 1)
        together = abs(self.throttled_since - self.since) <= SAME_MOMENT
        return one and together and bool(self.gpu) and (change.code,) == self.throttling


@dataclass(frozen=True, slots=True)
class SlowSpan:
    """A rank that is or was slow in the time that is explained."""

    rank: int
    host: str
    since: float
    ended: float | None
    step_before: float | None
    """Seconds of a step before it; None: not known."""
    cause: str
    sentence: str


NO_STRAGGLERS: Final[Mapping[int, KnownSlow]] = {}


@dataclass(frozen=True, slots=True)
class Explanation:
    """What changed, and what the change consists of."""

    kind: str
    """``change``, ``drift``, ``unsure`` where windows are too few or vary too much, ``steady``, or ``unknown``."""
    sentence: str
    since: float | None = None
    """Unix seconds of the change, or of the beginning of a steady time."""
    before: float | None = None
    after: float | None = None
    """Seconds of a step."""
    cause: str = ""
    """A part of the step, or ``unexplained``; empty when nothing changed."""
    parts: tuple[PartChange, ...] = ()
    contributors: tuple[Contributor, ...] = ()
    circumstances: tuple[CorrelatedChange, ...] = ()
    seen: tuple[str, ...] = ()
    """Where the same seconds, or some of them, are seen too: a sentence each."""
    slow: tuple[SlowSpan, ...] = ()
    """The ranks that are or were slow in that time, whatever the answer is."""
    states_slow: bool = False
    """The sentence names them."""
    compared: Comparison | None = None
    """The windows that were compared; None: too few."""

    @property
    def factor(self) -> float | None:
        """How many times as long a step takes."""
        return self.after / self.before if self.before and self.after else None

    def to_json(self) -> dict[str, Any]:
        """For the API."""
        return {
            **plain(self),
            "factor": self.factor,
            "contributors": [each.to_json() for each in self.contributors],
            "circumstances": [named(each, ("kind", "sentence", "before", "after")) for each in self.circumstances],
            "compared": self.compared and named(self.compared, ("windows", "low", "high", "visible")),
        }


# Which change ---------------------------------------------------------------------------------------------------------


def explain(
    history: History,
    at: float | None = None,
    happened: Sequence[str] = (),
    stragglers: Mapping[int, KnownSlow] = NO_STRAGGLERS,
) -> Explanation:
    """Explain why steps take another time than before; "Nothing changed" stands only where nothing happened either.

    Args:
        at: unix seconds of the change; None: the largest lasting change of the last hour.
        happened: what else happened in that time, such as "1 incident" or "the job is hung".
        stragglers: by their ranks: where steps take longer as others wait for one of them, the change began with it.

    Raises:
        ValueError: the history does not cover ``at``.
    """
    latest, first_at = history.latest, history.first_at
    if latest is None or first_at is None:
        return Explanation("unknown", "Nothing is known yet: no window of steps of this job has been evaluated.")
    now = latest.at
    if at is not None and not first_at <= at <= now + 1:
        raise ValueError(
            f"the history of this job's steps does not cover {clock_time(at, now)}: it reaches from "
            f"{clock_time(first_at, now)} to {clock_time(now, now)} (UTC)"
        )
    samples = history.window(now - HOUR) if at is None else history.window(at - HOUR, at + HOUR)
    slow = slow_ranks(samples, stragglers, now)
    told = [*happened, *(each.sentence for each in slow)]
    if at is not None:
        found = _explain_at(samples, at, now, stragglers, told)
    else:
        found = _explain_last(history, samples, now, stragglers, told)
    return replace(found, slow=slow)


def slow_ranks(samples: Sequence[Sample], stragglers: Mapping[int, KnownSlow], now: float) -> tuple[SlowSpan, ...]:
    """The ranks that are or were slow in the time of these samples, the last first."""
    found = []
    for rank, known in sorted(stragglers.items(), key=lambda each: -each[1].since):
        if not samples or (known.ended or now) < began(samples, 0) or known.since > samples[-1].at:
            continue
        earlier = [sample.step for sample in samples if sample.at <= known.since + 1.0]
        before = known.step_before or (float(np.median(earlier)) if earlier else None)
        words = slow_words(rank, known.host, known.since, known.ended, before, now)
        found.append(SlowSpan(rank, known.host, known.since, known.ended, before, known.cause, words))
    return tuple(found[:MOST_SLOW])


def _explain_last(
    history: History,
    samples: Sequence[Sample],
    now: float,
    stragglers: Mapping[int, KnownSlow],
    happened: Sequence[str],
) -> Explanation:
    found = recent(samples, [each.since for each in stragglers.values()])
    if found is None:
        known = count(len(samples), "window")
        words = f"Too little is known yet: {known} of steps in the last hour, where {2 * SIDE} are needed."
        return Explanation("unknown", words)
    if found.evidence is Evidence.CHANGED:
        return _explain_change(samples, found, now, stragglers)
    if found.evidence is Evidence.DRIFT:
        sides = Sides(samples[: found.end - found.at], samples[found.at :])
        words = f"gradually since {clock_time(began(samples, 0), now)}, without a moment at which it changed"
        return _compare("drift", sides, began(samples, 0), words)
    if found.evidence is Evidence.UNSURE:
        return _unsure(samples, found, now)
    return _steady(history, samples, found, now, happened)


def _unsure(samples: Sequence[Sample], found: Comparison, now: float) -> Explanation:
    since = began(samples, found.at)
    span, edges = (found.before, found.after), (found.low, found.high)
    words = unsure(found.windows, span, edges, clock_time(since, now), SIDE)
    return Explanation("unsure", words, since, *span, compared=found)


def _explain_at(
    samples: Sequence[Sample],
    at: float,
    now: float,
    stragglers: Mapping[int, KnownSlow],
    happened: Sequence[str],
) -> Explanation:
    """The change next to a moment, else a comparison of before and after it."""
    step_T = steps(samples)
    changes = change_points.changes(step_T)
    near = [change for change in changes if abs(began(samples, change.at) - at) <= NEAR]
    if near:
        largest = max(near, key=lambda change: abs(float(np.log(change.factor))))
        return _explain_change(samples, compare(step_T, *largest[:3]), now, stragglers)
    split = int(np.searchsorted([sample.at for sample in samples], at, side="right"))
    edges = [0, *(change.at for change in changes), len(samples)]
    first = max(edge for edge in edges if edge <= split)
    end = min((edge for edge in edges if edge > split), default=len(samples))
    if first == split or split == end:
        known = f"{count(split - first, 'window')} before it and {end - split} after it"
        words = f"Too little is known around {clock_time(at, now)} to compare: {known}"
        return Explanation("unknown", f"{words}.")
    found = compare(step_T, first, split, end)
    if found.evidence is Evidence.CHANGED:
        return _explain_change(samples, found, now, stragglers)
    if found.evidence is Evidence.UNSURE:
        return _unsure(samples, found, now)
    taken = f"steps took {duration(found.before)} before and {duration(found.after)} after"
    visible = None if found.evidence is Evidence.SAME else found.visible
    words = steady(f"at {clock_time(at, now)}", taken, visible, end - first, happened)
    since = began(samples, first)
    return Explanation("steady", words, since, found.before, found.after, states_slow=True, compared=found)


def _explain_change(
    samples: Sequence[Sample], change: Comparison, now: float, stragglers: Mapping[int, KnownSlow]
) -> Explanation:
    since = began(samples, change.at)
    before = [sample for sample in samples[change.first : change.at] if sample.at >= since - REACH]
    after = [sample for sample in samples[change.at : change.end] if sample.at <= since + REACH]
    sides = Sides(before or samples[change.at - 1 : change.at], after or samples[change.at : change.at + 1])
    slow = slowest_rank(sides.after) if change.factor > 1 else None
    straggler = stragglers.get(slow.rank) if slow is not None else None
    if straggler is None or abs(straggler.since - since) > SAME_MOMENT:
        straggler, when = None, since
    else:
        when = straggler.since
    return replace(_compare("change", sides, when, f"since {clock_time(when, now)}", straggler), compared=change)


def _steady(
    history: History, samples: Sequence[Sample], found: Comparison, now: float, happened: Sequence[str]
) -> Explanation:
    step_T = steps(samples)
    level = float(np.median(step_T))
    noise = 1.4826 * float(np.median(np.abs(np.log(step_T / level))))
    longer = history.window(now - STEADY)
    other = np.abs(np.log(steps(longer) / level)) > max(np.log1p(2 * change_points.LEAST), 4 * noise)
    # Three samples of another level in a row; fewer are spikes.
    runs = np.convolve(other, np.ones(SIDE), "valid") >= SIDE if len(other) >= SIDE else np.zeros(0, dtype=np.bool_)
    begins = int(np.flatnonzero(runs)[-1]) + SIDE if runs.any() else 0
    since = began(longer, min(begins, len(longer) - 1))
    taken = f"steps have taken a median of {duration(level)}"
    if longer[0].at - longer[0].seconds <= now - HOUR:
        span, taken = "in the last hour", f"{taken} since {clock_time(since, now)}"
    else:
        span = f"since {clock_time(since, now)}" if begins else "since the first step"
    slow_T = step_T > TWICE * level
    slow_T[1 - SIDE :] |= np.log(step_T[1 - SIDE :] / level) > max(np.log1p(change_points.LEAST), 4 * noise)
    slow = step_T[slow_T]
    if len(slow):
        longest = duration(float(slow.max()))
        taken = f"{taken}, but {len(slow)} of {len(samples)} samples up to {longest}"
    visible = None if found.evidence is Evidence.SAME else found.visible
    words = steady(span, taken, visible, len(samples), happened, spikes=bool(len(slow)))
    return Explanation("steady", words, since, level, level, states_slow=True, compared=found)


def _compare(kind: str, sides: Sides, since: float, when: str, straggler: KnownSlow | None = None) -> Explanation:
    before, after = sides.step()
    if before == after:
        return Explanation("steady", f"Steps take {duration(after)} as before.", since, before, after)
    parts, found, correlated = part_changes(sides), contributors(sides), correlated_changes(sides)
    cause, words, named = _cause(parts, found)
    # That the rank which the others wait for is the slowest is the same fact again.
    waits = named is not None and named.kind == "rank"
    news = [each for each in correlated if each.kind != "slowest" or not waits]
    at_the_same_time = f"; at the same time {news[0].sentence}" if news else ""
    if waits and news and straggler is not None and straggler.explains(news[0]):
        reasons = ", ".join(map(throttle_words, straggler.throttling))
        at_the_same_time = f"; its {straggler.gpu} is throttled since then ({reasons})"
    head = f"{change_words(_stated(after) / _stated(before))} {when} ({duration(before)} -> {duration(after)})"
    sentence = f"{head}: {words}{at_the_same_time}."
    stated = None if named is None else named.key
    shown = attributed([each._replace(stated=each.key == stated) for each in found], parts, cause)
    if waits:
        shown = tuple(sorted(map(_with_waiting, shown), key=lambda each: each.waits))
    seen = _seen(shown, abs(after - before))
    return Explanation(kind, sentence, since, before, after, cause, parts, shown, correlated, seen)


def _seen(shown: Sequence[Contributor], change: float) -> tuple[str, ...]:
    """Sentences on other sights of the same seconds, with how many of them each one shows.

    Args:
        shown: all contributors; those without a share, which the sentence on the change does not name, are such sights.
        change: seconds by which a step became longer or shorter.
    """
    waited = next((each for each in shown if each.kind == "rank" and each.stated), None)
    whole = change if waited is None else max(waited.before, waited.after)
    rest = [each for each in shown if not each.share and not each.stated]
    waits = [each._replace(waits=False).sentence for each in rest if each.waits][:MOST_SEEN]
    sights = [(abs(each.after - each.before), each) for each in rest if not each.waits][:MOST_SEEN]
    found = []
    if same := [each.sentence for seconds, each in sights if abs(seconds - whole) <= ALIKE * whole]:
        found.append(f"The same time is seen in {listed(same)}.")
    if longer := [each.sentence for seconds, each in sights if seconds > (1 + ALIKE) * whole]:
        found.append(f"The same time, and more, is seen in {listed(longer)}.")
    if part := [(seconds, each) for seconds, each in sights if seconds < (1 - ALIKE) * whole]:
        unseen = waited is not None and len(part) == len(sights) and sum(each for each, _ in part) < (1 - ALIKE) * whole
        found.append(f"{_partly(part, whole, alone=waited is not None, unseen=unseen)}.")
    if waits:
        found.append(f"The median rank waits in {listed(waits)}.")
    return tuple(found)


def _partly(part: Sequence[tuple[float, Contributor]], whole: float, *, alone: bool, unseen: bool) -> str:
    """Sights of some of the seconds. Those of one rank are against its own time before.

    Args:
        part: seconds by which each became longer or shorter, and the sight.
        alone: the others wait for one rank.
        unseen: the sights do not add up to all seconds.
    """
    rank, longer = part[0][1].rank, all(each.after > each.before for _, each in part)
    if alone and longer and rank is not None and {each.rank for _, each in part} == {rank}:
        first, *more = ((seconds, each._replace(rank=None).sentence) for seconds, each in part)
        lead, rest = f"Against its own time before, rank {rank} takes {duration(first[0])} more in {first[1]}", HIDDEN
    else:
        first, *more = ((seconds, each.sentence) for seconds, each in part)
        lead, rest = f"Of the {duration(whole)}, {duration(first[0])} is seen in {first[1]}", REST
    words = listed([lead, *(f"{duration(seconds)} in {sentence}" for seconds, sentence in more)])
    return f"{words}{rest if unseen else ''}"


def _with_waiting(each: Contributor) -> Contributor:
    """The median rank waits in its sections that no part but the waiting accounts for."""
    return each._replace(waits=(each.kind, each.share, each.part, each.rank) == ("section", 0.0, "", None))


def _cause(parts: Sequence[PartChange], found: Sequence[Contributor]) -> tuple[str, str, Contributor | None]:
    """The part that makes up most of the change, words for it, and whom these name; ``unexplained`` when none does."""
    if not parts:
        return _section_cause(found)
    measured = [part for part in parts if part.part != Cause.UNEXPLAINED]
    main = max(measured, key=lambda part: part.share)
    inside = [each for each in found if each.part == main.part]
    if main.share > MOSTLY_CAUSED:
        waited = next((each for each in inside if each.kind == "rank" and each.share > MOSTLY_CAUSED), None)
        if main.part == Part.COMMUNICATION and waited is not None:
            return main.part, f"{_share(waited.share)} is {waited.sentence}", waited
        detail = f", most of all {inside[0].sentence}" if inside else ""
        return (
            main.part,
            f"{_share(main.share)} is {main.part} ({duration(main.before)} -> {duration(main.after)}){detail}",
            inside[0] if inside else None,
        )
    rest = next((part.share for part in parts if part.part == Cause.UNEXPLAINED), 0.0)
    if rest > MOSTLY_CAUSED:
        return str(Cause.UNEXPLAINED), f"unexplained, as {_share(rest)} lies in no part that is measured", None
    shares = ", ".join(f"{part.part} {percent(part.share)}" for part in parts if part.share > 0)
    return str(Cause.UNEXPLAINED), f"unexplained, as no part makes up more than half of it ({shares})", None


def _section_cause(found: Sequence[Contributor]) -> tuple[str, str, Contributor | None]:
    """The same by sections, where the parts of a step are unknown."""
    unexplained = str(Cause.UNEXPLAINED)
    sections = [each for each in found if each.kind == "section"]
    if not sections:
        return unexplained, "unexplained, as neither parts of the step nor sections are known on both sides", None
    first = sections[0]
    if first.share <= MOSTLY_CAUSED:
        most = f"{percent(first.share)}: {first.place}"
        return unexplained, f"unexplained, as no section makes up more than half of it ({most})", None
    return first.part or unexplained, f"{_share(first.share)} is {first.sentence}", first


def _share(share: float) -> str:
    return "all of it" if share >= 0.95 else f"{percent(share)} of it"


# What it consists of --------------------------------------------------------------------------------------------------


class Sides(NamedTuple):
    """The samples before and after a change."""

    before: Sequence[Sample]
    after: Sequence[Sample]

    def level(self, of: Callable[[Sample], float | None]) -> tuple[float, float] | None:
        """The usual value on both sides; None when one of them has none."""
        before, after = usual(self.before, of), usual(self.after, of)
        return None if before is None or after is None else (before, after)

    def step(self) -> tuple[float, float]:
        """Seconds of a step on both sides."""
        found = self.level(lambda sample: sample.step)
        assert found is not None, "a side has samples, and every sample a step"
        return found

    def names(self, of: Callable[[Sample], Sequence[str]]) -> list[str]:
        """All names in the tables of both sides."""
        return sorted({name for side in self for sample in side for name in of(sample)})


def usual(samples: Sequence[Sample], of: Callable[[Sample], float | None]) -> float | None:
    """The median over time; None when no sample has a value."""
    values = [(value, sample.seconds) for sample in samples if (value := of(sample)) is not None]
    return weighted_median(values) if values else None


def slowest_rank(samples: Sequence[Sample]) -> SlowRank | None:
    """The rank that is the slowest most of the time, with its usual figures; None when ranks take turns."""
    weight: dict[int, float] = {}
    listed: dict[int, list[tuple[SlowRank, float]]] = {}
    for sample in samples:
        if sample.slowest:
            first = sample.slowest[0]
            weight[first.rank] = weight.get(first.rank, 0.0) + sample.seconds
            listed.setdefault(first.rank, []).append((first, sample.seconds))
    if not weight:
        return None
    rank = max(weight, key=lambda each: weight[each])
    if weight[rank] < MOSTLY * sum(weight.values()):
        return None
    mine = listed[rank]
    parts = tuple(
        weighted_median([(slow.parts[p], seconds) for slow, seconds in mine if len(slow.parts) > p])
        for p in range(max(len(slow.parts) for slow, _ in mine))
    )
    work = weighted_median([(slow.work, seconds) for slow, seconds in mine])
    late = weighted_median([(slow.late, seconds) for slow, seconds in mine])
    return SlowRank(rank, mine[-1][0].host, work, late, parts)


def part_changes(sides: Sides) -> tuple[PartChange, ...]:
    """The parts of the step, whose shares add up to 1; empty when they were not measured on both sides.

    What no part accounts for is ``unexplained``.
    """
    step_before, step_after = sides.step()
    whole = step_after - step_before
    found = {part: sides.level(lambda sample, part=part: sample.parts.get(part)) for part in Part}  # type: ignore[misc]
    known = {part: level for part, level in found.items() if level is not None}
    if not known or whole == 0:
        return ()
    rest_before = step_before - sum(before for before, _ in known.values())
    rest_after = step_after - sum(after for _, after in known.values())
    rows = [(str(part), *level) for part, level in known.items()]
    rows.append((str(Cause.UNEXPLAINED), rest_before, rest_after))
    changes = [PartChange(part, before, after, (after - before) / whole) for part, before, after in rows]
    return tuple(sorted(changes, key=lambda change: (change.part == Cause.UNEXPLAINED, -change.share)))


def contributors(sides: Sides) -> tuple[Contributor, ...]:
    """What takes another time than before, the largest share first; shares overlap, as sections contain kernels."""
    before, after = sides.step()
    whole = after - before
    found = [
        *_section_contributors(sides, whole),
        *_kernel_contributors(sides, whole),
        *_collective_contributors(sides, whole),
    ]
    found += [*_waited_for_ranks(sides, whole), *_cpu_contributors(sides, whole)]
    named = [each for each in found if each.share >= LEAST_SHARE]
    return tuple(
        sorted(named, key=lambda c: -c.share * (1.0 if c.rank is None else ON_ONE_RANK_FIRST))[:MOST_CONTRIBUTORS]
    )


def _section_contributors(sides: Sides, whole: float) -> list[Contributor]:
    found = []
    for name in sides.names(lambda sample: list(sample.sections)):
        # A section that is not listed did not run, or is small.
        level = sides.level(lambda s, name=name: _taken(s.sections.get(name)) if s.sections else None)  # type: ignore[misc]
        if level is None:
            continue
        part = str(Part.DATA) if name.lower() in DATA_SECTIONS else ""
        share = (level[1] - level[0]) / whole
        found.append(Contributor("section", name, *level, share, f"section '{name}'", part))
        one = _on_one_rank(sides, name, whole, share)
        if one is not None:
            found.append(one._replace(part=part))
    return found


def _taken(section: SectionSample | None) -> float:
    return section.median * section.calls if section else 0.0


def _on_one_rank(sides: Sides, name: str, whole: float, median_share: float) -> Contributor | None:
    """The section on the rank where it takes longest, when it grew there and not on all ranks."""

    def largest(sample: Sample) -> float | None:
        section = sample.sections.get(name)
        return section.max * section.calls if section else None

    level = sides.level(largest)
    if level is None or (level[1] - level[0]) / whole < median_share + ON_ONE_RANK:
        return None
    slow_side = sides.after if whole > 0 else sides.before
    weight: dict[int, float] = {}
    for sample in slow_side:
        if section := sample.sections.get(name):
            weight[section.worst] = weight.get(section.worst, 0.0) + sample.seconds
    rank = max(weight, key=lambda each: weight[each])
    if weight[rank] < MOSTLY * sum(weight.values()):
        return None
    share = (level[1] - level[0]) / whole
    return Contributor("section", name, *level, share, f"section '{name}'", rank=rank)


def _kernel_contributors(sides: Sides, whole: float) -> list[Contributor]:
    before = [sample for sample in sides.before if sample.kernels]
    after = [sample for sample in sides.after if sample.kernels]
    # A report covers minutes: the first one after the change covers both sides, so it is skipped if there is another.
    reports = Sides(before, after[1:] or after)
    found = []
    for name in reports.names(lambda sample: list(sample.kernels)):
        level = reports.level(lambda s, name=name: _spent(s.kernels, name))  # type: ignore[misc]
        if level is not None:
            share = (level[1] - level[0]) / whole
            found.append(Contributor("kernel", name, *level, share, f"kernel {name}", str(Part.COMPUTE)))
    return found


def _spent(kernels: Mapping[str, float], name: str) -> float:
    """Seconds of a kernel; one missing in a full table took at most as long as the smallest in it."""
    unlisted = min(kernels.values()) if len(kernels) >= KERNELS else 0.0
    return kernels.get(name, unlisted)


def _collective_contributors(sides: Sides, whole: float) -> list[Contributor]:
    found = []
    for name in sides.names(lambda sample: list(sample.collectives)):
        busy = sides.level(lambda s, name=name: c.busy if (c := s.collectives.get(name)) else None)  # type: ignore[misc]
        if busy is None:
            continue
        share = (busy[1] - busy[0]) / whole
        each = Contributor("collective", name, *busy, share, f"collectives of group {name}", str(Part.COMMUNICATION))
        shortest = sides.level(lambda s, name=name: c.shortest if (c := s.collectives.get(name)) else None)  # type: ignore[misc]
        if shortest is not None and whole > 0 and shortest[1] > 1.5 * shortest[0] > 0:
            more = f"; the shortest of them takes longer too ({duration(shortest[0])} -> "
            more += f"{duration(shortest[1])}), which points to the network rather than to a late rank"
            each = each._replace(more=more)
        found.append(each)
    return found


def _waited_for_ranks(sides: Sides, whole: float) -> list[Contributor]:
    """The rank the others wait for, on the side on which steps take longer."""
    slow_side, quick_side = (sides.after, sides.before) if whole > 0 else (sides.before, sides.after)
    waits = sides.level(lambda sample: sample.parts.get(Part.COMMUNICATION))
    late = usual(slow_side, lambda sample: sample.slowest[0].late if sample.slowest else None)
    usual_late = usual(quick_side, lambda sample: sample.slowest[0].late if sample.slowest else None)
    if waits is None or late is None or usual_late is None:
        return []
    slow = slowest_rank(slow_side)
    late = slow.late if slow else late
    # The others cannot wait for it longer than they spend in communication.
    share = min((late - usual_late) / abs(whole), (waits[1] - waits[0]) / whole)
    level = (usual_late, late) if whole > 0 else (late, usual_late)
    part = str(Part.COMMUNICATION)
    if slow is None:
        words = "waiting for ranks that take turns in being the slowest"
        return [Contributor("rank", "ranks that take turns", *level, share, words, part)]
    name, more = f"rank {slow.rank}", _excess(slow.parts, slow_side)
    return [Contributor("rank", name, *level, share, f"waiting for {rank_name(slow)}", part, more=more)]


def _excess(parts: Sequence[float], samples: Sequence[Sample]) -> str:
    """The part of its own work with the largest excess over the median rank."""
    more = [
        (own - middle, part)
        for own, part in zip(parts, OWN_PARTS, strict=False)
        if (middle := usual(samples, lambda sample, part=part: sample.parts.get(part))) is not None  # type: ignore[misc]
    ]
    if not more or max(more)[0] <= 0:
        return ""
    excess, part = max(more)
    return f", whose {part} takes {duration(excess)} longer than the others'"


def _cpu_contributors(sides: Sides, whole: float) -> list[Contributor]:
    level = sides.level(lambda sample: sample.waited.median if sample.waited else None)
    if level is None:
        return []
    share = (level[1] - level[0]) / whole
    words = "waiting for a CPU, in the training thread"
    return [Contributor("cpu", "cpu wait", *level, share, words, str(Part.HOST))]


# What else changed ----------------------------------------------------------------------------------------------------


def correlated_changes(sides: Sides) -> tuple[CorrelatedChange, ...]:
    """What else changed at that time, the most frequent causes first."""
    checks: Sequence[Callable[[Sides], list[CorrelatedChange]]] = (
        _policy_changes,
        _world_changes,
        _host_changes,
        _throttling_changes,
        _clock_changes,
        _cpu_changes,
        _attempt_changes,
        _temperature_changes,
        _slowest_changes,
    )
    return tuple(found for check in checks for found in check(sides))


def _policy_changes(sides: Sides) -> list[CorrelatedChange]:
    near = [*sides.before[-NEAR_SAMPLES:], *sides.after[:NEAR_SAMPLES]]
    return [
        CorrelatedChange(
            "policy", f"the policy's {c.name} was changed from {_value(c.old)} to {_value(c.new)}", c.old, c.new
        )
        for sample in near
        for c in sample.changes
    ]


def _value(value: Any) -> str:
    text = "none" if value is None else {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _world_changes(sides: Sides) -> list[CorrelatedChange]:
    before, after = sides.before[-1].ranks, sides.after[0].ranks
    if before == after:
        return []
    words = f"the world {'shrank' if after < before else 'grew'} from {before} to {after} ranks"
    return [CorrelatedChange("world_size", words, before, after)]


def _attempt_changes(sides: Sides) -> list[CorrelatedChange]:
    before, after = sides.before[-1].attempt, sides.after[0].attempt
    if before == after:
        return []
    return [CorrelatedChange("attempt", f"attempt {after} began (before it: {before})", before, after)]


def _host_changes(sides: Sides) -> list[CorrelatedChange]:
    before, after = sides.before[-1].hosts, sides.after[0].hosts
    if not before or not after or before == after:
        return []
    left, joined = sorted(set(before) - set(after)), sorted(set(after) - set(before))
    words = [f"{_named(hosts)} {verb}" for hosts, verb in ((left, "left"), (joined, "joined")) if hosts]
    return [CorrelatedChange("hosts", f"other hosts: {' and '.join(words)}", left, joined)]


def _named(hosts: Sequence[str]) -> str:
    more = f" and {len(hosts) - NAMED_HOSTS} more" if len(hosts) > NAMED_HOSTS else ""
    return ", ".join(hosts[:NAMED_HOSTS]) + more


def _throttling_changes(sides: Sides) -> list[CorrelatedChange]:
    def throttled(sample: Sample, reason: str) -> float | None:
        return None if sample.device is None else float(sample.device.throttled.get(reason, 0))

    found = []
    for reason in sides.names(lambda sample: list(sample.device.throttled) if sample.device else []):
        level = sides.level(lambda sample, reason=reason: throttled(sample, reason))  # type: ignore[misc]
        if level is not None and round(level[0]) != round(level[1]):
            before, after = round(level[0]), round(level[1])
            ranks = f"{before} -> {after} of {sides.after[-1].ranks} ranks"
            words = f"devices throttled ({throttle_words(reason)}): {ranks}"
            found.append(CorrelatedChange("throttling", words, before, after, reason))
    return found


def _clock_changes(sides: Sides) -> list[CorrelatedChange]:
    middle = sides.level(lambda sample: sample.device.clock if sample.device else None)
    lowest = sides.level(lambda sample: sample.device.clock_min if sample.device else None)
    for name, level, least in (("median", middle, CLOCK), ("lowest", lowest, CLOCK_MIN)):
        if level is not None and level[0] > 0 and abs(level[1] / level[0] - 1) >= least:
            verb = "fell" if level[1] < level[0] else "rose"
            words = f"the {name} clock of the devices {verb} from {level[0] / 1e6:.0f} to {level[1] / 1e6:.0f} MHz"
            return [CorrelatedChange("clock", words, *level)]
    return []


def _temperature_changes(sides: Sides) -> list[CorrelatedChange]:
    level = sides.level(lambda sample: sample.device.temperature if sample.device else None)
    if level is None or abs(level[1] - level[0]) < TEMPERATURE:
        return []
    verb = "rose" if level[1] > level[0] else "fell"
    return [
        CorrelatedChange("temperature", f"the hottest device {verb} from {level[0]:.0f} to {level[1]:.0f} °C", *level)
    ]


def _cpu_changes(sides: Sides) -> list[CorrelatedChange]:
    before, after = sides.step()
    middle = sides.level(lambda sample: sample.waited.median if sample.waited else None)
    largest = sides.level(lambda sample: sample.waited.max if sample.waited else None)
    for subject, level in (("training threads wait", middle), ("one training thread waits", largest)):
        if level is not None and (level[1] - level[0]) / (after - before) >= CPU_WAIT:
            more = "longer" if level[1] > level[0] else "less"
            words = f"{subject} {more} for a CPU: {duration(level[0])} -> {duration(level[1])} a step"
            return [CorrelatedChange("cpu", words, *level)]
    return []


def _slowest_changes(sides: Sides) -> list[CorrelatedChange]:
    before, after = slowest_rank(sides.before), slowest_rank(sides.after)
    change = abs(sides.step()[1] - sides.step()[0])
    late = usual(sides.before, lambda sample: sample.slowest[0].late if sample.slowest else None)
    if after is None or late is None or (before is not None and before.rank == after.rank):
        return []
    if after.late - late < LATENESS * change:
        return []
    words = f"{rank_name(after)} became the slowest: {duration(after.late)} of each step behind the median rank"
    return [CorrelatedChange("slowest", words, before.rank if before else None, after.rank)]


# Words ----------------------------------------------------------------------------------------------------------------


def rank_name(slow: SlowRank) -> str:
    """``rank 3 on node-b``."""
    return f"rank {slow.rank} on {slow.host}" if slow.host else f"rank {slow.rank}"


def _stated(seconds: float) -> float:
    """As :func:`duration` states it, in three digits: what is computed from it agrees with what stands beside it."""
    return float(f"{seconds:.3g}")


def listed(words: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
