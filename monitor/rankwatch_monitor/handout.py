"""Directives that were committed, and the launchers that wait for them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from rankwatch.wire.control import Directive
from rankwatch_monitor.core.state import Job


class Handout:
    """Which directives of each job may be seen. On the loop's thread only."""

    def __init__(self) -> None:
        self.ending = False
        """Long polls are to end."""
        self._shown: dict[str, int] = {}
        self._news: dict[str, asyncio.Event] = {}

    def show(self, job_id: str, number: int) -> None:
        """Hand out the directives of a job up to this number."""
        self._shown[job_id] = max(number, self._shown.get(job_id, 0))
        self._wake(job_id)

    def forget(self, job_id: str) -> None:
        """Answer all who wait for news of a job, which is watched no more."""
        self._shown.pop(job_id, None)
        self._wake(job_id)

    def end_waits(self) -> None:
        """Answer all who wait."""
        self.ending = True
        for job_id in list(self._news):
            self._wake(job_id)

    async def after(self, find: Callable[[], Job], after: int, wait: float) -> list[Directive]:
        """Directives above number ``after``; waits up to ``wait`` seconds for one.

        ``find`` gives the job, or raises what is then raised here: it may be gone after a while.
        """
        deadline = time.monotonic() + wait
        while True:
            job = find()
            ready = [d for d in job.directives if after < d.id <= self._shown.get(job.id, 0)]
            left = deadline - time.monotonic()
            if ready or left <= 0 or self.ending:
                return ready
            news = self._news.setdefault(job.id, asyncio.Event())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), left)

    def _wake(self, job_id: str) -> None:
        self._news.pop(job_id, asyncio.Event()).set()
