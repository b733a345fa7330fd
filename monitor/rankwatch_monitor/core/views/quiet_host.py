"""Hosts of which nothing is received while the ranks of the others wait: they may be down, which is not certain yet.

A limit of a section is passed sooner than silence is certain, so the ranks that wait are found first. Such a host is
then the likely cause, from :data:`.liveness.QUIET_AFTER` on until its ranks are silent by the policy, which names them.
No action follows from here: only the detector's verdicts lead to one. Shapes: R ranks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rankwatch.contract.enums import CulpritClass
from rankwatch_monitor.core import liveness
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.ranks import SILENT_INTERVALS, live_ranks, report_intervals, silence_limit
from rankwatch_monitor.core.views.host_commands import reach
from rankwatch_monitor.core.views.job_verdict import clock
from rankwatch_monitor.core.views.slow_action import can_exclude


class QuietHost(NamedTuple):
    """Hosts that sent nothing lately; most often one."""

    hosts: tuple[str, ...]
    ranks: tuple[int, ...]
    since: float
    """Unix seconds of the last message of any of their ranks or launchers."""
    limit: float | None
    """Seconds of silence after which an incident names them; None: silence has no limit."""
    launchers: int
    """Launchers of these hosts, which are silent too."""
    excludable: bool
    """Whether the policy permits to restart without them, and launchers can carry it out."""
    command: str
    """Shows whether the first of them is up."""

    @property
    def headline(self) -> str:
        """In one line, without an age that grows."""
        first, more = self.hosts[0], len(self.hosts) - 1
        subject, its = (f"Node {first} and {more} more have", "their") if more else (f"Node {first} has", "its")
        ranks = "rank" if len(self.ranks) == 1 else f"{len(self.ranks)} ranks"
        launchers = f" and {its} {'launcher' if self.launchers == 1 else 'launchers'}" if self.launchers else ""
        verb = "is" if len(self.ranks) == 1 and not self.launchers else "are"
        return f"{subject} not been heard since {clock(self.since)} UTC; {its} {ranks}{launchers} {verb} silent"

    def to_json(self) -> dict[str, Any]:
        """For the API."""
        return {**self._asdict(), "hosts": list(self.hosts), "ranks": list(self.ranks), "headline": self.headline}


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
    threshold_R = np.fmax(liveness.QUIET_AFTER, SILENT_INTERVALS * report_intervals(columns))
    quiet_R = live_R & (min(now, job.last_heard) - heard_R > threshold_R)
    if not quiet_R.any() or quiet_R[live_R].all():
        return None
    loud = {columns.hosts[rank] for rank in np.flatnonzero(live_R & ~quiet_R)}
    loud |= {n.registration.host for n in job.nodes.values() if not liveness.node_quiet(n, job.last_heard)}
    ranks = [
        rank for rank in np.flatnonzero(quiet_R).tolist() if columns.hosts[rank] and columns.hosts[rank] not in loud
    ]
    hosts = tuple(dict.fromkeys(columns.hosts[rank] for rank in ranks))
    if not hosts or not {culprit.host for culprit in incident.culprits} <= set(hosts):
        return None
    silence = job.policy.silence_timeout
    limit = None if silence is None else float(silence_limit(columns, silence)[ranks].max())
    silent = [node for node in job.nodes.values() if node.registration.host in hosts]
    since = max([*(node.seen for node in silent), float(heard_R[ranks].max())])
    slurm = any(node.registration.facts.get("scheduler") == "slurm" for node in job.nodes.values())
    return QuietHost(
        hosts,
        tuple(ranks),
        since,
        limit,
        launchers=len(silent),
        excludable=all(can_exclude(job, rank) for rank in {columns.hosts[rank]: rank for rank in ranks}.values()),
        command=reach(hosts[0], slurm=slurm),
    )


def _may_explain(job: Job, incident: Incident) -> bool:
    """Whether nothing was done about the incident yet, and no silence or loss is named that explains it."""
    named = any(c.kind in (CulpritClass.HOST_SILENT, CulpritClass.DEAD) for c in incident.culprits)
    return incident.undecided and not incident.elective and not named and incident.attempt == job.attempt
