"""The launchers have asked the ranks to save and stop, by themselves: a signal came, or a rank wished it.

It is kept like a person's order, as an incident in which nothing is wrong, so that ledger and timeline have it. The
monitor orders nothing: the launchers have a deadline of their own. What the ranks do meanwhile (a long checkpoint,
a process that ends badly while it is being stopped) opens no incident of its own.
"""

from __future__ import annotations

from typing import Final

from rankwatch.contract.enums import Action, VerdictKind
from rankwatch.contract.messages import ProcessEvent
from rankwatch_monitor.core.effects import Changed, Effect
from rankwatch_monitor.core.incident.incident import Incident, Phase
from rankwatch_monitor.core.job import Job, StopRequest

ACTION_REASON: Final = "the launchers have asked the ranks to save and stop, and end them after their own deadline"
_ENDS: Final = (Action.SAVE_AND_STOP, Action.STOP)


def receive(job: Job, event: ProcessEvent, at: float) -> None:
    """A launcher says that it has asked; every launcher of a job may say so, and the first one counts."""
    if job.stopping is None and event.attempt >= job.attempt and job.ended is None:
        job.stopping = StopRequest(at, event.reason.rstrip(". ") or "without a reason")


def wanted(job: Job, incident: Incident | None) -> bool:
    """Whether the stop is still to be written down."""
    return job.stopping is not None and not job.stopping.noted and (incident is None or incident.open)


def note(job: Job, incident: Incident, now: float, effects: list[Effect]) -> None:
    """Write the stop down in an incident: one of its own, or the one that is open."""
    stop = job.stopping
    assert stop is not None
    stop.noted = True
    asked = f"the ranks were asked to save and stop: {stop.reason}"
    if incident.kind is VerdictKind.ORDERED and not incident.reason:
        incident.reason = f"{asked[:1].upper()}{asked[1:]}."
        incident.timeline.since = incident.timeline.decided = stop.at
        _leave_to_launchers(incident, now)
        incident.action_reason = ACTION_REASON
    elif incident.action in _ENDS and incident.phase is Phase.ACTING:
        return  # they were told to, and do so
    else:
        incident.action_reason += f"; {asked}"
        if incident.phase in (Phase.DETECTED, Phase.CAPTURING, Phase.CONFIRMING):
            _leave_to_launchers(incident, now)
            incident.timeline.decided = stop.at
    effects.append(Changed(incident, f"{asked[:1].upper()}{asked[1:]}."))


def _leave_to_launchers(incident: Incident, now: float) -> None:
    incident.action, incident.confirmed, incident.ordered = Action.SAVE_AND_STOP, True, False
    incident.phase, incident.phase_since, incident.directive = Phase.ACTING, now, 0
