"""Decides when a job is published: soon after a change, else once per report interval.

:meth:`Publishing.observe` is called after every evaluation of a job; nearly all calls cost one comparison. Publishers
are called on the event loop, so they must return at once and work on a thread of their own. A publisher's failure is
counted, logged once, and affects neither the evaluation nor other publishers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.liveness import TERMINAL_STATES
from rankwatch_monitor.core.views import verdict
from rankwatch_monitor.core.views.host_activity import HostActivity
from rankwatch_monitor.core.views.job_verdict import finding
from rankwatch_monitor.publish.prometheus.names import Sample
from rankwatch_monitor.publish.snapshot import Snapshot, snapshot

log = logging.getLogger("rankwatch")

SOONEST: Final = 10.0
"""Minimum seconds between two snapshots of one job."""
OBSERVE_INTERVAL: Final = 1.0
"""Minimum seconds between two checks for changes."""
CLOSING: Final = 10.0
"""Seconds that all publishers together get to finish when the monitor ends."""


class Publisher(Protocol):
    """Takes snapshots of jobs."""

    def publish(self, snapshot: Snapshot) -> None:
        """Take a snapshot; returns at once. A later one of the same job replaces an earlier one."""

    def close(self, timeout: float) -> None:
        """Deliver what was taken; ends within ``timeout`` seconds."""


class Watcher(Protocol):
    """Looks at jobs itself, since it must not miss any change and snapshots come too late."""

    def observe(self, job: Job, now: float) -> None:
        """Look at a job at ``now`` (unix seconds), after each evaluation; returns at once and never raises."""

    def adopt(self, job: Job, now: float) -> None:
        """Take over a job loaded at ``now`` (unix seconds): another monitor has reported its state so far."""

    def close(self, timeout: float) -> None:
        """Deliver what was seen; ends within ``timeout`` seconds."""


@runtime_checkable
class Announcing(Protocol):
    """A watcher that announces each change of a job once, whichever monitor has the job."""

    def merge(self, job: Job, past: Job, now: float) -> None:
        """Note that ``past``, as it was stored, is merged into ``job`` next: what it holds was announced."""

    def release(self, job_id: str) -> None:
        """Leave a job's undelivered announcements to the monitor that has the job from now on. Thread-safe."""


@runtime_checkable
class Counting(Protocol):
    """A publisher or watcher with metrics of its own on ``/metrics``."""

    def samples(self) -> list[Sample]:
        """Its current values; returns at once."""


@dataclass(slots=True)
class _Last:
    key: Hashable
    at: float
    looked_at: float


class Publishing:
    """All publishers of a monitor, and when each job was last published."""

    def __init__(
        self,
        publishers: Sequence[Publisher],
        watchers: Sequence[Watcher] = (),
        activity: HostActivity | None = None,
    ) -> None:
        """``activity``: from which hosts all jobs of the monitor are heard."""
        self.publishers, self.watchers = tuple(publishers), tuple(watchers)
        self._activity = activity
        self.errors = 0
        self._last: WeakKeyDictionary[Job, _Last] = WeakKeyDictionary()

    def failures(self) -> dict[str, int]:
        """Failures by publisher; ``handover`` counts snapshots that raised before a publisher took them."""
        all_of_them = (*self.publishers, *self.watchers)
        failing = [each for each in all_of_them if hasattr(each, "errors")]  # others deliver nothing
        named = {type(p).__name__.removesuffix("Publisher").lower(): int(p.errors) for p in failing}
        return named | {"handover": self.errors} if named else {}

    def samples(self) -> list[Sample]:
        """Values for ``/metrics`` of publishers with metrics of their own."""
        all_of_them = (*self.publishers, *self.watchers)
        return [sample for each in all_of_them if isinstance(each, Counting) for sample in each.samples()]

    def observe(self, job: Job, now: float) -> None:
        """Publish a job if that is due at ``now`` (unix seconds)."""
        for watcher in self.watchers:
            watcher.observe(job, now)
        if not self.publishers:
            return
        last = self._last.get(job)
        if last is not None:
            if now - last.at < SOONEST or now - last.looked_at < OBSERVE_INTERVAL:
                return
            last.looked_at = now
        key = _key(job, now)
        if last is None and key[0] in TERMINAL_STATES:
            self._last[job] = _Last(key, now, now)  # it had ended before this monitor started
        elif (
            last is None
            or key != last.key
            or (now - last.at >= job.policy.report_interval and key[0] not in TERMINAL_STATES)
        ):
            self._publish(job, now, key)

    def adopt(self, job: Job, now: float) -> None:
        """Take over a job that was loaded from the store at ``now`` (unix seconds)."""
        for watcher in self.watchers:
            watcher.adopt(job, now)

    def merge(self, job: Job, past: Job, now: float) -> None:
        """Note that ``past``, as it was stored, is merged into ``job`` next."""
        for watcher in self.watchers:
            if isinstance(watcher, Announcing):
                watcher.merge(job, past, now)

    def release(self, job_id: str) -> None:
        """Leave a job to the monitor that has it from now on. Thread-safe."""
        for watcher in self.watchers:
            if isinstance(watcher, Announcing):
                watcher.release(job_id)

    def close(self, jobs: Iterable[Job], now: float) -> None:
        """Publish the last state of every published job, and close all publishers."""
        for job in jobs:
            for watcher in self.watchers:
                watcher.observe(job, now)
            if (last := self._last.get(job)) is not None and (
                (key := _key(job, now)) != last.key or key[0] not in TERMINAL_STATES
            ):
                self._publish(job, now, key)
        deadline = time.monotonic() + CLOSING
        closing: list[Publisher | Watcher] = [*self.watchers, *self.publishers]
        for each in closing:
            each.close(max(0.0, deadline - time.monotonic()))

    def _publish(self, job: Job, now: float, key: Hashable) -> None:
        self._last[job] = _Last(key, now, now)
        try:
            taken = snapshot(job, now, self._activity)
        except Exception:  # noqa: BLE001 - the boundary to publishers; logged by _failed
            self._failed(f"job {job.id} cannot be published")
            return
        for publisher in self.publishers:
            try:
                publisher.publish(taken)
            except Exception:  # noqa: BLE001 - likewise
                self._failed(f"{type(publisher).__name__} failed for job {job.id}")

    def _failed(self, what: str) -> None:
        self.errors += 1
        if self.errors == 1:
            log.exception("%s; its evaluation continues", what)


def _key(job: Job, now: float) -> tuple[Hashable, ...]:
    """A job is published again when this changes."""
    performance = job.performance
    incident = job.incidents[-1] if job.incidents else None
    return (
        verdict.job_state(job, now)[0],
        job.attempt,
        job.launches,
        job.last_incident,
        incident and (incident.id, incident.phase, incident.confirmed, incident.held, incident.outcome),
        performance.scores and performance.scores.at,
        tuple(straggler.id for straggler in performance.stragglers if straggler.open),
        finding(job, now).verdict,
    )
