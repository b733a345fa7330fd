"""Two stretches of a job's history side by side, and the words in which what differs between them is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from rankwatch_monitor.core.regression.merging import weighted_median
from rankwatch_monitor.core.regression.sample import Sample, SlowRank

MOSTLY: Final = 0.6
"""Part of the time in which a rank must be the slowest to be spoken of as the slowest."""
DAY: Final = 86_400


class PartChange(NamedTuple):
    """What one part of a step took before and after, in seconds, and its share in the change of the step."""

    part: str
    before: float
    after: float
    share: float


class Contributor(NamedTuple):
    """Something that takes another time than before: a section, kernel, collective, rank that is waited for, or CPU."""

    kind: str
    name: str
    before: float
    after: float
    """Seconds of a step."""
    share: float
    """In the change of the step; shares of different contributors may overlap, as sections hold kernels."""
    sentence: str
    part: str = ""
    """The part of the step to which it belongs; empty: it may be of several."""


class Circumstance(NamedTuple):
    """Something else that changed at the same time. It may be the reason, and it may not."""

    kind: str
    sentence: str
    before: Any
    after: Any


class Sides(NamedTuple):
    """The samples before and after a change."""

    before: Sequence[Sample]
    after: Sequence[Sample]

    def level(self, of: Callable[[Sample], float | None]) -> tuple[float, float] | None:
        """The usual value on both sides; None when one of them never told it."""
        before, after = usual(self.before, of), usual(self.after, of)
        return None if before is None or after is None else (before, after)

    def step(self) -> tuple[float, float]:
        """Seconds of a step on both sides."""
        found = self.level(lambda sample: sample.step)
        assert found is not None, "a side has samples, and every sample a step"
        return found

    def names(self, of: Callable[[Sample], Sequence[str]]) -> list[str]:
        """All names that one of the tables has, on any side."""
        return sorted({name for side in self for sample in side for name in of(sample)})


def usual(samples: Sequence[Sample], of: Callable[[Sample], float | None]) -> float | None:
    """The median over time of what the samples tell; None when none of them tells it."""
    told = [(value, sample.seconds) for sample in samples if (value := of(sample)) is not None]
    return weighted_median(told) if told else None


def slowest_rank(samples: Sequence[Sample]) -> SlowRank | None:
    """The rank that is the slowest most of the time, with its usual lateness; None when ranks take turns."""
    weight: dict[int, float] = {}
    told: dict[int, list[tuple[SlowRank, float]]] = {}
    for sample in samples:
        if sample.slowest:
            first = sample.slowest[0]
            weight[first.rank] = weight.get(first.rank, 0.0) + sample.seconds
            told.setdefault(first.rank, []).append((first, sample.seconds))
    if not weight:
        return None
    rank = max(weight, key=lambda each: weight[each])
    if weight[rank] < MOSTLY * sum(weight.values()):
        return None
    mine = told[rank]
    parts = tuple(
        weighted_median([(slow.parts[p], seconds) for slow, seconds in mine if len(slow.parts) > p])
        for p in range(max(len(slow.parts) for slow, _ in mine))
    )
    work = weighted_median([(slow.work, seconds) for slow, seconds in mine])
    late = weighted_median([(slow.late, seconds) for slow, seconds in mine])
    return SlowRank(rank, mine[-1][0].host, work, late, parts)


def place(slow: SlowRank) -> str:
    """``rank 3 on node-b``."""
    return f"rank {slow.rank} on {slow.host}" if slow.host else f"rank {slow.rank}"


def span(seconds: float) -> str:
    """``0.41 s``, ``41 ms``, ``410 µs``; 0 is ``0 s``."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= 0.0999 * scale or unit == "µs":
            number = seconds / scale
            # Three digits, and never 1.2e+03.
            return f"{number:.0f} {unit}" if abs(number) >= 100 else f"{number:.2g} {unit}"
    raise AssertionError("the last unit takes everything")


def percent(share: float) -> str:
    """``83 %``."""
    return f"{100 * share:.0f} %"


def clock_time(at: float, now: float) -> str:
    """``14:03:20`` of the day of ``now``, else with its date; both UTC."""
    text = str(np.datetime64(int(at), "s"))
    return text[11:] if int(at) // DAY == int(now) // DAY else f"{text[:10]} {text[11:]}"
