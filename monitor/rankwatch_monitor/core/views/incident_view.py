"""An incident as API, stream and publishers show it: the record, and what is derived from it and from all jobs."""

from __future__ import annotations

from typing import Any, NamedTuple

from rankwatch_monitor.core.hang.proof import own_frame
from rankwatch_monitor.core.hang.verdict import Culprit
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views import downtime, headline, phases
from rankwatch_monitor.core.views.host_activity import HostActivity, history_of
from rankwatch_monitor.core.views.host_history import HostHistory
from rankwatch_monitor.core.views.incident_label import label
from rankwatch_monitor.core.views.node_gpus import fault_words
from rankwatch_monitor.core.views.quiet_host import quiet_host


class OfHost(NamedTuple):
    """What incidents of all jobs show of the host of an incident's first culprit, or of one that is quiet."""

    host: str
    text: str
    """``host-1 was named in 3 incidents of 2 jobs in 24 h, this one included.``; empty: not repeatedly."""
    suspect: str = ""
    """Of an incident that is over: ``host-0 is suspect: check GPU 5 of host-0 for errors.``, or the faults of another
    GPU of the host; empty: it is not."""

    def to_json(self) -> dict[str, Any]:
        """For the API."""
        return self._asdict()


class Place(NamedTuple):
    """Where the first culprit is, not where the others wait for it."""

    function: str
    file: str
    line: int
    """Of the innermost frame of its script; empty and 0: no stack of it was captured."""
    section: str | None
    """In which it passed its limit; None: outside of all, or the limit was another rank's."""


def place(incident: Incident) -> Place | None:
    """Where the incident is about; None: nothing is known of it."""
    named, found = incident.culprits, incident.found
    own = found is not None and (not named or any(each.rank == found.rank for each in named))
    section = found.section if found is not None and own else None
    frame = own_frame(named[0].rank, incident.stacks.groups()) if named else None
    if frame is None:
        return None if section is None else Place("", "", 0, section)
    return Place(frame.function, frame.file, frame.line, section)


def shown(job: Job, incident: Incident, now: float, activity: HostActivity | None = None) -> dict[str, Any]:
    """The incident with what is derived from it; of one that is over without its host, see :func:`of_host`.

    Args:
        job: its job.
        incident: one of its incidents.
        now: unix seconds.
        activity: of all jobs; None: not known, and only this job's incidents count.
    """
    host = of_host(job, incident, now, activity) if incident.open else None
    return {
        **incident.to_json(),
        "lost_steps_s": downtime.of_lost_steps(job, incident),
        "place": None if (where := place(incident)) is None else where._asdict(),
        "cost": downtime.cost(job, incident, now)._asdict(),
        "phases": phases.to_json(job, incident, now),
        "label": label(incident),
        "headline": headline.headline(incident),
        "title": headline.title(incident),
        "detail": headline.detail(incident),
        "of_host": None if host is None else host.to_json(),
    }


def of_host(job: Job, incident: Incident, now: float, activity: HostActivity | None = None) -> OfHost | None:
    """What is known of the host of an incident; arguments as of :func:`shown`. None: no host is named."""
    first = next((culprit for culprit in incident.culprits if culprit.host), None)
    quiet = quiet_host(job, now, activity) if first is None and incident is job.open_incident else None
    host = first.host if first is not None else "" if quiet is None else quiet.hosts[0]
    if not host:
        return None
    history = history_of(job, host, now, activity)
    suspect = _suspect(incident, first, history) if first is not None and not incident.open else ""
    return OfHost(host, history.beside(incident), suspect)


def _suspect(incident: Incident, first: Culprit, history: HostHistory) -> str:
    """What to look at on the host of an incident that is over; the faults of another GPU stand apart from it."""
    gpu, finding = history.gpu, history.finding
    if gpu is None or finding is None:
        return ""
    look = finding.clause
    if history.concerns(incident):
        return f"{first.host} is suspect{f': {look}' if look else ''}."
    this = fault_words(first.kind)[0]
    if look:  # the faults are counted beside it
        return f"Apart from this {this}, {look}."
    which = f"{gpu.of_ranks} on {first.host}" if gpu.hangs else f"{gpu.name} of {first.host}"
    return f"Apart from this {this}, {which}: {gpu.history(other=incident.job_id not in gpu.jobs)}."
