"""Words for step times: durations, moments, and what a comparison of windows allows to state. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from rankwatch.cli.formatting import count

DAY: Final = 86_400
TWICE: Final = 1.5
"""From this factor on a change is given as a factor, below it in percent."""
USELESS: Final = 1.0
"""Of a change that would have to be larger to be seen nothing is stated."""


def change_words(factor: float) -> str:
    """``Steps take 33 % longer``."""
    return f"Steps take {than(factor)}"


def than(factor: float, before: str = "") -> str:
    """``33 % longer`` or ``2.0 times as long``; given ``before 14:03:20``, ``33 % longer than before 14:03:20``."""
    if factor >= TWICE:
        return f"{factor:.1f} times as long" + (f" as {before}" if before else "")
    words = f"{percent(factor - 1)} longer" if factor > 1 else f"{percent(1 - factor)} less time"
    return words + (f" than {before}" if before else "")


def unsure(
    windows: tuple[int, int], span: tuple[float, float], edges: tuple[float, float], since: str, few: int
) -> str:
    """Of sides that differ, without certainty.

    Args:
        windows: of both sides.
        span: seconds of a step on both sides.
        edges: of the interval of the factor.
        since: the moment.
        few: fewer windows tell nothing.
    """
    before, after = windows
    changed, levels = than(span[1] / span[0]), f"({duration(span[0])} -> {duration(span[1])})"
    if before < few:
        return f"{count(before, 'window')} before {since}, too few to tell; since then steps take {changed} {levels}."
    if after < few:
        where = "it" if after == 1 else "them"
        return f"{count(after, 'window')} since {since}, too few to tell; in {where} steps take {changed} {levels}."
    words = f"Steps may take {changed} since {since} {levels}, but {before} windows before and {after} since vary too "
    return f"{words}much to tell: {edges[0]:.2g} to {edges[1]:.2g} times is possible."


def steady(
    span: str, taken: str, visible: float | None, windows: int, happened: Sequence[str] = (), *, spikes: bool = False
) -> str:
    """Of step times in which no change shows.

    Args:
        span: ``since the first step``.
        taken: how long steps took.
        visible: the least change, as a fraction, that would have been seen; None: any that matters.
        windows: how many there are.
        happened: what else happened in that time.
        spikes: single windows took longer.
    """
    known, change = count(windows, "window"), "lasting change" if spikes else "change"
    if visible is None and spikes:
        lead = f"No {change} {span}"
    elif visible is None:
        lead = f"{'The step time did not change' if happened else 'Nothing changed'} {span}"
    elif visible <= USELESS:
        lead = f"No {change} of {percent(visible)} or more {span}; a smaller one does not show in {known}"
    else:
        lead = f"Whether the step time changed {span} does not show in {known}"
    return f"{'; '.join([f'{lead}: {taken}', *happened])}."


def slow_words(rank: int, host: str, since: float, ended: float | None, step_before: float | None, now: float) -> str:
    """``rank 3 on host-1 has been slow since 14:03:20, before which a step took 60 ms``."""
    begin = clock_time(since, now)
    when = f"has been slow since {begin}" if ended is None else f"was slow from {begin} to {clock_time(ended, now)}"
    step = "" if step_before is None else f", before which a step took {duration(step_before)}"
    return f"rank {rank}{f' on {host}' if host else ''} {when}{step}"


def duration(seconds: float) -> str:
    """``4.1 s``, ``224 ms``, ``410 µs``: three digits, from which a stated percentage can be computed; 0 is ``0 s``."""
    if seconds == 0:
        return "0 s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= 0.9995 * scale or unit == "µs":
            number = seconds / scale
            # Three digits, but never 1.2e+03.
            return f"{number:.0f} {unit}" if abs(number) >= 100 else f"{number:.3g} {unit}"
    raise AssertionError("the last unit matches every number")


def percent(share: float) -> str:
    """``83 %``."""
    return f"{100 * share:.0f} %"


def clock_time(at: float, now: float) -> str:
    """``14:03:20`` of the day of ``now``, else with its date; both UTC."""
    text = str(np.datetime64(int(at), "s"))
    return text[11:] if int(at) // DAY == int(now) // DAY else f"{text[:10]} {text[11:]}"
