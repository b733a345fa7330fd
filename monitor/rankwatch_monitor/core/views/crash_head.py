"""How a crash began: the first error of each rank by time; ranks that only lost their peer are counted."""

from __future__ import annotations

from rankwatch.contract.exits import exit_phrase, is_consequence, lost_peer
from rankwatch_monitor.core.cause import Exited
from rankwatch_monitor.core.hang.verdict import Culprit
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.views import responses
from rankwatch_monitor.core.words.causes import at as place_of


def head(incident: Incident) -> responses.CrashHead | None:
    """The head of an incident; None: no rank of it is known to have raised an error or to have been killed."""
    errors: dict[str | Exited, responses.FirstError] = {}
    for each in incident.errors:
        where = "" if each.site is None else f"{each.site.function} ({place_of(each.site)})"
        first = errors.setdefault(
            each.text, {"ranks": [], "host": each.host, "text": each.text, "place": where, "at": each.at}
        )
        first["ranks"].append(each.rank)
    known = {each.rank for each in incident.errors}
    for culprit in incident.culprits:
        cause = culprit.cause
        if isinstance(cause, Exited) and culprit.rank not in known and not is_consequence(cause.message):
            _add(errors, culprit, cause, incident.timeline.since)
    victims = [rank for rank in incident.lost_peer if rank not in known]
    if not errors and not victims:
        return None
    by_time = sorted(errors.values(), key=lambda each: (each["at"] is None, each["at"] or 0.0))
    return {"errors": by_time, "lost_peer": victims, "text": lost_peer(len(victims)) if victims else ""}


def _add(errors: dict[str | Exited, responses.FirstError], culprit: Culprit, cause: Exited, at: float | None) -> None:
    """A rank of which no exception is known: it was killed, or ended with a code."""
    text = exit_phrase(cause.code, cause.message)
    first = errors.setdefault(cause, {"ranks": [], "host": culprit.host, "text": text, "place": "", "at": at})
    first["ranks"].append(culprit.rank)
