"""Counts how often each job entered each state, so that a state that ends before the next scrape is still counted."""

from __future__ import annotations

from collections.abc import Hashable
from weakref import WeakKeyDictionary

from rankwatch.contract.enums import JobState
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views import verdict
from rankwatch_monitor.publish.prometheus import names as names
from rankwatch_monitor.publish.prometheus.names import Sample

OBSERVE_INTERVAL = 1.0
"""Seconds after which a state is derived again although neither the incident nor the end of the job changed."""


class StateEntries:
    """A watcher (:class:`~rankwatch_monitor.publish.publisher.Watcher`) with one counter per job and state."""

    def __init__(self) -> None:
        self._entries: WeakKeyDictionary[Job, _Entries] = WeakKeyDictionary()

    def observe(self, job: Job, now: float) -> None:
        """Count the state of a job at ``now`` (unix seconds) if it is a new one; most calls cost one comparison."""
        entries = self._entries.get(job)
        if entries is None:
            entries = self._entries[job] = _Entries(job.id)
        incident = job.open_incident
        key = (job.ended, incident and (incident.id, incident.phase, incident.confirmed, incident.action))
        if key == entries.key and now - entries.looked_at < OBSERVE_INTERVAL:
            return
        entries.key, entries.looked_at = key, now
        entries.enter(verdict.job_state(job, now)[0])

    def adopt(self, job: Job, now: float) -> None:
        """Take over a job loaded at ``now`` (unix seconds): its current state was entered before."""
        entries = self._entries[job] = _Entries(job.id)
        entries.state = verdict.job_state(job, now)[0]

    def close(self, timeout: float) -> None:
        """Nothing is delivered."""

    def samples(self) -> list[Sample]:
        """All counters, zeros included: ``increase()`` does not see a counter that begins at 1."""
        return [
            (names.JOB_STATE_ENTERED, entries.counts.get(state, 0), (entries.job_id, state))
            for entries in list(self._entries.values())
            for state in JobState
        ]


class _Entries:
    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.key: Hashable = None
        self.looked_at = 0.0
        self.state: JobState | None = None
        self.counts: dict[JobState, int] = {}

    def enter(self, state: JobState) -> None:
        if state is not self.state:
            self.state = state
            self.counts[state] = self.counts.get(state, 0) + 1
