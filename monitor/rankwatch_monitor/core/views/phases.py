"""An incident as consecutive phases, each named for what happens until the mark that ends it. Pure.

==========  =========================================================  ===============================================
phase       what happens                                               it ends with
==========  =========================================================  ===============================================
detect      the trouble has begun and no limit is passed               the detection
confirm     the incident is a suspicion                                its confirmation, or its end
capture     stacks are taken of an incident that is certain            the stacks
restart     the ranks are being restarted                              the new attempt
stop        the ranks are being stopped                                the end of the job
recover     a new attempt runs                                         its first new step
unresolved  nothing is done about it                                   its end
==========  =========================================================  ===============================================

Page, command line, report, message and W&B print these; the last one of an open incident has no end. A name never
changes afterwards: stacks that are taken of a suspicion belong to its confirmation.
"""

from __future__ import annotations

from typing import Final

from rankwatch.contract.enums import RESTARTS
from rankwatch_monitor.core.incident.lifecycle import STOPS
from rankwatch_monitor.core.incident_record import Incident, Phase
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views import downtime
from rankwatch_monitor.core.views.responses import PhaseRow

NAMES: Final = ("detect", "confirm", "capture", "restart", "stop", "recover", "unresolved")
"""In the order in which they follow each other."""
AT_ONCE: Final = 0.0005
"""Seconds below which a phase that is over is left out."""


def phases(job: Job, incident: Incident, now: float) -> list[PhaseRow]:
    """The phases of an incident that were reached, without those that took no time.

    Marks come from the clocks of several machines: one before its predecessor counts as simultaneous.
    """
    begin, until = downtime.began(incident), downtime.known_until(job, incident, now)
    found: list[PhaseRow] = []
    for name, mark, at in _marks(incident):
        end = max(begin, at if until is None else min(at, until))
        found.append(PhaseRow(name, begin, end, mark, _limit(incident, end - begin) if name == "detect" else None))
        begin = end
    if downtime.over(incident) is None or (incident.timeline.first_step is None and until is not None):
        name, mark = _last(job, incident, goes_on=until is None)
        found.append(PhaseRow(name, begin, None if until is None else max(begin, until), mark))
    return [each for each in found if each.end is None or each.end - each.begin >= AT_ONCE]


def durations(job: Job, incident: Incident, now: float) -> dict[str, float | None]:
    """Seconds of each phase that is over, by :data:`NAMES`; None: it was not reached, or goes on."""
    took: dict[str, float | None] = dict.fromkeys(NAMES)
    for each in phases(job, incident, now):
        if each.end is not None:
            took[each.name] = (took[each.name] or 0.0) + each.end - each.begin
    return took


def _marks(incident: Incident) -> list[tuple[str, str, float]]:
    """Name, mark and time of the phases that have one; of a suspicion only its detection."""
    line = incident.timeline
    marks = [("detect", "detected", line.detected)]
    if incident.confirmed:
        # Stacks are captured again once a suspicion is confirmed; until then the earlier capture does not count.
        stale = line.captured is not None and line.captured < (line.decided or 0.0)
        marks += [
            ("confirm", "decided", line.decided),
            ("capture", "captured", None if stale else line.captured),
            ("restart", "restarted", line.restarted),
            ("recover", "first_step", line.first_step),
        ]
    return [(name, mark, at) for name, mark, at in marks if at is not None]


def _limit(incident: Incident, took: float) -> float | None:
    """The limit within a detection; none where the record states another cause by now, which was found later."""
    limit = None if incident.elapsed is None or incident.timeline.since is None else incident.limit
    return limit if limit is not None and took >= limit else None


def _last(job: Job, incident: Incident, *, goes_on: bool) -> tuple[str, str]:
    """Name and mark of the phase that goes on, or in which the incident was closed without a first new step."""
    restarts = incident.action in RESTARTS
    if incident.open:
        name = {
            Phase.CAPTURING: "capture" if incident.confirmed else "confirm",
            Phase.CONFIRMING: "confirm",
            Phase.ACTING: "restart" if restarts else "stop",
            Phase.RECOVERING: "recover",
        }.get(incident.phase, "unresolved" if incident.confirmed else "confirm")
        if not goes_on:
            return name, "last_heard" if job.ended is None else str(job.ended.state)
        ends = {"capture": "captured", "restart": "restarted", "stop": "stopped", "recover": "first_step"}
        return name, ends.get(name, "closed")
    if not incident.confirmed:
        return "confirm", "closed"
    if job.ended is not None and job.ended.at == incident.closed_at:
        return "stop", str(job.ended.state)
    if not restarts:
        return "stop" if incident.action in STOPS else "unresolved", "closed"
    return ("restart", "given_up") if incident.timeline.restarted is None else ("recover", "closed")
