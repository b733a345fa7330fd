"""An incident in one line of at most 90 characters, and what a person should do about it.

Both are made from the record alone, so that they are the same while the incident is open, in the store and in a copy.
The headline is the culprit's part of the incident's ``reason``, shortened clause by clause.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from rankwatch.contract.enums import RESTARTS, Action, CulpritClass, Proof, VerdictKind
from rankwatch_monitor.core.hang.verdict import Culprit
from rankwatch_monitor.core.incident_record import Incident, Phase

LONGEST: Final = 90
"""Characters of a headline."""

_COLLECTIVE: Final = re.compile(r"'([^']+)' number (\d+) of group '[^']+'")
_BROKEN_NODE: Final = (CulpritClass.DEVICE_OR_NETWORK, CulpritClass.HOST_SILENT)
_RUNBOOK: Final = {
    VerdictKind.PROCESS_EXITED: "rankwatchjobfailed",
    VerdictKind.NODE_LOST: "rankwatchnodelost",
    VerdictKind.NEVER_STARTED: "rankwatchjobnotstarting",
    VerdictKind.STRAGGLER: "rankwatchstraggler",
    VerdictKind.WRONG_RESULT: "wrong_result",
    VerdictKind.RESTARTED_IN_PROCESS: "restarted_in_process",
}
"""Sections of docs/runbook.md; all other kinds are hangs."""


class NextAction(NamedTuple):
    """What a person should do. ``action`` is None when nothing has to be ordered."""

    action: Action | None
    text: str
    ranks: tuple[int, ...] = ()
    runbook: str = ""
    """Page and section of the manual."""

    def to_json(self) -> dict[str, Any]:
        """For the API."""
        return {**self._asdict(), "action": str(self.action) if self.action else None, "ranks": list(self.ranks)}


def shown(incident: Incident) -> dict[str, Any]:
    """The incident as API, stream and publishers show it: the record, its headline and the next action."""
    return {**incident.to_json(), "headline": headline(incident), "next_action": next_action(incident).to_json()}


def headline(incident: Incident) -> str:
    """The incident in at most :data:`LONGEST` characters."""
    if not incident.culprits:
        explanation = incident.reason.partition("; ")[2]
        return _shortened(_capital(explanation or incident.reason).rstrip("."))
    first = incident.culprits[0]
    cause = _COLLECTIVE.sub(r"\1 #\2", first.reason).rstrip(".")
    alike = [c for c in incident.culprits if c.reason == first.reason]
    for start in ("its process ", "it "):
        if cause.startswith(start):
            return _of_ranks(alike, " " + cause.removeprefix(start), first.host)
    return _of_ranks(alike, ": " + cause, first.host) if cause.startswith("its ") else _shortened(_capital(cause))


def of_job(incident: Incident | None, reason: str) -> str:
    """The state of a job in at most :data:`LONGEST` characters; empty while it simply runs.

    Args:
        incident: the open one.
        reason: of the job's state.
    """
    return headline(incident) if incident is not None else _shortened(_capital(reason.rstrip(".")))


def next_action(incident: Incident) -> NextAction:
    """What a person should do about the incident now."""
    runbook = f"runbook.html#{_RUNBOOK.get(incident.kind, 'rankwatchjobhung')}"
    ranks = tuple(c.rank for c in incident.culprits)
    if not incident.open or incident.self_reported:
        return NextAction(None, "Nothing has to be ordered.", runbook=runbook)
    if incident.phase in (Phase.ACTING, Phase.RECOVERING) and incident.action not in (Action.LOG, Action.CAPTURE):
        now = "restarts the ranks" if incident.action in RESTARTS else "stops the job"
        return NextAction(None, f"Wait: Rankwatch {now}.", runbook=runbook)
    if incident.held:
        storage = incident.proof == Proof.UNINTERRUPTIBLE
        text = (
            "Repair the storage that the ranks wait for; restart them if they do not go on by themselves."
            if storage
            else "Read the stacks: the ranks repeat something that fails. Restart them once its cause is gone."
        )
        return NextAction(Action.RESTART, text, runbook="runbook.html#rankwatchactionwithheld")
    if incident.action in (Action.LOG, Action.CAPTURE) and not incident.elective:
        return _recommended(incident, ranks, runbook)
    if not incident.confirmed:
        return NextAction(None, "Wait: Rankwatch acts once it is certain that the ranks hang.", runbook=runbook)
    return NextAction(None, "Wait: Rankwatch captures stacks and acts by itself.", runbook=runbook)


def _recommended(incident: Incident, ranks: tuple[int, ...], runbook: str) -> NextAction:
    """The action for a hang that the policy only records."""
    if any(c.kind in _BROKEN_NODE for c in incident.culprits):
        text = "Restart without the culprit's node: its host, a device or its network does not answer."
        return NextAction(Action.RESTART_EXCLUDING_NODE, text, ranks, runbook)
    if ranks:
        return NextAction(Action.RESTART, "Restart the ranks: the policy only records this incident.", ranks, runbook)
    return NextAction(Action.RESTART, "Read the stacks, then restart the ranks: no rank stands out.", (), runbook)


def _of_ranks(alike: Sequence[Culprit], cause: str, host: str) -> str:
    subject = f"Rank {alike[0].rank}" + (f" (and {len(alike) - 1} more)" if len(alike) > 1 else "")
    whole = f"{subject} on {host}{cause}"
    return whole if host and len(whole) <= LONGEST else _shortened(subject + cause)


def _shortened(text: str) -> str:
    """Without its last clauses, or words where that is not enough."""
    while len(text) > LONGEST and (cut := max(text.rfind(end) for end in ("; ", ", ", ": ", " ("))) > LONGEST // 3:
        text = text[:cut]
    return text if len(text) <= LONGEST else text[: LONGEST - 1].rpartition(" ")[0] + "…"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
