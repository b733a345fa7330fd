"""A slow rank in one line: which one, in what, and how much of each step the others wait. Derived when read."""

from __future__ import annotations

from typing import Final

from rankwatch.contract.enums import Cause
from rankwatch_monitor.core.straggler.findings import Straggler, subject, waits
from rankwatch_monitor.core.views import headline
from rankwatch_monitor.core.views.throttling import Throttle

_IN: Final = {Cause.DATA: " in its input", Cause.HOST: " in its host-side work", Cause.COMPUTE: " in its computation"}


def slow_headline(straggler: Straggler, throttle: Throttle | None) -> str:
    """The slow rank in at most :data:`.headline.LONGEST` characters; its figures are those of its sentence.

    Args:
        straggler: the costliest one that is open.
        throttle: what throttles its GPU; None: nothing, or that is not known.
    """
    if straggler.waiting is None or straggler.share is None:
        return headline.of_job(None, straggler.reason)
    what = _IN.get(straggler.cause, "") if throttle is None else f": {throttle.gpu} throttled"
    cost = f"{waits(straggler.waiting)} {100 * straggler.share:.0f} % of each step"
    return headline.of_job(None, f"{subject(straggler.rank, straggler.host)} is slow{what}; {cost}")
