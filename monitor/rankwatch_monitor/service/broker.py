"""Delivers committed directives to the launchers that wait for them by long poll."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rankwatch.contract.messages import Directive
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.ingest.work_queue import WorkQueue

log = logging.getLogger("rankwatch")

Respond = Callable[[list[Directive] | None], None]
"""Receives the new directives; an empty list after the timeout; None when this monitor dropped the job, or has
something else for this launcher."""


@dataclass(eq=False, slots=True)
class Waiter:
    """One launcher's pending long poll."""

    job: Job
    after: int
    respond: Respond
    node: str = ""
    timer: asyncio.TimerHandle | None = None


class DirectiveBroker:
    """Holds, for each job, the highest published directive and the waiters. Used on the event loop's thread only."""

    def __init__(self) -> None:
        self.ending = False
        """Long polls and streams must end: the monitor shuts down."""
        self._published: dict[str, int] = {}
        self._queue = WorkQueue()
        """Thousands of waiters are answered in several turns of the loop; requests are served in between."""
        self._waiters: dict[str, dict[Waiter, None]] = {}

    def publish(self, job_id: str, number: int) -> None:
        """Make the directives of a job up to this number visible, and answer its waiters."""
        self._published[job_id] = max(number, self._published.get(job_id, 0))
        self._answer_all(job_id)

    def forget(self, job_id: str) -> None:
        """Answer all waiters of a job that this monitor has dropped."""
        self._published.pop(job_id, None)
        self._answer_all(job_id, gone=True)

    def end_long_polls(self) -> None:
        """Answer all waiters of all jobs, at shutdown."""
        self.ending = True
        for job_id in list(self._waiters):
            self._answer_all(job_id)

    def available(self, job: Job, after: int) -> list[Directive]:
        """The published directives of a job above number ``after``."""
        published = self._published.get(job.id, 0)
        if after >= published:
            return []
        return [directive for directive in job.directives if after < directive.id <= published]

    def subscribe(self, job: Job, after: int, wait: float, respond: Respond, node: str = "") -> Callable[[], object]:
        """Call ``respond`` once: with the next directives above ``after``, or after ``wait`` seconds.

        Returns the function that cancels the subscription. Directives that are published already do not trigger it:
        check :meth:`available` first.
        """
        waiter = Waiter(job, after, respond, node)
        self._waiters.setdefault(job.id, {})[waiter] = None
        waiter.timer = asyncio.get_running_loop().call_later(wait, self._answer, waiter, [])
        return lambda: self._cancel(waiter)

    def wake(self, job_id: str, node: str) -> None:
        """Answer a launcher of a job, for which there is something else than directives."""
        for waiter in [each for each in self._waiters.get(job_id, ()) if each.node == node]:
            self._answer(waiter, None)

    async def wait_for(self, find: Callable[[], Job], after: int, wait: float, node: str = "") -> list[Directive]:
        """The directives above number ``after``; waits up to ``wait`` seconds for one.

        ``find`` returns the job or raises, also after the wait: the job may have been dropped meanwhile.
        """
        job = find()
        found = self.available(job, after)
        if found or wait <= 0 or self.ending:
            return found
        answered: asyncio.Future[list[Directive] | None] = asyncio.get_running_loop().create_future()
        cancel = self.subscribe(
            job, after, wait, lambda new: None if answered.done() else answered.set_result(new), node
        )
        try:
            received = await answered
        finally:
            cancel()
        return self.available(find(), after) if received is None else received

    def _answer_all(self, job_id: str, *, gone: bool = False) -> None:
        for waiter in list(self._waiters.get(job_id, ())):
            answer = partial(self._answer_if_due, waiter, gone)
            if self.ending:
                answer()
            else:
                self._queue.submit(answer)

    def _answer_if_due(self, waiter: Waiter, gone: bool) -> None:
        found = self.available(waiter.job, waiter.after)
        if gone or found or self.ending:
            self._answer(waiter, None if gone else found)

    def _answer(self, waiter: Waiter, found: list[Directive] | None) -> None:
        if self._cancel(waiter):
            try:
                waiter.respond(found)
            except Exception:
                log.exception("a launcher of job %s could not be answered", waiter.job.id)

    def _cancel(self, waiter: Waiter) -> bool:
        waiters = self._waiters.get(waiter.job.id, {})
        if waiter not in waiters:
            return False
        del waiters[waiter]
        if not waiters:
            del self._waiters[waiter.job.id]
        if waiter.timer is not None:
            waiter.timer.cancel()
            waiter.timer = None  # breaks the reference cycle waiter -> timer -> waiter
        return True
