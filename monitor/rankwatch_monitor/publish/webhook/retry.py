"""When something that was not taken is tried again, and what the answer of a receiver means."""

from __future__ import annotations

import random
from email.utils import parsedate_to_datetime
from typing import Final

FIRST: Final = 1.0
"""Seconds until the second try; it doubles with every further one."""
LONGEST: Final = 600.0
"""Seconds between two tries at most, unless the receiver asks for more."""
MOST_ASKED: Final = 86_400.0
"""Seconds for which a receiver may ask with ``Retry-After``."""
GIVE_UP: Final = 3 * 86_400.0
"""Seconds after which a message is too old to be told."""


def wait(failures: int) -> float:
    """Seconds to wait after so many failures in a row, half of them by chance: senders must not come all at once."""
    whole = min(LONGEST, FIRST * 2.0 ** min(failures - 1, 20))
    return whole * random.uniform(0.5, 1.0)


def retry_after(value: str | None, now: float) -> float | None:
    """Seconds that a ``Retry-After`` header asks for, given as a number or as a date; None when it says nothing.

    Args:
        value: the header.
        now: unix seconds.
    """
    if value is None:
        return None
    asked = value.strip()
    if asked.isascii() and asked.isdigit():
        return min(float(asked[:12]), MOST_ASKED)
    try:
        return min(max(0.0, parsedate_to_datetime(asked).timestamp() - now), MOST_ASKED)
    except (ValueError, TypeError, OverflowError):
        return None
