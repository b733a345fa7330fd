"""Schedules job evaluation: every job at every tick, as long as ingest is not starved.

A tick evaluates for :data:`TICK_BUDGET` seconds at most, least recently evaluated jobs first, and continues at the next
tick; a job that alone exceeds the budget is evaluated less often. A job in a terminal state that reports nothing more
is evaluated once a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rankwatch.contract.enums import JobState
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.liveness import TERMINAL_STATES

TICK: Final = 0.1
"""Seconds between two ticks. A verdict may come 0.5 s after its deadline; most of that is left to other work."""
TICK_BUDGET: Final = 0.05
"""Seconds of evaluation after which a tick leaves the remaining jobs to the next one."""
BACKOFF: Final = 4.0
"""A long tick is followed by a pause of this many times its duration."""
IDLE_INTERVAL: Final = 1.0
"""Seconds between two evaluations of a job in a terminal state."""
SMALL_JOB: Final = 256
"""Ranks, and launchers, of a job that is evaluated after every launcher message: takes half a millisecond while all
ranks hang. Larger ones are left to the next tick: thousands of messages arrive within a second, and any of them may be
the one after which a window is evaluated or an incident opened, in 0.1 s."""


@dataclass(slots=True)
class _Evaluation:
    at: float
    terminal: bool


class Scheduler:
    """When each job was last evaluated, and with which result."""

    def __init__(self) -> None:
        self._last: dict[str, _Evaluation] = {}

    def due(self, jobs: Iterable[Job], now: float) -> list[Job]:
        """The jobs to evaluate now (unix seconds), least recently evaluated first."""
        found = []
        for job in jobs:
            last = self._last.get(job.id)
            idle = last is not None and last.terminal and job.last_heard <= last.at and now - last.at < IDLE_INTERVAL
            if not idle:
                found.append((last.at if last is not None else 0.0, job))
        found.sort(key=lambda each: each[0])
        return [job for _, job in found]

    @staticmethod
    def small(job: Job) -> bool:
        """Whether to evaluate a job after a single event; a large one is left to the next tick."""
        return len(job.columns) <= SMALL_JOB and len(job.nodes) <= SMALL_JOB

    def record(self, job: Job, now: float, state: JobState | None) -> None:
        """Record an evaluation that found ``state``."""
        self._last[job.id] = _Evaluation(now, state in TERMINAL_STATES)

    def forget(self, job_id: str) -> None:
        """Remove a dropped job."""
        self._last.pop(job_id, None)

    @staticmethod
    def pause(tick_seconds: float) -> float:
        """Seconds until the next tick, after one of this duration."""
        return max(TICK, BACKOFF * tick_seconds)
