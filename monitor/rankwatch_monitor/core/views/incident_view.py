"""An incident as API, stream and publishers show it: the record, and what is derived from it and from all jobs."""

from __future__ import annotations

from typing import cast

from rankwatch.contract import topology
from rankwatch_monitor.core import nodes
from rankwatch_monitor.core.hang.proof import own_frame
from rankwatch_monitor.core.hang.verdict import Culprit
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.places import shared_place
from rankwatch_monitor.core.views import downtime, headline, phases, responses
from rankwatch_monitor.core.views.host_activity import HostActivity, history_of
from rankwatch_monitor.core.views.host_history import HostHistory
from rankwatch_monitor.core.views.incident_label import label
from rankwatch_monitor.core.views.node_gpus import fault_words
from rankwatch_monitor.core.views.quiet_host import quiet_host


def place(incident: Incident) -> responses.IncidentPlace | None:
    """Where the incident is about; None: nothing is known of it."""
    named, found = incident.culprits, incident.found
    own = found is not None and (not named or any(each.rank == found.rank for each in named))
    section = found.section if found is not None and own else None
    frame = own_frame(named[0].rank, incident.stacks.groups()) if named else None
    if frame is None:
        return None if section is None else {"function": "", "file": "", "line": 0, "section": section}
    return {"function": frame.function, "file": frame.file, "line": frame.line, "section": section}


def shown(job: Job, incident: Incident, now: float, activity: HostActivity | None = None) -> responses.Incident:
    """The incident with what is derived from it; of one that is over without its host, see :func:`of_host`.

    Args:
        activity: of all jobs; None: not known, and only this job's incidents count.
    """
    found = {
        **incident.to_json(),
        "lost_steps_s": downtime.of_lost_steps(job, incident),
        "place": place(incident),
        "cost": downtime.cost(job, incident, now),
        "phases": phases.phases(job, incident, now),
        "label": label(incident),
        "headline": headline.headline(incident),
        "title": headline.title(incident),
        "detail": headline.detail(incident),
        "sequel": headline.detail(incident, beside_fields=True),
        "of_host": of_host(job, incident, now, activity) if incident.open else None,
        "of_place": of_place(job, incident),
    }
    return cast("responses.Incident", found)


def of_place(job: Job, incident: Incident) -> responses.OfPlace | None:
    """What the nodes of its culprits have in common that the other nodes of the job do not share; None: nothing."""
    found = shared_place(nodes.places(job), {culprit.host for culprit in incident.culprits})
    if found is None:
        return None
    text = f"{found.nodes} of {found.of} nodes of {topology.title(found.label)} are named, and none elsewhere."
    return {"label": found.label, "nodes": found.nodes, "of": found.of, "text": text}


def of_host(job: Job, incident: Incident, now: float, activity: HostActivity | None = None) -> responses.OfHost | None:
    """What is known of the host of an incident; arguments as of :func:`shown`. None: no host is named."""
    first = next((culprit for culprit in incident.culprits if culprit.host), None)
    quiet = quiet_host(job, now, activity) if first is None and incident is job.open_incident else None
    host = first.host if first is not None else "" if quiet is None else quiet.hosts[0]
    if not host:
        return None
    history = history_of(job, host, now, activity)
    suspect = _suspect(incident, first, history) if first is not None and not incident.open else ""
    return {"host": host, "text": history.beside(incident), "suspect": suspect}


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
