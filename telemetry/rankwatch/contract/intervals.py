"""How often the ranks and launchers of a job report, by their number, so that one monitor can ingest all of it."""

from __future__ import annotations

import math
from typing import Final

EXPORT_SECONDS: Final = 1.0
"""Seconds between two reports of a rank; an exceeded limit is reported at once."""
SPAN_STRIDE: Final = 10
"""The sections of every so many steps are sent as spans, unless a rank's settings differ."""
MAX_REQUEST_RATE: Final = 4_096
"""Requests per second of all ranks of a job to one monitor."""
MAX_REPORT_RATE: Final = 20_000
"""The same for reports of which a Collector merges those of a node into one request."""
WINDOW_SECONDS: Final = 10.0
"""Seconds that a window of steps lasts, about: ranks find a power of two of steps that comes near it."""
HISTOGRAM_SECONDS: Final = 60.0
"""Seconds between two reports of a rank of a large job that contain durations of finished sections, at least."""
MAX_WINDOW_RATE: Final = 1_600
"""Windows per second of all ranks of a job; ingesting one costs three times a report without."""


def export_seconds(world_size: int, *, collected: bool) -> float:
    """Default seconds between two reports of a rank; ``collected``: they go through a Collector."""
    return max(EXPORT_SECONDS, world_size / (MAX_REPORT_RATE if collected else MAX_REQUEST_RATE))


def burst_spread(world_size: int) -> float:
    """Seconds over which the ranks of a large job spread reports that they all want to send at once."""
    return 0.0 if world_size <= MAX_REQUEST_RATE else world_size / MAX_REPORT_RATE


def histogram_seconds(world_size: int) -> float:
    """Seconds between two reports that contain durations of finished sections; 0: every report does.

    They are half of the cost of a report, and only the number of runs is read of them before a limit is learned.
    """
    return 0.0 if world_size <= MAX_REQUEST_RATE else max(HISTOGRAM_SECONDS, window_seconds(world_size))


def window_seconds(world_size: int) -> float:
    """About how many seconds a window lasts where its number of steps is not configured."""
    return max(WINDOW_SECONDS, world_size / MAX_WINDOW_RATE)


def window_spread(world_size: int) -> float:
    """Seconds over which the ranks of a very large job spread their reports of a window, which all close at once."""
    return window_seconds(world_size) - WINDOW_SECONDS


# Launchers ------------------------------------------------------------------------------------------------------------

POLL_SECONDS: Final = 20.0
"""Seconds that a launcher's long poll for directives stays open; common proxies time out after 30 s."""
LAUNCHER_HEARTBEAT_SECONDS: Final = 5.0
"""Seconds between two heartbeats of a launcher."""
MAX_HEARTBEATING: Final = 512
"""Launchers of a job that all send heartbeats: 100 per second. Those of a larger one are known to be alive by their
long polls, and only the one with rank 0 sends heartbeats."""
CHECK_INTERVAL: Final = 0.5
"""Seconds between two observations of its ranks by a launcher, and between two reports on behalf of ranks."""
MAX_PROXY_REPORT_RATE: Final = 500
"""Reports on behalf of ranks per second, of all launchers of a job."""
FEW_LAUNCHERS: Final = 64
"""Launchers of a job that also report what the monitor learns in another way: at twice a second this costs it a tenth
of its time. All ranks of a job hang at the same moment, when the monitor is needed most."""
MAX_EVIDENCE_RATE: Final = 2_500
"""Nodes per second that send their stacks; one costs the monitor 0.4 ms (``benchmarks/load.py --launchers``). Those of
100,000 ranks arrive within 10 s, of which 5 are for taking them."""

WATCH_INTERVAL: Final = 2.0
"""Seconds between two looks at ranks that are suspected, at first."""
WATCH_FAST_SECONDS: Final = 14.0
"""Seconds after which they are looked at less often."""
WATCH_SLOW_INTERVAL: Final = 4.0


def launcher_heartbeat_seconds(launchers: int, silence: float | None = None) -> float:
    """Seconds between two heartbeats of a launcher; infinite: it sends none.

    ``silence`` is the limit in seconds after which the monitor considers it lost; None: there is none.
    """
    if launchers <= MAX_HEARTBEATING:
        return LAUNCHER_HEARTBEAT_SECONDS
    return math.inf if silence is None or silence >= 3 * POLL_SECONDS else max(LAUNCHER_HEARTBEAT_SECONDS, silence / 3)


def proxy_report_seconds(launchers: int, silence: float | None = None) -> float:
    """Seconds between two reports of a launcher on behalf of the same ranks; the first is sent at once.

    Six of them fit into the limit for ``silence``, so that a lost one does not make a rank silent.
    """
    most = POLL_SECONDS if silence is None else max(CHECK_INTERVAL, silence / 6)
    return min(POLL_SECONDS, most, max(CHECK_INTERVAL, launchers / MAX_PROXY_REPORT_RATE))


def evidence_spread(launchers: int) -> float:
    """Seconds over which the launchers of a large job spread the stacks requested of all of them at once."""
    return 0.0 if launchers <= FEW_LAUNCHERS else launchers / MAX_EVIDENCE_RATE


def watch_interval(launchers: int, watched: float) -> float:
    """Seconds until a launcher's next look at its ranks while they are suspected; ``watched``: since the first.

    Two looks of every launcher of a large job take at most a quarter of the rate at which stacks can be ingested.
    """
    shortest = WATCH_INTERVAL if watched < WATCH_FAST_SECONDS else WATCH_SLOW_INTERVAL
    return max(shortest, 4 * launchers / MAX_EVIDENCE_RATE)


def omits_redundant_reports(launchers: int) -> bool:
    """Whether launchers omit what the monitor learns in another way.

    That is: a rank is past its limit (it reports so itself), a directive was carried out (its effect is visible), the
    progress of each rank when stacks are taken (one launcher reports it for all).
    """
    return launchers > FEW_LAUNCHERS


# Stopping -------------------------------------------------------------------------------------------------------------

STOP_MARGIN_SECONDS: Final = 3.0
"""An agreed stop step lies this far ahead of the furthest rank, so that every slot holds it before any rank arrives."""
STOP_MARGIN_STEPS: Final = 1
"""Steps on top: the furthest rank may have completed one more since it reported."""


def agreed_stop_step(furthest: int, steps_per_second: float, *, delay: float = 0.0) -> int:
    """The step after which all ranks can stop together.

    Args:
        furthest: the last step that any rank has completed; -1: none.
        steps_per_second: pace of the job; 0: unknown, for which one more step is added.
        delay: seconds beyond the margin until every slot holds the step.
    """
    ahead = math.ceil(steps_per_second * (STOP_MARGIN_SECONDS + delay)) if steps_per_second > 0 else 1
    return furthest + ahead + STOP_MARGIN_STEPS
