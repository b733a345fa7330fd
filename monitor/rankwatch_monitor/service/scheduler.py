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
"""Ranks of a job that is evaluated after every launcher message: takes half a millisecond while all ranks hang."""
EVENT_SHARE: Final = 0.1
"""Share of the loop's time for evaluating larger jobs after launcher messages."""


@dataclass(slots=True)
class _Evaluation:
    at: float = 0.0
    cost: float = 0.0
    terminal: bool = False


class Scheduler:
    """When each job was last evaluated, and how long that took."""

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

    def may_evaluate(self, job: Job, now: float) -> bool:
        """Whether to evaluate a job after a single event, or to leave it to the next tick."""
        last = self._last.get(job.id)
        return last is None or len(job.columns) <= SMALL_JOB or now - last.at > last.cost / EVENT_SHARE

    def record(self, job: Job, now: float, seconds: float, state: JobState | None) -> None:
        """Record an evaluation that took ``seconds`` and found ``state``."""
        last = self._last.setdefault(job.id, _Evaluation())
        # One wall-clock sample may include preemption by another process, so the cost at most doubles.
        last.cost = min(seconds, 2 * last.cost) if last.cost else seconds
        last.at, last.terminal = now, state in TERMINAL_STATES

    def forget(self, job_id: str) -> None:
        """Remove a dropped job."""
        self._last.pop(job_id, None)

    @staticmethod
    def pause(tick_seconds: float) -> float:
        """Seconds until the next tick, after one of this duration."""
        return max(TICK, BACKOFF * tick_seconds)
