"""What the rules of the playbook look at: a job at one moment, with what follows from it and from all other jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rankwatch.contract.enums import RESTARTS, CulpritClass, JobState
from rankwatch_monitor.core.goodput.intervals import Bucket
from rankwatch_monitor.core.hang.verdict import Culprit
from rankwatch_monitor.core.incident import exclusion
from rankwatch_monitor.core.incident_record import Incident, Phase
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views.host_activity import HostActivity, history_of
from rankwatch_monitor.core.views.host_history import HostHistory
from rankwatch_monitor.core.views.quiet_host import QuietHost, quiet_host

PATIENCE: Final = 120.0
"""Seconds after a restart in which a rank reports, unless the first attempt took longer to start."""
START_UPS: Final = 3
"""As many times the start-up of the first attempt."""
BROKEN_NODE: Final = (CulpritClass.DEVICE_OR_NETWORK, CulpritClass.HOST_SILENT)
"""What is the fault of the node, not of the rank's program."""


@dataclass(frozen=True, slots=True)
class Situation:
    """A job at one moment."""

    job: Job
    state: JobState
    now: float
    """Unix seconds."""
    activity: HostActivity | None
    """Of all jobs; None: not known, and only this job's incidents count."""
    incident: Incident | None
    """The open one."""
    first: Culprit | None
    """The first of its culprits whose host is known."""
    quiet: QuietHost | None
    history: HostHistory | None
    """The incidents about that culprit's host, or about the quiet one."""
    leave_out: tuple[int, ...]
    """Ranks that name the one node which a restart can leave out; empty: there is none, or it cannot."""
    report_due: float | None
    """When a rank should have reported after a restart; None: one has, or the ranks are not restarted."""

    @property
    def current(self) -> Incident:
        """The open incident, where a rule asked for one."""
        assert self.incident is not None
        return self.incident

    @property
    def repeats(self) -> bool:
        """Whether incidents about that host repeat."""
        return self.history is not None and self.history.repeats

    @property
    def broken_hosts(self) -> list[str]:
        """Hosts of culprits for which the node is at fault; sorted."""
        culprits = () if self.incident is None else self.incident.culprits
        return sorted({each.host for each in culprits if each.kind in BROKEN_NODE and each.host})


def situation(job: Job, state: JobState, now: float, activity: HostActivity | None = None) -> Situation:
    """The situation of a job; the arguments are its fields."""
    incident = job.open_incident if job.ended is None and state is not JobState.LOST else None
    quiet = None if incident is None else quiet_host(job, now, activity)
    first = None if incident is None else next((each for each in incident.culprits if each.host), None)
    host = first.host if first is not None else quiet.hosts[0] if quiet is not None else ""
    history = history_of(job, host, now, activity) if host else None
    due = None if incident is None else first_report_due(job, incident)
    return Situation(job, state, now, activity, incident, first, quiet, history, _leave_out(job, incident, quiet), due)


def _leave_out(job: Job, incident: Incident | None, quiet: QuietHost | None) -> tuple[int, ...]:
    if quiet is not None:
        return quiet.ranks if quiet.excludable else ()
    if incident is None or not incident.culprits or len({culprit.host for culprit in incident.culprits}) > 1:
        return ()
    ranks = tuple(culprit.rank for culprit in incident.culprits)
    left = exclusion.permitted(job, ranks[0]) if incident.culprits[0].host else None
    return () if left is None or left.too_few else ranks


def first_report_due(job: Job, incident: Incident) -> float | None:
    """When a rank should have reported after a restart; None: one has, or the ranks are not restarted."""
    restarted = incident.timeline.restarted
    if incident.phase is not Phase.RECOVERING or incident.action not in RESTARTS or restarted is None:
        return None
    if incident.attempt != job.attempt and job.columns.reported_R.any():
        return None
    return restarted + max(PATIENCE, START_UPS * job.ledger.totals[Bucket.STARTUP])
