"""A slow rank in one line: which one, in what, and how much of each step the others wait. Derived when read."""

from __future__ import annotations

from rankwatch.cli.formatting import whole_percent
from rankwatch_monitor.core.straggler.findings import Straggler, slow_in, subject, waits
from rankwatch_monitor.core.views import headline
from rankwatch_monitor.core.views.throttling import Throttle


def slow_headline(straggler: Straggler, throttle: Throttle | None) -> str:
    """The slow rank in at most :data:`.headline.LONGEST` characters; its figures are those of its sentence.

    Args:
        straggler: the costliest one that is open.
        throttle: what throttles its GPU; None: nothing, or that is not known.
    """
    if straggler.waiting is None or (share := straggler.stated_share) is None:
        return headline.of_job(None, straggler.reason)
    what = slow_in(straggler.cause) if throttle is None else f": {throttle.gpu} throttled"
    slow = f"{subject(straggler.rank, straggler.host)} is slow{what}"
    whole = f"{slow}; {waits(straggler.waiting)} {whole_percent(share)} of each step"
    return headline.of_job(None, whole if len(whole) <= headline.LONGEST else slow)
