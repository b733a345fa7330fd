"""The monitor hears of a verdict, where there is one; the machine works all the same where there is none."""

from __future__ import annotations

import rankwatch
from rankwatch.contract.enums import NoticeKind


def tell(sentence: str) -> bool:
    """Make an incident of a sentence; whether a launcher will hear it. Silent where Rankwatch was never started."""
    return rankwatch.is_initialized() and rankwatch.tell(NoticeKind.WRONG_RESULT, sentence)
