"""What happens to a job in trouble without a person, and by when, where that is known. Derived when read.

The words hold no figure, and the time is a point in time, so that a summary does not change while it is waited for.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from rankwatch.cli.formatting import duration
from rankwatch.contract.enums import RESTARTS, Action, Proof
from rankwatch_monitor.core.goodput.intervals import Bucket
from rankwatch_monitor.core.incident.lifecycle import REPEAT_AFTER
from rankwatch_monitor.core.incident_record import Incident, Phase
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views.job_verdict import clock

PATIENCE: Final = 120.0
"""Seconds after a restart in which a rank reports, unless the first attempt took longer to start."""
START_UPS: Final = 3
"""As many times the start-up of the first attempt."""
NONE_COMPLETED: Final = "the ranks were restarted, and none has completed a step yet"
_ACTS: Final = {
    Action.RESTART: "Rankwatch restarts the ranks unless they make progress",
    Action.RESTART_EXCLUDING_NODE: "Rankwatch restarts without the suspect's node unless the ranks make progress",
    Action.SAVE_AND_STOP: "Rankwatch saves and stops the job unless the ranks make progress",
    Action.STOP: "Rankwatch stops the job unless the ranks make progress",
}
"""What follows on a suspicion."""


class Awaited(NamedTuple):
    """What a person can leave to Rankwatch."""

    text: str
    until: float | None = None
    """Unix seconds when it is due; None: not known, or past."""
    meanwhile: str = ""
    """What a person can look at until then, as a clause; empty: nothing."""
    cost: float | None = None
    """Seconds that the action loses, for which it is waited; None: not known, or it is not waited for."""

    @property
    def sentence(self) -> str:
        """``Wait until 14:02:32 UTC: the launchers restart the ranks; meanwhile check GPU 5 of host-0 for errors``."""
        until = "" if self.until is None else f" until {clock(self.until)} UTC"
        text = self.text if self.cost is None else f"{self.text}; a restart loses {duration(self.cost)}"
        if not self.meanwhile:
            return f"Nothing to do{until}: {text}"
        return f"Wait{until}: {text}; meanwhile {self.meanwhile}"

    def to_json(self) -> dict[str, Any]:
        """For the API."""
        return {**self._asdict(), "sentence": self.sentence}


def under_way(incident: Incident) -> Awaited:
    """What is waited for while the action of an incident is carried out, and when it is due."""
    if incident.action not in RESTARTS:
        return Awaited("Rankwatch stops the job")
    if incident.phase is Phase.RECOVERING:
        return Awaited(NONE_COMPLETED)
    by = "Rankwatch restarts" if incident.directive else "the launchers restart"
    return Awaited(f"{by} the ranks", incident.phase_since + REPEAT_AFTER)


def awaited(job: Job, now: float) -> Awaited | None:
    """What happens by itself to a job in trouble; None: nothing does, or there is no trouble.

    Args:
        job: the job.
        now: unix seconds.
    """
    incident = job.open_incident
    if job.ended is not None or incident is None or incident.held or incident.self_reported:
        return None
    if incident.action in (Action.LOG, Action.CAPTURE):
        return None
    if incident.phase in (Phase.ACTING, Phase.RECOVERING):
        found = none_reported(job, incident) or under_way(incident)
        return found._replace(until=_future(found.until, now))
    if not incident.confirmed:
        return _suspected(incident, now)
    return Awaited("Rankwatch captures stacks and acts")


def none_reported(job: Job, incident: Incident) -> Awaited | None:
    """What is waited for after a restart until a rank reports; None: one has, or the ranks are not restarted."""
    due, restarted = first_report_due(job, incident), incident.timeline.restarted
    if due is None or restarted is None:
        return None
    return Awaited(f"the ranks were started again at {clock(restarted)} UTC, and none has reported yet", due)


def first_report_due(job: Job, incident: Incident) -> float | None:
    """When a rank should have reported after a restart; None: one has, or the ranks are not restarted."""
    restarted = incident.timeline.restarted
    if incident.phase is not Phase.RECOVERING or incident.action not in RESTARTS or restarted is None:
        return None
    if incident.attempt != job.attempt and job.columns.reported_R.any():
        return None
    return restarted + max(PATIENCE, START_UPS * job.ledger.totals[Bucket.STARTUP])


def _suspected(incident: Incident, now: float) -> Awaited | None:
    if incident.proof == Proof.BUSY or incident.action not in _ACTS:
        return None
    cost = incident.restart_cost if incident.action in RESTARTS else None
    return Awaited(_ACTS[incident.action], _future(incident.acts_at, now), cost=cost)


def _future(at: float | None, now: float) -> float | None:
    return at if at is not None and now <= at else None
