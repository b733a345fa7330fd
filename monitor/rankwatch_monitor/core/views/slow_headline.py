"""A slow rank in one line: which one, in what, and how much of each step the others wait. Derived when read.

Made from the straggler's sentence alone, so that its figures are those of the sentence.
"""

from __future__ import annotations

import re
from typing import Final

from rankwatch.contract.enums import Cause
from rankwatch_monitor.core.straggler.findings import Straggler
from rankwatch_monitor.core.views import headline
from rankwatch_monitor.core.views.throttling import Throttle

_SENTENCE: Final = re.compile(r"(.+) is slow: (the other rank waits|\d+ ranks wait) .* step for it \((\d+ %)\)")
_IN: Final = {Cause.DATA: " in its input", Cause.HOST: " in its host-side work", Cause.COMPUTE: " in its computation"}


def slow_headline(straggler: Straggler, throttle: Throttle | None) -> str:
    """The slow rank in at most :data:`.headline.LONGEST` characters.

    Args:
        straggler: the costliest one that is open.
        throttle: what throttles its GPU; None: nothing, or that is not known.
    """
    found = _SENTENCE.match(straggler.reason)
    if found is None:
        return headline.of_job(None, straggler.reason)
    subject, waits, share = found.groups()
    what = _IN.get(straggler.cause, "") if throttle is None else f": {throttle.gpu} throttled"
    return headline.of_job(None, f"{subject} is slow{what}; {waits} {share} of each step")
