"""Whose turn it is to be judged: every job at every tick, for as long as that leaves time to listen.

Detection must not starve ingest: a tick judges for :data:`BUSY` seconds at most, who waited longest first, and goes on
at the next; one job that takes longer than that is judged less often. A job that is over, and of which nothing is heard
any more, is looked at once a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rankwatch.contract.enums import JobState
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.liveness import TERMINAL_STATES

TICK: Final = 0.1
"""Seconds between two ticks. A verdict may come 0.5 s after its deadline; most of that is left to others."""
BUSY: Final = 0.05
"""Seconds after which a tick leaves the other jobs to the next one."""
REST: Final = 4.0
"""A tick that took long is followed by so many times its length for everything else."""
IDLE: Final = 1.0
"""Seconds between two looks at a job that is over."""
SMALL: Final = 256
"""Ranks of a job that is judged at once whenever a launcher says something: half a millisecond while all hang."""
SHARE: Final = 0.1
"""Part of the loop's time that larger ones may take besides the ticks."""


@dataclass(slots=True)
class _Turn:
    at: float = 0.0
    cost: float = 0.0
    over: bool = False


class Turns:
    """When each job was judged, and what that took."""

    def __init__(self) -> None:
        self._last: dict[str, _Turn] = {}

    def due(self, jobs: Iterable[Job], now: float) -> list[Job]:
        """Jobs to judge now (unix seconds), who has waited longest first."""
        found = []
        for job in jobs:
            last = self._last.get(job.id)
            idle = last is not None and last.over and job.last_heard <= last.at and now - last.at < IDLE
            if not idle:
                found.append((last.at if last is not None else 0.0, job))
        found.sort(key=lambda waits: waits[0])
        return [job for _, job in found]

    def at_once(self, job: Job, now: float) -> bool:
        """Whether to judge a job for a single event. Ten thousand launchers that speak at once are one tick's work."""
        last = self._last.get(job.id)
        return last is None or len(job.columns) <= SMALL or now - last.at > last.cost / SHARE

    def took(self, job: Job, now: float, seconds: float, state: JobState | None) -> None:
        """Note a judgement."""
        last = self._last.setdefault(job.id, _Turn())
        # The wall's seconds of one judgement may be another process's; it is what it takes again and again that counts.
        last.cost = min(seconds, 2 * last.cost) if last.cost else seconds
        last.at, last.over = now, state in TERMINAL_STATES

    def forget(self, job_id: str) -> None:
        """Let a job go."""
        self._last.pop(job_id, None)

    @staticmethod
    def pause(tick_seconds: float) -> float:
        """Seconds until the next tick, after one that took so long."""
        return max(TICK, REST * tick_seconds)
