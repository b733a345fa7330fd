"""Decides which rows of a job are stored and when: important changes immediately, routine ones every few seconds.

Everything here is called on the event loop and returns immediately; the repository's thread waits for the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from rankwatch.contract.enums import JobState
from rankwatch.contract.messages import Directive, Evidence
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core import merge_stored
from rankwatch_monitor.core.incident_record import Incident, find_incident
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.store import codec, performance_codec, schema
from rankwatch_monitor.store.repository import Repository

log = logging.getLogger("rankwatch")

SAVE_INTERVAL: Final = 5.0
"""Seconds between two routine saves of a job."""
SAVE_PERFORMANCE_INTERVAL: Final = 60.0
"""The same for its performance and trends, which are larger; :data:`SAVE_INTERVAL` after a change of stragglers."""
EXPIRE_INTERVAL: Final = 3600.0
"""Seconds between two removals of expired jobs."""
LATE_EVIDENCE_QUIET: Final = 2.0
"""Seconds without further evidence after which a closed incident is saved with what has arrived of it."""
LATE_EVIDENCE_INTERVAL: Final = 15.0
"""Seconds between two saves while evidence keeps arriving: each encodes what thousands of launchers have sent."""
FEW_NODES: Final = 64
"""Up to this many launchers a job is saved after every launcher message; thousands may report within a second."""
CROWD_INTERVAL: Final = 1.0
"""Seconds between two saves after launcher messages of a job with more."""


@dataclass(slots=True)
class _Saved:
    """What was last stored of a job."""

    at: float = 0.0
    due: bool = False
    """The job has changed since then."""
    nodes_version: int = 0
    nodes_at: float = 0.0
    launchers: dict[str, codec.StoredLauncher | None] = field(default_factory=dict)
    """Those that have a row, by name; None: not known with which content."""
    judged: float | None = None
    """When the last stored window was evaluated."""
    performance_at: float = 0.0
    trends_at: float = 0.0
    straggler_changed: bool = False
    late_evidence: dict[str, Incident] = field(default_factory=dict)
    """Closed incidents with evidence that is not stored yet, by id."""
    late_since: float = 0.0
    """When the first of it arrived, and the last."""
    late_at: float = 0.0


class Persistence:
    """Stores jobs in a repository; without one nothing is stored."""

    def __init__(self, repository: Repository | None) -> None:
        self.repository = repository
        self.retention: float | None = None
        """Seconds for which the rows of an inactive job are kept; None: for ever."""
        self._expired_at = 0.0
        self._saved: dict[str, _Saved] = {}
        self._recalling: set[str] = set()
        """Jobs whose stored past is being read; their rows are not written before it was merged."""

    def forget(self, job_id: str) -> None:
        """Remove the bookkeeping of a dropped job; its rows stay."""
        self._saved.pop(job_id, None)

    def on_new_job(self, job: Job, now: float) -> None:
        """Number the directives of a new job above all that may be stored of it in a database not yet read."""
        if self.repository is None:
            return
        if self.repository.recall(job.id):
            self._recalling.add(job.id)
        if self.repository.load_pending or job.id in self._recalling:
            job.last_directive = int(now)  # launchers skip lower numbers

    def on_loaded(self, job: Job) -> None:
        """Note which launchers of a job have rows, before any of them is forgotten."""
        stored = self._of(job).launchers
        for name in job.nodes:
            stored.setdefault(name, None)

    def on_evicted(self, job: Job, now: float, *, save: bool) -> None:
        """Note that a job leaves memory, and save it; if it reports again it is merged with what is stored."""
        if self.repository is not None and job.id not in self._recalling:
            if save:
                self.save_all(job, now)
            self.repository.evicted(job.id)

    def merge_pending(
        self, jobs: Mapping[str, Job], default_policy: Policy, now: float, before: Callable[[Job, Job], None]
    ) -> list[Job]:
        """Merge jobs in memory with their stored past once it was read: it was unreachable, or they had been evicted.

        Args:
            jobs: those in memory, by ID.
            default_policy: of new jobs.
            before: called with a job and its past before they are merged.

        Returns:
            The jobs with a stored past.
        """
        if self.repository is None:
            return []
        merged = self._merge_recalled(jobs, default_policy, now, before)
        if (stored := self.repository.take_pending()) is None:
            return merged
        for past in stored:
            if (job := jobs.get(past.id)) is not None:
                self._merge(job, past, default_policy, now, before)
        log.info("the database is available: %d stored jobs were loaded", len(stored))
        self.repository.confirm_loaded()
        return merged + [jobs.get(past.id, past) for past in stored]

    def _merge_recalled(
        self, jobs: Mapping[str, Job], default_policy: Policy, now: float, before: Callable[[Job, Job], None]
    ) -> list[Job]:
        """Merge jobs that were not in memory when they reported again with their stored past."""
        assert self.repository is not None
        merged = []
        for job_id, past in self.repository.take_recalled():
            self._recalling.discard(job_id)
            if (job := jobs.get(job_id)) is None:
                self.repository.evicted(job_id)  # again, before its past was read: that is still what is stored
            elif past is not None:
                self._merge(job, past, default_policy, now, before)
                merged.append(job)
        return merged

    def _merge(
        self, job: Job, past: Job, default_policy: Policy, now: float, before: Callable[[Job, Job], None]
    ) -> None:
        try:
            before(job, past)
            for closed in merge_stored.join(job, past, default_policy):
                self.save_incident(closed)
            self._of(job).launchers.update(dict.fromkeys(past.nodes))
            self.save_all(job, now)
        except Exception:
            log.exception("job %s could not be merged with its stored past; it continues without it", past.id)

    def expire(self, now: float, jobs: Collection[Job]) -> list[str]:
        """Once an hour start the removal of expired rows; returns the expired jobs that are still in memory."""
        if self.repository is None or self.retention is None or now - self._expired_at < EXPIRE_INTERVAL:
            return []
        self._expired_at, limit = now, now - self.retention
        self.repository.writer.retain(limit, [job.id for job in jobs if job.last_heard >= limit])
        return [job.id for job in jobs if job.last_heard < limit]

    def straggler_changed(self, job: Job) -> None:
        """Save the performance soon: a straggler was found or has ended."""
        self._of(job).straggler_changed = True

    def save_if_due(self, job: Job, now: float) -> None:
        """Save the parts of a job whose interval has passed."""
        saved = self._of(job)
        if saved.late_evidence and (
            now - saved.late_at >= LATE_EVIDENCE_QUIET or now - saved.late_since >= LATE_EVIDENCE_INTERVAL
        ):
            self._save_late(job)
        if saved.due or (now - saved.at > SAVE_INTERVAL and job.last_heard > saved.at):
            self.save(job, now)
        if job.trends.unsaved and now - saved.trends_at >= SAVE_PERFORMANCE_INTERVAL:
            self._save_trends(job, now)
        judged = job.performance.judged_at
        if judged is None or judged == saved.judged:
            return
        if now - saved.performance_at >= (SAVE_INTERVAL if saved.straggler_changed else SAVE_PERFORMANCE_INTERVAL):
            self._save_performance(job, now)

    def save(self, job: Job, now: float) -> None:
        """Save the job now; a job with many launchers within a second, and its launchers within a few."""
        saved, few = self._of(job), len(job.nodes) <= FEW_NODES
        saved.due = not few and now - saved.at < CROWD_INTERVAL
        if saved.due:
            return
        if few or now - saved.nodes_at > SAVE_INTERVAL:
            self._save_nodes(job, now)
        self._save_job(job, now)

    def save_all(self, job: Job, now: float, on_commit: Callable[[], None] | None = None) -> None:
        """Save job, launchers and performance; ``on_commit`` is called, on any thread, once all are stored."""
        judged = job.performance.judged_at
        if judged is not None and judged != self._of(job).judged:
            self._save_performance(job, now)
        self._save_trends(job, now)
        self._save_late(job)
        self._save_nodes(job, now)
        self._save_job(job, now, on_commit)

    async def save_and_wait(self, job: Job, now: float, timeout: float = 5.0) -> None:
        """Save the job and wait for the commit, so that an operator's acknowledged change survives a crash.

        Returns after ``timeout`` seconds at most, and at once when the database refuses: neither delays a directive.
        """
        if self.repository is None:
            return
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def committed() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the monitor shuts down
                loop.call_soon_threadsafe(done.set)

        self.save_all(job, now, committed)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), timeout)

    def save_transition(self, job: Job, state: JobState, reason: str, now: float) -> None:
        """Save a state transition, and the job."""
        if self.repository is not None:
            row = {"job_id": job.id, "at": now, "state": str(state), "reason": reason}
            self.repository.save(schema.transitions, row)
        self.save(job, now)

    def save_incident(self, incident: Incident) -> None:
        """Save an incident; its stacks are encoded on the writer's thread."""
        if (saved := self._saved.get(incident.job_id)) is not None:
            saved.late_evidence.pop(incident.id, None)
        if self.repository is not None:
            columns, body = codec.incident_columns(incident), codec.incident_body(incident)
            self.repository.save(schema.incidents, columns, deferred=lambda: {"body": body()})

    def save_late_evidence(self, job: Job, evidence: Evidence, now: float) -> None:
        """Save soon a closed incident for which evidence arrived; an open one is saved with its next change.

        Not at once: thousands of launchers send theirs within seconds, and each save encodes what all have sent.
        """
        if (incident := find_incident(job.incidents, evidence)) is not None and not incident.open:
            saved = self._of(job)
            if not saved.late_evidence:
                saved.late_since = now
            saved.late_evidence[incident.id], saved.late_at = incident, now

    def _save_late(self, job: Job) -> None:
        for incident in list(self._of(job).late_evidence.values()):
            self.save_incident(incident)

    def save_directive(self, job: Job, directive: Directive, now: float, on_commit: Callable[[], None]) -> None:
        """Save a directive; ``on_commit`` is called, on any thread, once it is stored."""
        if self.repository is None:
            on_commit()
            return
        self.save(job, now)  # first, so that a monitor that takes over the job finds why the directive was issued
        self.repository.save(schema.directives, codec.directive_row(job.id, directive), on_commit)

    def _save_job(self, job: Job, now: float, on_commit: Callable[[], None] | None = None) -> None:
        saved = self._of(job)
        saved.at, saved.due = now, False
        if job.id in self._recalling:
            saved.due = True
            if on_commit is not None:
                on_commit()
        elif self.repository is not None:
            self.repository.save(schema.jobs, codec.job_row(job, nodes=False), on_commit)

    def _save_nodes(self, job: Job, now: float) -> None:
        saved = self._of(job)
        if self.repository is None or job.id in self._recalling:
            return
        if saved.nodes_version == job.nodes_version:
            return
        stored, saved.nodes_version, saved.nodes_at = saved.launchers, job.nodes_version, now
        saved.launchers = {name: codec.copy_of_launcher(node) for name, node in job.nodes.items()}
        for name, copied in saved.launchers.items():
            if copied is not None and stored.get(name) != copied:
                body = partial(lambda stored: {"body": codec.launcher_body(stored)}, copied)
                self.repository.save(schema.launchers, {"job_id": job.id, "node": name}, deferred=body)
        for name in stored.keys() - saved.launchers.keys():
            self.repository.remove(schema.launchers, {"job_id": job.id, "node": name})

    def _save_performance(self, job: Job, now: float) -> None:
        if job.id in self._recalling:
            return
        saved = self._of(job)
        saved.judged, saved.performance_at, saved.straggler_changed = job.performance.judged_at, now, False
        if self.repository is not None:
            body = performance_codec.snapshot(job.performance)
            self.repository.save(schema.performances, {"job_id": job.id}, deferred=lambda: {"body": body()})

    def _save_trends(self, job: Job, now: float) -> None:
        """Save the hours that have changed; they are encoded on the writer's thread."""
        if job.id in self._recalling:
            return
        self._of(job).trends_at = now
        if self.repository is not None:
            for slot, body in job.trends.take_unsaved():
                self.repository.save(
                    schema.trends,
                    {"job_id": job.id, "slot": slot},
                    deferred=lambda body=body: {"body": body()},  # type: ignore[misc]
                )

    def _of(self, job: Job) -> _Saved:
        return self._saved.setdefault(job.id, _Saved())
