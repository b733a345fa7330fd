"""When publishers hear of a job: soon after something changed, else once a report interval.

The loop asks after every judgement, and all but one of its questions in a second cost one comparison. A publisher is
told on the loop's thread, so it must return at once and do its work on a thread of its own. One that fails is counted,
warned of once, and harms neither the judgement nor the other publishers.
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
from rankwatch_monitor.core.views import job_view
from rankwatch_monitor.core.views.job_verdict import finding
from rankwatch_monitor.publish.prometheus.names import Sample
from rankwatch_monitor.publish.snapshot import Snapshot, snapshot

log = logging.getLogger("rankwatch")

SOONEST: Final = 10.0
"""Seconds between two snapshots of one job, however much happens."""
LOOK_INTERVAL: Final = 1.0
"""Seconds between two looks at what may have changed."""
CLOSING: Final = 10.0
"""Seconds that all publishers together may take to finish when the monitor ends."""


class Publisher(Protocol):
    """Something outside that wants to know how jobs fare."""

    def publish(self, snapshot: Snapshot) -> None:
        """Take a snapshot; returns at once. A later one of the same job says all that an earlier one said."""

    def close(self, timeout: float) -> None:
        """Deliver what was taken, and end within ``timeout`` seconds."""


class Watcher(Protocol):
    """Something that looks at jobs itself, since no change may escape it and no snapshot is soon enough."""

    def look(self, job: Job, now: float) -> None:
        """Look at a job at ``now`` (unix seconds), after each judgement; returns at once and never raises."""

    def adopt(self, job: Job, now: float) -> None:
        """Take a job that was loaded at ``now`` (unix seconds): all that is so by then was told by another monitor."""

    def close(self, timeout: float) -> None:
        """Deliver what was seen, and end within ``timeout`` seconds."""


@runtime_checkable
class Counting(Protocol):
    """A publisher or watcher that has figures of its own on ``/metrics``."""

    def samples(self) -> list[Sample]:
        """Its figures now; returns at once."""


@dataclass(slots=True)
class _Last:
    key: Hashable
    at: float
    looked_at: float


class Publishing:
    """All publishers of a monitor, and when each job was last told to them."""

    def __init__(self, publishers: Sequence[Publisher], watchers: Sequence[Watcher] = ()) -> None:
        self.publishers, self.watchers = tuple(publishers), tuple(watchers)
        self.errors = 0
        self._last: WeakKeyDictionary[Job, _Last] = WeakKeyDictionary()

    def failures(self) -> dict[str, int]:
        """What could not be published so far, by publisher; ``handover`` is what they did not even take."""
        all_of_them = (*self.publishers, *self.watchers)
        named = {type(p).__name__.removesuffix("Publisher").lower(): int(getattr(p, "errors", 0)) for p in all_of_them}
        return named | {"handover": self.errors}

    def samples(self) -> list[Sample]:
        """What ``/metrics`` says of those that count more than their failures."""
        all_of_them = (*self.publishers, *self.watchers)
        return [sample for each in all_of_them if isinstance(each, Counting) for sample in each.samples()]

    def look(self, job: Job, now: float) -> None:
        """Tell the publishers of this job if that is due at ``now`` (unix seconds)."""
        for watcher in self.watchers:
            watcher.look(job, now)
        if not self.publishers:
            return
        last = self._last.get(job)
        if last is not None:
            if now - last.at < SOONEST or now - last.looked_at < LOOK_INTERVAL:
                return
            last.looked_at = now
        key = _key(job, now)
        if last is None and key[0] in TERMINAL_STATES:
            self._last[job] = _Last(key, now, now)  # it was over before this monitor began
        elif (
            last is None
            or key != last.key
            or (now - last.at >= job.policy.report_interval and key[0] not in TERMINAL_STATES)
        ):
            self._tell(job, now, key)

    def adopt(self, job: Job, now: float) -> None:
        """Say that a job was loaded from the store at ``now`` (unix seconds): what happened to it before is no news."""
        for watcher in self.watchers:
            watcher.adopt(job, now)

    def close(self, jobs: Iterable[Job], now: float) -> None:
        """Tell the last of every job that was published, and end all publishers."""
        for job in jobs:
            for watcher in self.watchers:
                watcher.look(job, now)
            if (last := self._last.get(job)) is not None and (
                (key := _key(job, now)) != last.key or key[0] not in TERMINAL_STATES
            ):
                self._tell(job, now, key)
        deadline = time.monotonic() + CLOSING
        closing: list[Publisher | Watcher] = [*self.watchers, *self.publishers]
        for each in closing:
            each.close(max(0.0, deadline - time.monotonic()))

    def _tell(self, job: Job, now: float, key: Hashable) -> None:
        self._last[job] = _Last(key, now, now)
        try:
            made = snapshot(job, now)
        except Exception:  # noqa: BLE001 - the publishers' boundary; _failed() says it
            self._failed(f"job {job.id} cannot be published")
            return
        for publisher in self.publishers:
            try:
                publisher.publish(made)
            except Exception:  # noqa: BLE001 - the same
                self._failed(f"{type(publisher).__name__} refuses job {job.id}")

    def _failed(self, what: str) -> None:
        self.errors += 1
        if self.errors == 1:
            log.exception("%s; its judgement goes on", what)


def _key(job: Job, now: float) -> tuple[Hashable, ...]:
    """What makes a job worth telling of anew when it changes."""
    performance = job.performance
    incident = job.incidents[-1] if job.incidents else None
    return (
        job_view.job_state(job, now)[0],
        job.attempt,
        job.launches,
        job.last_incident,
        incident and (incident.id, incident.phase, incident.confirmed, incident.outcome),
        performance.scores and performance.scores.at,
        tuple(straggler.id for straggler in performance.stragglers if straggler.open),
        finding(job, now).verdict,
    )
