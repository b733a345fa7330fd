"""How often the ranks and launchers of a job send what, by the number of them: one monitor takes in all of it."""

from __future__ import annotations

import math
from typing import Final

EXPORT_SECONDS: Final = 1.0
"""Seconds between two reports of a rank; a limit that is passed is not put off until the next."""
MAX_REQUEST_RATE: Final = 4_096
"""Requests a second that all ranks of a job make of one monitor together."""
MAX_REPORT_RATE: Final = 20_000
"""The same for reports of which a Collector puts those of a node into one request."""
WINDOW_SECONDS: Final = 10.0
"""Seconds that a window of steps lasts, about: ranks find a power of two of steps that comes near it."""
MAX_WINDOW_RATE: Final = 1_600
"""Windows a second of all ranks of a job: they take three times as long as a report without."""


def export_seconds(world_size: int, *, collected: bool) -> float:
    """Seconds between two reports of a rank, where nobody has set them; ``collected``: a Collector stands between."""
    return max(EXPORT_SECONDS, world_size / (MAX_REPORT_RATE if collected else MAX_REQUEST_RATE))


def burst_spread(world_size: int) -> float:
    """Seconds over which the ranks of a large job spread what they all have to tell at once: a limit is passed."""
    return 0.0 if world_size <= MAX_REQUEST_RATE else world_size / MAX_REPORT_RATE


def histogram_seconds(world_size: int) -> float:
    """Seconds between two reports that hold the durations of finished sections; 0: every report holds them.

    They are a third of the work that a report makes, and no limit waits for them.
    """
    return 0.0 if world_size <= MAX_REQUEST_RATE else window_seconds(world_size)


def window_seconds(world_size: int) -> float:
    """Seconds that a window lasts, about, where nobody has set how many steps it has."""
    return max(WINDOW_SECONDS, world_size / MAX_WINDOW_RATE)


def window_spread(world_size: int) -> float:
    """Seconds over which the ranks of a very large job spread what they tell of a window that all close at once."""
    return window_seconds(world_size) - WINDOW_SECONDS


# Launchers ------------------------------------------------------------------------------------------------------------

POLL_SECONDS: Final = 20.0
"""How long a launcher's question for directives may stay open, after which it asks again: common proxies give up after
30 s."""
LAUNCHER_HEARTBEAT_SECONDS: Final = 5.0
"""Seconds between two beats of a launcher that has nothing else to say."""
MAX_HEARTBEATING: Final = 512
"""Launchers of a job that all beat: 100 times a second. Those of a larger one show themselves by asking for directives,
and only the one with rank 0 beats."""
LOOK_SECONDS: Final = 0.5
"""Seconds between two looks of a launcher at its ranks, and between its words for those that cannot speak."""
MAX_PROXY_REPORT_RATE: Final = 500
"""Such words a second, of all launchers of a job together."""
FEW_LAUNCHERS: Final = 64
"""Launchers of a job that say all they can, also what the monitor learns in another way: twice a second all of them
then take it a tenth of its time. A whole job hangs in one moment, and in this moment its monitor is needed most."""
MAX_EVIDENCE_RATE: Final = 2_500
"""Nodes a second whose stacks reach the monitor, each of which takes it 0.4 ms (``benchmarks/load.py --launchers``):
those of 100,000 ranks are there within 10 s, of which 5 are for taking them."""


def launcher_heartbeat_seconds(launchers: int, silence: float | None = None) -> float:
    """Seconds after which a launcher shows that it lives while it has nothing else to say; infinite: it need not.

    ``silence`` is the limit in seconds beyond which the monitor takes it for gone; None: it never does.
    """
    if launchers <= MAX_HEARTBEATING:
        return LAUNCHER_HEARTBEAT_SECONDS
    return math.inf if silence is None or silence >= 3 * POLL_SECONDS else max(LAUNCHER_HEARTBEAT_SECONDS, silence / 3)


def proxy_report_seconds(launchers: int, silence: float | None = None) -> float:
    """Seconds between two words of a launcher for the same ranks; its first word for them comes at once.

    Ranks are silent for nobody though a word is lost now and then: six of them fit into the limit for ``silence``.
    """
    most = POLL_SECONDS if silence is None else max(LOOK_SECONDS, silence / 6)
    return min(POLL_SECONDS, most, max(LOOK_SECONDS, launchers / MAX_PROXY_REPORT_RATE))


def evidence_spread(launchers: int) -> float:
    """Seconds over which the launchers of a large job spread the stacks they were all asked for at once."""
    return 0.0 if launchers <= FEW_LAUNCHERS else launchers / MAX_EVIDENCE_RATE


def omits_redundant_reports(launchers: int) -> bool:
    """Whether launchers leave out what the monitor learns in another way.

    That is: a rank is past its limit (it says so itself), a directive was done (what it asked for is seen), how far
    each rank has come when stacks are taken (one launcher says so for all).
    """
    return launchers > FEW_LAUNCHERS


# Stopping -------------------------------------------------------------------------------------------------------------

STOP_MARGIN_SECONDS: Final = 3.0
"""An agreed stop step lies this far ahead of the furthest rank, so that every slot holds it before any rank arrives."""
STOP_MARGIN_STEPS: Final = 1
"""Steps on top: the furthest rank may have completed one more since it reported."""


def agreed_stop_step(furthest: int, steps_per_second: float) -> int:
    """The step after which all ranks can stop together.

    Args:
        furthest: the last step that any rank has completed; -1: none.
        steps_per_second: pace of the job; 0: unknown, for which one more step is added.
    """
    ahead = math.ceil(steps_per_second * STOP_MARGIN_SECONDS) if steps_per_second > 0 else 1
    return furthest + ahead + STOP_MARGIN_STEPS
