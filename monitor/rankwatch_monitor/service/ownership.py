"""Which jobs this monitor owns when several share a database (docs/adr/0012-jobs-are-held-by-lease.md).

The event loop's side of :mod:`..store.leases`: adopts jobs whose lease was acquired, drops those whose lease was lost,
and explains to clients of the wrong monitor where to go.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from sqlalchemy.exc import SQLAlchemyError

from rankwatch.contract.enums import JobState
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views import responses
from rankwatch_monitor.errors import HeldElsewhereError
from rankwatch_monitor.store.leases import Holder, LeaseResult, Leases
from rankwatch_monitor.store.repository import JobSummary, Repository

log = logging.getLogger("rankwatch")

ACQUIRE_TIMEOUT: Final = 2.0
"""Seconds for which a request waits for the lease of its job."""
ABANDON_AFTER: Final = 60.0
"""Seconds after the last contact about a job that has not appeared, from which on it is let go."""
MAX_LISTED: Final = 1_000
"""Jobs of other monitors that are listed at most."""


class JobRegistry(Protocol):
    """Where jobs are adopted and dropped: :class:`rankwatch_monitor.service.monitor.Monitor`."""

    @property
    def jobs(self) -> Mapping[str, Job]:
        """All jobs that this monitor has, by id."""

    def adopt(self, job: Job) -> None:
        """Take over a job that was loaded from the database."""

    def lose(self, job_id: str) -> None:
        """Drop a job that another monitor owns."""

    def hand_over(self, job_id: str, on_saved: Callable[[], None], *, first: float | None) -> bool:
        """Save and drop a job that no longer reports here, or goes to the monitor that is asked first, which has
        the seconds since this one was contacted about it; False: not now.
        """


class Ownership:
    """Tracks which jobs this monitor owns. Created and called on the event loop's thread."""

    def __init__(self, leases: Leases, repository: Repository, registry: JobRegistry, now: Callable[[], float]) -> None:
        """Start the leases.

        Args:
            leases: not started yet.
            repository: jobs are loaded from it; it is fenced to write only rows of owned jobs.
            registry: adopts and drops jobs.
        """
        self.leases = leases
        self.newest: Sequence[JobSummary] = ()
        """The most recently active jobs in the database, as read at the last renewal."""
        self._repository, self._registry, self._now = repository, registry, now
        self._loop = asyncio.get_running_loop()
        self._pending: dict[str, list[asyncio.Future[LeaseResult]]] = {}
        self._adopted: dict[str, float] = {}
        """The jobs of this monitor, and when each was acquired or last contacted, on the event loop's clock. Contact is
        also a report that was refused under load, or whose sender did not wait for the response."""
        repository.writer.fence = leases
        leases.on_results, leases.on_lost = self._requested, self._lost
        leases.on_contended, leases.on_renewed = self._contended, self._read_newest
        leases.start()

    def owns(self, job_id: str) -> bool:
        """Whether this monitor may act for a job now."""
        return job_id in self._adopted and self.leases.holds(job_id)

    def may_have_lost(self, job_id: str) -> bool:
        """Whether another monitor may have an adopted job by now: its lease expired, and the database answers.

        So it is when this process was paused, until the next renewal. Without the database no other monitor has it.
        """
        return not self.owns(job_id) and not self.leases.db_error

    def require(self, job_id: str) -> None:
        """Return when this monitor owns the job; else request its lease and raise.

        Raises:
            HeldElsewhereError: the job is not owned, or not yet.
        """
        if not self.owns(job_id):
            self.leases.request(job_id, contact=True)
            raise self.refusal(job_id)
        self._adopted[job_id] = self._loop.time()

    async def acquire(self, job_id: str, *, contact: bool) -> bool:
        """Wait until this monitor owns a job; False when there is no such job.

        Args:
            contact: the request comes from a launcher, which may introduce a new job; else from a reader.

        Raises:
            HeldElsewhereError: another monitor holds it, or the database does not answer.
        """
        if self.owns(job_id) or (job_id in self._adopted and not contact):
            return True
        self.leases.request(job_id, contact=contact, again=True)
        pending: asyncio.Future[LeaseResult] = self._loop.create_future()
        self._pending.setdefault(job_id, []).append(pending)
        try:
            with contextlib.suppress(TimeoutError):
                result = await asyncio.wait_for(pending, ACQUIRE_TIMEOUT)
                if not result.acquired and result.holder is None:
                    return False
        finally:
            self._pending[job_id].remove(pending)
            if not self._pending[job_id]:
                del self._pending[job_id]
        if not self.owns(job_id):
            raise self.refusal(job_id)
        return True

    def refusal(self, job_id: str) -> HeldElsewhereError:
        """Why this monitor does not own a job now, and what the client should do."""
        if self.leases.db_error:
            return HeldElsewhereError(
                f"job {job_id!r} cannot be acquired: the database that the monitors share does not answer "
                f"({self.leases.db_error}); training continues, retry later"
            )
        holder = self.leases.holder(job_id)
        if holder is None:
            why = f"job {job_id!r} is being acquired by this monitor: retry in a second"
            return HeldElsewhereError(why, acquiring=True)
        return HeldElsewhereError(
            f"job {job_id!r} is held by {holder}: ask there; a proxy in between should try the next monitor on a 503"
        )

    def disown(self, job_id: str) -> Callable[[], None]:
        """Stop acting for a job; the returned function releases its lease and is called once the job is stored."""
        self._adopted.pop(job_id, None)
        return lambda: self.leases.release(job_id)

    def other_jobs(self, watched: Callable[[str], bool]) -> list[responses.JobElsewhere]:
        """The jobs that this monitor does not watch, as ``GET /jobs`` shows them."""
        return [_summary_json(each) for each in self.newest if not watched(each.id)]

    def without_job(self) -> set[str]:
        """The jobs that this monitor was contacted about, and that have not appeared here yet."""
        return {*self._adopted, *self.leases.requested()} - self._registry.jobs.keys()

    def close(self) -> None:
        """Release all leases, after the jobs were stored."""
        self.leases.close()

    # Called on the leases' thread -------------------------------------------------------------------------------------

    def _requested(self, results: Mapping[str, LeaseResult]) -> None:
        new = [job_id for job_id, result in results.items() if result.acquired and job_id not in self._adopted]
        try:
            jobs = self._repository.load_jobs(new, self._now())
        except SQLAlchemyError:
            for job_id in new:  # a job is not adopted without its past: the next request tries again
                self.leases.release(job_id)
            raise
        self._on_loop(lambda: self._settle(results, jobs))

    def _lost(self, job_id: str, holder: Holder | None) -> None:
        log.warning("job %s: lease lost to %s; this monitor drops the job", job_id, holder or "another monitor")
        self._repository.writer.forget(job_id)
        self._on_loop(lambda: self._drop(job_id))

    def _contended(self, job_id: str, by: str, first: bool) -> None:
        self._on_loop(lambda: self._hand_over(job_id, by, first=first))

    def _read_newest(self) -> None:
        self.newest = self._repository.summaries(MAX_LISTED)
        self._on_loop(self._abandon_empty)

    def _on_loop(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the monitor shuts down
            self._loop.call_soon_threadsafe(call)

    # Called on the event loop -----------------------------------------------------------------------------------------

    def _settle(self, results: Mapping[str, LeaseResult], jobs: Mapping[str, Job]) -> None:
        for job_id, result in results.items():
            if result.acquired and job_id not in self._adopted:
                self._adopted[job_id] = self._loop.time()
                if (job := jobs.get(job_id)) is not None:
                    log.info("job %s: lease acquired; this monitor watches the job from now on", job_id)
                    self._registry.adopt(job)
            for pending in self._pending.get(job_id, ()):
                if not pending.done():
                    pending.set_result(result)

    def _drop(self, job_id: str) -> None:
        self._adopted.pop(job_id, None)
        self._registry.lose(job_id)

    def _hand_over(self, job_id: str, by: str, *, first: bool) -> None:
        if job_id not in self._adopted:
            return
        contact = self._loop.time() - self._adopted[job_id]
        appeared = job_id in self._registry.jobs
        if not (first and appeared) and contact < self.leases.duration:
            return  # the report for which it was acquired was refused, and may not have come again yet
        if not appeared:
            self._abandon(job_id)
            return
        released = partial(self.leases.release, job_id, by if first else "")
        if self._registry.hand_over(job_id, released, first=contact if first else None):
            self._adopted.pop(job_id, None)
            log.info("job %s is handed over to monitor %s, to which its ranks and launchers report", job_id, by)

    def _abandon_empty(self) -> None:
        """Let go of jobs that have not appeared: whoever names a job need not ever report on it."""
        limit = max(ABANDON_AFTER, self.leases.duration)
        for job_id in self._adopted.keys() - self._registry.jobs.keys():
            if self._loop.time() - self._adopted[job_id] >= limit:
                self._abandon(job_id)

    def _abandon(self, job_id: str) -> None:
        del self._adopted[job_id]
        self.leases.abandon(job_id)


def _summary_json(job: JobSummary) -> responses.JobElsewhere:
    """A job of another monitor as ``GET /jobs`` shows it; fields known to its own monitor only are null."""
    return {
        "id": job.id,
        "name": job.name,
        "state": JobState(job.state or JobState.STARTING),
        "reason": "",
        "world_size": job.world_size,
        "ranks_reporting": None,
        "attempt": job.attempt,
        "started_at": job.started_at,
        "goodput": None,
        "monitor": job.holder,
    }
