"""Windows of steps, from a scene or a table, through the very same core as the monitor's, as fast as it goes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.events import RankReport
from rankwatch_monitor.core.incident.lifecycle import advance
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.straggler import detector

UNWATCHED: Final[Mapping[str, Any]] = {
    "initial_heartbeat_timeout": None,
    "heartbeat_timeout": None,
    "silence_timeout": None,
    "first_time_timeout": None,
    "learn_timeouts": False,
}
"""Hangs are another matter: windows alone tell too little to look for them."""


def play(windows: Iterable[tuple[float, list[RankReport]]], job: Job) -> Iterator[float]:
    """Play the reports of each window; gives the time after each, when the job has been judged."""
    for at, reports in windows:
        if (due := detector.ready_at(job)) < at:
            detector.score_now(job, advance(job, due))
        for report in reports:
            apply(job, report, at)
        detector.score_now(job, advance(job, at))
        yield at
    if (due := detector.ready_at(job)) < float("inf"):
        detector.score_now(job, advance(job, due))
        yield due
