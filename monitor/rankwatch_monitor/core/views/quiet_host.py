"""Hosts of which nothing is received while the ranks of the others wait: they may be down, which is not certain yet.

A limit of a section is passed sooner than silence is certain, so the ranks that wait are found first. Such a host is
then the likely cause, from :data:`QUIET_AFTER` on until its ranks are silent by the policy, which names them. No action
follows from here: only the detector's verdicts lead to one. Shapes: R ranks.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from rankwatch.contract.enums import CulpritClass
from rankwatch.contract.intervals import LAUNCHER_HEARTBEAT_SECONDS
from rankwatch_monitor.core import liveness
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.ranks import SILENT_INTERVALS, live_ranks, report_intervals, silence_limit
from rankwatch_monitor.core.views.job_verdict import clock

QUIET_AFTER: Final = 2.0 * LAUNCHER_HEARTBEAT_SECONDS
"""Seconds without a message of a host, while others arrive."""


class QuietHost(NamedTuple):
    """Hosts that sent nothing lately; most often one."""

    hosts: tuple[str, ...]
    ranks: tuple[int, ...]
    since: float
    """Unix seconds of the last message of any of their ranks or launchers."""
    limit: float | None
    """Seconds of silence after which an incident names them; None: silence has no limit."""

    @property
    def headline(self) -> str:
        """In one line, without an age that grows."""
        first, more = self.hosts[0], len(self.hosts) - 1
        subject = f"Node {first}" if not more else f"Node {first} and {more} more"
        limit = "" if self.limit is None else f" (limit {self.limit:g} s)"
        return f"{subject} not heard since {clock(self.since)} UTC{limit}"

    def to_json(self) -> dict[str, Any]:
        """For the API."""
        return {**self._asdict(), "hosts": list(self.hosts), "ranks": list(self.ranks)}


def quiet_host(job: Job, now: float) -> QuietHost | None:
    """The hosts that are quiet while an incident is open that they may have caused; None: there are none.

    Args:
        job: the job.
        now: unix seconds.
    """
    incident = job.open_incident
    if incident is None or not _may_explain(job, incident) or liveness.lost(job, now):
        return None
    columns = job.columns
    heard_R = np.fmax(columns.last_heard_R, job.silence_since)
    live_R = live_ranks(columns)
    # Compared with the newest message of the job: a monitor that receives nothing at all has no quiet host.
    threshold_R = np.fmax(QUIET_AFTER, SILENT_INTERVALS * report_intervals(columns))
    quiet_R = live_R & (min(now, job.last_heard) - heard_R > threshold_R)
    if not quiet_R.any() or quiet_R[live_R].all():
        return None
    loud = {columns.hosts[rank] for rank in np.flatnonzero(live_R & ~quiet_R)}
    loud |= {n.registration.host for n in job.nodes.values() if job.last_heard - n.seen <= QUIET_AFTER}
    ranks = [
        rank for rank in np.flatnonzero(quiet_R).tolist() if columns.hosts[rank] and columns.hosts[rank] not in loud
    ]
    hosts = tuple(dict.fromkeys(columns.hosts[rank] for rank in ranks))
    if not hosts or not {culprit.host for culprit in incident.culprits} <= set(hosts):
        return None
    silence = job.policy.silence_timeout
    limit = None if silence is None else float(silence_limit(columns, silence)[ranks].max())
    seen = [node.seen for node in job.nodes.values() if node.registration.host in hosts]
    since = max([*seen, float(heard_R[ranks].max())])
    return QuietHost(hosts, tuple(ranks), since, limit)


def _may_explain(job: Job, incident: Incident) -> bool:
    """Whether nothing was done about the incident yet, and no silence or loss is named that explains it."""
    named = any(c.kind in (CulpritClass.HOST_SILENT, CulpritClass.DEAD) for c in incident.culprits)
    return incident.undecided and not incident.elective and not named and incident.attempt == job.attempt
