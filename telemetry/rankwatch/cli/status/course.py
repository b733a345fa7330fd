"""The last hour of a job as lines of text: the course of its speed, of its loss, and logged values that are NaN."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, Final

from rankwatch.cli.formatting import count, duration, pace, printable
from rankwatch.cli.terminal import Terminal

HOUR: Final = 3600.0
POINTS: Final = 120
"""Points that are requested."""
WIDEST: Final = 40
"""Columns of a course."""
LOGGED: Final = 3
"""Logged values shown, a loss first and those that are not finite before it."""
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_EDGE: Final = 1.0
"""The two ends of an edge are closer than this."""
_NAME: Final = 16
_FIGURES: Final = 34
"""Columns of the figures beside a course."""

Trends = Mapping[str, Any]
Values = Sequence[float | None]


def course_lines(trends: Trends | None, terminal: Terminal) -> list[str]:
    """One line for each figure: its course over the hour before the last point, that value, the least and the largest.

    The time is that of the points, as this machine's clock may be another one than the monitor's.
    """
    if not trends or not trends.get("at"):
        return []
    at = trends["at"]
    width = max(8, min(WIDEST, terminal.width - 2 - _NAME - 2 - _FIGURES))
    begin = max(at[0], at[-1] - HOUR)
    span = at[-1] - begin
    if len(at) > 2:  # no finer than the points, or there would be blanks between them
        apart = [b - a for a, b in pairwise(at) if b - a > _EDGE]
        width = max(1, min(width, int(span / (1.2 * median(apart or [span])))))
    where = (begin, at[-1], width, terminal.width - 2)
    rows = [_row("speed", at, trends.get("speed") or (), where, pace, floor=0.0)]
    logged, broken = trends.get("logged") or {}, trends.get("non_finite") or {}
    for name in sorted(logged, key=lambda name: (name not in broken, "loss" not in name.lower()))[:LOGGED]:
        if words := _not_finite(at, logged[name], broken.get(name) or ()):
            rows.append(f"{_named(name)}  {terminal.paint(words, 'bad')}")
        else:
            rows.append(_row(name, at, logged[name], where, _figure))
    rows = [row for row in rows if row]
    title = "LAST HOUR" if span > HOUR - 120 else f"LAST {duration(round(span))}"
    return [title, *(f"  {row}" for row in rows)] if rows else []


def course(
    at: Sequence[float], values: Values, begin: float, end: float, width: int, floor: float | None = None
) -> str:
    """The values as one character for each part of the time, blank where none is known; empty if there are none.

    The lowest block is the least value, or ``floor``.
    """
    sums: list[list[float]] = [[] for _ in range(width)]
    for time, value in zip(at, values, strict=False):
        place = int((time - begin) / max(1.0, end - begin) * width)
        if value is not None and 0 <= place <= width:
            sums[min(place, width - 1)].append(value)
    means = [sum(each) / len(each) if each else None for each in sums]
    known = [mean for mean in means if mean is not None]
    if not known:
        return ""
    low, high = min(known) if floor is None else floor, max(known)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(" " if mean is None else _BLOCKS[round((mean - low) * scale)] for mean in means)


def _row(
    name: str,
    at: Sequence[float],
    values: Values,
    where: tuple[float, float, int, int],
    words: Callable[[float], str],
    floor: float | None = None,
) -> str:
    known = [value for value in values if value is not None]
    begin, end, width, most = where
    drawn = course(at, values, begin, end, width, floor)
    if not drawn:
        return ""
    low, high = min(known), max(known)
    spread = "" if words(low) == words(high) else f", {_short(low, words)} to {words(high)}"
    row = f"{_named(name)}  {drawn}  {words(known[-1])}"
    return row + spread if len(row + spread) <= most else row


def _short(low: float, words: Callable[[float], str]) -> str:
    """The lower end without its unit, where the upper end has the same."""
    text = words(low)
    number, _, unit = text.partition(" ")
    return number if unit in ("", "steps/s") else text


def _not_finite(at: Sequence[float], values: Values, counts: Values) -> str:
    """What is to be stated of a value that was NaN or infinite after its last finite one; empty: it is finite."""
    bad, finite = 0, None
    for time, value, number in zip(at, values, counts, strict=False):
        if number:
            bad += round(number)
        elif value is not None:
            bad, finite = 0, (time, value)
    if not bad:
        return ""
    last = f"; last finite: {_figure(finite[1])}" if finite is not None else ", never finite in this time"
    return f"NaN or infinite: {count(bad, 'value')}{last}"


def _named(name: str) -> str:
    shown = printable(name)
    return f"{shown if len(shown) <= _NAME else shown[: _NAME - 1] + '…':<{_NAME}}"


def _figure(value: float) -> str:
    """Four digits."""
    return f"{value:.4g}"
