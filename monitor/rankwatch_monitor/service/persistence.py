"""What of a job is stored, and when: what matters at once, what runs quietly every few seconds.

Everything here is called on the loop and returns at once; the repository's own thread waits for the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from rankwatch.contract.enums import JobState
from rankwatch.contract.messages import Directive, Evidence
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core import merge_stored
from rankwatch_monitor.core.incident.incident import Incident, find_incident
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.store import codec, performance_codec, schema
from rankwatch_monitor.store.repository import Repository

log = logging.getLogger("rankwatch")

SAVE_INTERVAL: Final = 5.0
"""Seconds between two saves of a job that runs quietly; what matters is saved at once."""
SAVE_PERFORMANCE_INTERVAL: Final = 60.0
"""The same for its performance, which is larger; a straggler that was found is saved after the interval above."""
TIDY_INTERVAL: Final = 3600.0
"""Seconds between two looks for what is too old to keep."""


FEW_NODES: Final = 64
"""Launchers whose every word is followed by a save. Thousands of them may speak within a second."""
CROWD_INTERVAL: Final = 1.0
"""Seconds between two saves of a job that has more."""


@dataclass(slots=True)
class _Kept:
    """What was last stored of a job."""

    saved_at: float = 0.0
    due: bool = False
    """Something was said since then."""
    nodes: int = 0
    """The version of its launchers."""
    nodes_saved_at: float = 0.0
    judged: float | None = None
    """When the last window was judged that was stored."""
    performance_saved_at: float = 0.0
    slowed: bool = False
    """A straggler was found or has ended since then."""


class Keeping:
    """Stores jobs in a repository; without one nothing is kept."""

    def __init__(self, repository: Repository | None) -> None:
        self.repository = repository
        self.retention: float | None = None
        """Seconds for which what is stored of a silent job is kept; None: for ever."""
        self._tidied_at = 0.0
        self._kept: dict[str, _Kept] = {}

    def forget(self, job_id: str) -> None:
        """Let go what is known of a job; its rows stay."""
        self._kept.pop(job_id, None)

    def begun(self, job: Job, now: float) -> None:
        """A job is new, as far as is known."""
        if self.repository is not None and self.repository.late:
            job.last_directive = int(now)  # above every number that may be stored of it: launchers skip lower ones

    def came_late(self, jobs: Mapping[str, Job], usual: Policy, now: float) -> list[Job]:
        """Once a database that came later than this monitor was read: give jobs their past; return all that have one.

        ``usual`` is the policy with which new jobs begin.
        """
        if self.repository is None or (stored := self.repository.came_late()) is None:
            return []
        for past in stored:
            if (job := jobs.get(past.id)) is not None:
                for closed in merge_stored.join(job, past, usual):
                    self.incident(closed)
                self.save_all(job, now)
        log.info("the database is there: %d jobs that were stored before are known now", len(stored))
        self.repository.taken_up()
        return [jobs.get(past.id, past) for past in stored]

    def tidy(self, now: float, jobs: Collection[Job]) -> list[str]:
        """Once an hour have removed what is too old; return the jobs in memory that nobody has heard of for so long."""
        if self.repository is None or self.retention is None or now - self._tidied_at < TIDY_INTERVAL:
            return []
        self._tidied_at, limit = now, now - self.retention
        self.repository.retain(limit, [job.id for job in jobs if job.last_heard >= limit])
        return [job.id for job in jobs if job.last_heard < limit]

    def slowed(self, job: Job) -> None:
        """A straggler was found or has ended: that is saved soon."""
        self._of(job).slowed = True

    def look(self, job: Job, now: float) -> None:
        """Store what is due of a job that runs quietly."""
        kept = self._of(job)
        if kept.due or (now - kept.saved_at > SAVE_INTERVAL and job.last_heard > kept.saved_at):
            self.save(job, now)
        judged = job.performance.judged_at
        if judged is None or judged == kept.judged:
            return
        if now - kept.performance_saved_at >= (SAVE_INTERVAL if kept.slowed else SAVE_PERFORMANCE_INTERVAL):
            self._save_performance(job, now)

    def save(self, job: Job, now: float) -> None:
        """Store the job as it is now, or within a second where it has many launchers; those a little later still."""
        kept, few = self._of(job), len(job.nodes) <= FEW_NODES
        kept.due = not few and now - kept.saved_at < CROWD_INTERVAL
        if kept.due:
            return
        if few or now - kept.nodes_saved_at > SAVE_INTERVAL:
            self._save_nodes(job, now)
        self._save(job, now)

    def _save(self, job: Job, now: float, then: Callable[[], None] | None = None) -> None:
        kept = self._of(job)
        kept.saved_at, kept.due = now, False
        if self.repository is not None:
            self.repository.save(schema.jobs, codec.job_row(job, nodes=False), then=then)

    def _save_nodes(self, job: Job, now: float) -> None:
        kept = self._of(job)
        if kept.nodes != job.nodes_version and self.repository is not None:
            kept.nodes, kept.nodes_saved_at, body = job.nodes_version, now, codec.nodes_of(job)
            self.repository.save(schema.nodes, {"job_id": job.id}, late=lambda: {"body": body()})

    def save_all(self, job: Job, now: float, then: Callable[[], None] | None = None) -> None:
        """Store the job with its performance; ``then`` is called, on any thread, once both were stored."""
        judged = job.performance.judged_at
        if judged is not None and judged != self._of(job).judged:
            self._save_performance(job, now)
        self._save_nodes(job, now)
        self._save(job, now, then)

    async def stored(self, job: Job, now: float, longest: float = 5.0) -> None:
        """Store the job and wait for it: what a person is told was taken outlives a crash.

        Waits ``longest`` seconds at most, and not for a database that refuses: neither holds up an order.
        """
        if self.repository is None:
            return
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def stored() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed: the monitor is shutting down
                loop.call_soon_threadsafe(done.set)

        self.save_all(job, now, stored)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), longest)

    def turned(self, job: Job, state: JobState, reason: str, now: float) -> None:
        """Store that a job is in another state from now on, and the job."""
        if self.repository is not None:
            row = {"job_id": job.id, "at": now, "state": str(state), "reason": reason}
            self.repository.save(schema.transitions, row)
        self.save(job, now)

    def incident(self, incident: Incident) -> None:
        """Store an incident as it is now."""
        if self.repository is not None:
            self.repository.save(schema.incidents, codec.incident_row(incident))

    def evidence(self, job: Job, evidence: Evidence) -> None:
        """Store the incident that evidence came late for: what is open is stored as it moves along."""
        if (incident := find_incident(job.incidents, evidence)) is not None and not incident.open:
            self.incident(incident)

    def directive(self, job: Job, directive: Directive, now: float, then: Callable[[], None]) -> None:
        """Store a directive; ``then`` is called, on any thread, once that was done."""
        if self.repository is None:
            then()
            return
        self.save(job, now)  # before it, so that whoever takes the job up finds why it was issued
        self.repository.save(schema.directives, codec.directive_row(job.id, directive), then=then)

    def _save_performance(self, job: Job, now: float) -> None:
        kept = self._of(job)
        kept.judged, kept.performance_saved_at, kept.slowed = job.performance.judged_at, now, False
        if self.repository is not None:
            body = performance_codec.held(job.performance)
            self.repository.save(schema.performances, {"job_id": job.id}, late=lambda: {"body": body()})

    def _of(self, job: Job) -> _Kept:
        return self._kept.setdefault(job.id, _Kept())
