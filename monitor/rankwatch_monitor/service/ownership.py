"""One of several monitors that share a database: which jobs are ours (docs/adr/0012-jobs-are-held-by-lease.md).

This is the loop's side of :mod:`.store.leases`: it takes jobs up that have become ours, lets those go that are
another's, and has the words for those who ask the wrong monitor.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from sqlalchemy.exc import SQLAlchemyError

from rankwatch_monitor.core.job import Job
from rankwatch_monitor.errors import HeldElsewhereError
from rankwatch_monitor.store.leases import Answer, Holder, Leases
from rankwatch_monitor.store.reading import Summary
from rankwatch_monitor.store.repository import Repository

log = logging.getLogger("rankwatch")

PATIENCE: Final = 2.0
"""Seconds for which a request waits to hear whether its job has become ours."""
LISTED: Final = 1_000
"""Jobs of other monitors that are listed at most."""


class Watch(Protocol):
    """What the loop does about jobs that come and go."""

    def take_up(self, job: Job) -> None:
        """Watch a job that was loaded from the database."""

    def drop(self, job_id: str) -> None:
        """Watch a job no more, and answer those who wait for news of it."""

    def hand_over(self, job_id: str, then: Callable[[], None]) -> bool:
        """Let go of a job that nobody speaks to us about any more; ``then`` follows once it was stored.

        False when it was spoken of within the length of a lease.
        """


class Sharing:
    """Knows which jobs are ours. Made on the loop's thread, which also calls every method."""

    def __init__(self, leases: Leases, repository: Repository, watch: Watch, now: Callable[[], float]) -> None:
        """Begin.

        Args:
            leases: not started yet.
            repository: from which jobs are loaded; it is told to write nothing of jobs that are not ours.
            watch: takes jobs up and lets them go.
            now: the loop's clock, unix seconds.
        """
        self.leases = leases
        self.newest: Sequence[Summary] = ()
        """The newest jobs in the database, as read at the last renewal."""
        self._repository, self._watch, self._now = repository, watch, now
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, list[asyncio.Future[Answer]]] = {}
        self._known: set[str] = set()
        """Jobs that are ours and were taken up."""
        repository.fence = leases
        leases.on_answer, leases.on_lost = self._answered, self._lost
        leases.on_wanted, leases.on_round = self._wanted, self._read_newest
        leases.start()

    def ours(self, job_id: str) -> bool:
        """Whether this monitor may act for a job now."""
        return job_id in self._known and self.leases.holds(job_id)

    def check(self, job_id: str) -> None:
        """Return when what a rank or launcher says of a job is to be taken in here; ask for the job otherwise.

        Raises:
            HeldElsewhereError: it is not, or not yet.
        """
        if not self.ours(job_id):
            self.leases.ask(job_id, contact=True)
            raise HeldElsewhereError(self.words(job_id))

    async def hold(self, job_id: str, *, contact: bool) -> bool:
        """Have a job here, or say why it is not; False when there is no such job.

        Args:
            job_id: which.
            contact: a launcher asks, who may speak of a new job; else somebody who reads.

        Raises:
            HeldElsewhereError: it is another monitor's, or the database does not answer.
        """
        if self.ours(job_id) or (job_id in self._known and not contact):
            return True
        self.leases.ask(job_id, contact=contact, again=True)
        answered: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting.setdefault(job_id, []).append(answered)
        try:
            with contextlib.suppress(TimeoutError):
                answer = await asyncio.wait_for(answered, PATIENCE)
                if not answer.ours and answer.holder is None:
                    return False
        finally:
            self._waiting[job_id].remove(answered)
            if not self._waiting[job_id]:
                del self._waiting[job_id]
        if not self.ours(job_id):
            raise HeldElsewhereError(self.words(job_id))
        return True

    def words(self, job_id: str) -> str:
        """Why a job is not ours just now, and what to do."""
        if self.leases.trouble:
            return (
                f"job {job_id!r} cannot be taken: the database that monitors share does not answer "
                f"({self.leases.trouble}); training goes on, come again"
            )
        holder = self.leases.holder(job_id)
        if holder is None:
            return f"job {job_id!r} is being taken up by this monitor: come again in a second"
        return (
            f"job {job_id!r} is held by monitor {holder.name} at {holder.url}: ask there; if a proxy led here, it "
            "should try the next monitor on a 503"
        )

    def retire(self, job_id: str) -> Callable[[], None]:
        """Take no more part in a job; what is returned gives its lease back, and is called once the job was stored."""
        self._known.discard(job_id)
        return lambda: self.leases.let_go(job_id)

    def close(self) -> None:
        """Let all jobs go, after they were stored."""
        self.leases.close()

    # From the leases' thread ------------------------------------------------------------------------------------------

    def _answered(self, job_id: str, answer: Answer) -> None:
        job = None
        if answer.ours and job_id not in self._known:
            try:
                job = self._repository.load_job(job_id, self._now())
            except SQLAlchemyError:
                self.leases.let_go(job_id)  # not without its past: it is asked for again
                raise
        self._on_loop(lambda: self._settle(job_id, answer, job))

    def _lost(self, job_id: str, holder: Holder | None) -> None:
        by = f"monitor {holder.name} at {holder.url} holds it" if holder is not None else "another one holds it"
        log.warning("job %s is not watched here any more: %s", job_id, by)
        self._repository.forget(job_id)
        self._on_loop(lambda: self._drop(job_id))

    def _wanted(self, job_id: str, by: str) -> None:
        self._on_loop(lambda: self._hand_over(job_id, by))

    def _read_newest(self) -> None:
        self.newest = self._repository.summaries(LISTED)

    def _on_loop(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed: the monitor is shutting down
            self._loop.call_soon_threadsafe(call)

    # On the loop ------------------------------------------------------------------------------------------------------

    def _settle(self, job_id: str, answer: Answer, job: Job | None) -> None:
        if answer.ours and job_id not in self._known:
            self._known.add(job_id)
            if job is not None:
                log.info("job %s is watched here from now on", job_id)
                self._watch.take_up(job)
        for answered in self._waiting.get(job_id, ()):
            if not answered.done():
                answered.set_result(answer)

    def _drop(self, job_id: str) -> None:
        self._known.discard(job_id)
        self._watch.drop(job_id)

    def _hand_over(self, job_id: str, by: str) -> None:
        if job_id in self._known and self._watch.hand_over(job_id, lambda: self.leases.let_go(job_id)):
            self._known.discard(job_id)
            log.info("job %s is handed over to monitor %s, which its ranks and launchers speak to", job_id, by)

    def listed(self, watched: Callable[[str], bool]) -> list[dict[str, Any]]:
        """Jobs that other monitors hold, or nobody, as ``GET /jobs`` shows them."""
        return [shown(each) for each in self.newest if not watched(each.id)]


def shown(job: Summary) -> dict[str, Any]:
    """A job of another monitor as ``GET /jobs`` shows it: what only its own monitor knows is null."""
    return {
        "id": job.id,
        "name": job.name,
        "state": job.state,
        "reason": "",
        "world_size": job.world_size,
        "ranks_reporting": None,
        "attempt": job.attempt,
        "started_at": job.started_at,
        "goodput": None,
        "monitor": job.holder,
    }
