"""Outages: stretches in which a job completed no step, laid over its points, so that each series changes at their ends.

Points are up to 15 s apart, and a line between two of them would begin to fall before the fault. Goodput of the whole
run follows from its definition: in an outage the kept time stays the same and the lived time grows. Steps that a
restart threw away are lost at its first new step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from rankwatch_monitor.core.regression.trends import LOGGED, NON_FINITE, Point

EDGE: Final = 0.001
"""Seconds between the two ends of an edge."""
NEAR: Final = 90.0
"""Seconds from an outage to a point that holds up to it; points of old days are a minute apart."""
HOUR: Final = 3600.0


class Outage(NamedTuple):
    """Unix seconds from the last progress to the first new step, or to the end of what is known."""

    began: float
    ended: float
    over: bool = True
    """A step completed at its end."""


def joined(outages: Sequence[Outage]) -> list[Outage]:
    """The oldest first; those that overlap are one."""
    found: list[Outage] = []
    for each in sorted(outages):
        if found and each.began <= found[-1].ended:
            found[-1] = max(found[-1], each, key=lambda one: one.ended)._replace(began=found[-1].began)
        else:
            found.append(each)
    return found


def with_edges(points: Sequence[Point], outages: Sequence[Outage], began: float) -> list[Point]:
    """The points with one more at each side of both ends of each outage.

    Args:
        points: the oldest first.
        outages: as :func:`joined` returns them.
        began: unix seconds since which goodput counts.
    """
    if not points:
        return []
    first, last = points[0].at, points[-1].at
    shown = [
        each._replace(began=max(first, each.began)) for each in outages if each.ended > first and each.began <= last
    ]
    moments = [point.at for point in points]
    ends = [bisect_right(moments, each.began) for each in shown] + [len(points)]
    made = list(points[: ends[0]])
    for outage, begin, end in zip(shown, ends[:-1], ends[1:], strict=True):
        made[-1] = _as_before(made, outage.began)
        after = bisect_right(moments, outage.ended)
        following = _with_first_speed(points[after:end])
        made += _within(made[-1], points[begin:after], following, outage, began)
        if outage.over:
            at = outage.ended + EDGE
            made.append(_held(following[0], at) if following else Point(at, made[-1].attempt, -1, {}))
        made += following
    return made


def _within(
    before: Point, within: Sequence[Point], after: Sequence[Point], outage: Outage, began: float
) -> Iterator[Point]:
    """The points from the beginning of an outage to its end: no speed, and goodput that falls as time goes on."""
    at_begin = _held(before, outage.began)
    if before.at < outage.began:
        yield at_begin

    def stopped(at: float, point: Point, more: Mapping[str, float]) -> Point:
        return Point(
            at, point.attempt, -1, {"speed": 0.0, **goodput_at(at_begin.values, outage.began, at, began), **more}
        )

    yield stopped(outage.began + EDGE, before, {})
    for point in within:
        if outage.began + EDGE < point.at < outage.ended:
            yield stopped(point.at, point, _logged(point))
    at_end = within[-1] if within and within[-1].at == outage.ended else None
    yield stopped(outage.ended, at_end or (after[0] if after else before), _logged(at_end) if at_end else {})


def _as_before(points: Sequence[Point], began: float) -> Point:
    """The last point before an outage, with the speed before it.

    A point at the beginning is made when the fault is found; the speed has fallen since.
    """
    last = points[-1]
    earlier = points[-2].values.get("speed") if len(points) > 1 and began - points[-2].at <= NEAR else None
    if last.at < began or earlier is None or earlier <= last.values.get("speed", earlier):
        return last
    return last._replace(values={**last.values, "speed": earlier})


def _held(nearest: Point, at: float) -> Point:
    """What a point has, at another moment near it; it stands for no step, and logged values are of their moment."""
    logged = LOGGED, NON_FINITE
    near = abs(nearest.at - at) <= NEAR
    held = {name: value for name, value in nearest.values.items() if near and not name.startswith(logged)}
    return Point(at, nearest.attempt, -1, held)


def _with_first_speed(points: Sequence[Point]) -> list[Point]:
    """With the speed of an attempt from its first step on; it takes some steps to be known."""
    first = next((i for i, point in enumerate(points) if "speed" in point.values), 0)
    if first == 0 or points[first].at - points[0].at > NEAR:
        return list(points)
    speed = {"speed": points[first].values["speed"]}
    return [*(point._replace(values={**point.values, **speed}) for point in points[:first]), *points[first:]]


def goodput_at(values: Mapping[str, float], known_at: float, at: float, began: float) -> dict[str, float]:
    """Goodput at another moment of an outage than that at which it is known; it counts since ``began``."""
    if min(known_at, at) <= began:
        return {}
    factor = (known_at - began) / (at - began)
    found = {"goodput": values["goodput"] * factor} if "goodput" in values else {}
    if "goodput_window" in values:
        kept = values["goodput_window"] * min(HOUR, known_at - began)
        # What leaves the last hour is taken for kept steps.
        left = max(began, at - HOUR) - max(began, known_at - HOUR)
        found["goodput_window"] = max(0.0, kept - left) / min(HOUR, at - began)
    return found


def _logged(point: Point) -> dict[str, float]:
    return {name: value for name, value in point.values.items() if name.startswith((LOGGED, NON_FINITE))}
