"""An incident in a few words, for flags on charts, lanes and narrow tables: ``rank 3 hung in load_batch``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rankwatch.cli.formatting import count
from rankwatch.cli.formatting import ranks as as_ranges
from rankwatch.contract.enums import CulpritClass, VerdictKind
from rankwatch_monitor.core.cause import OF_A_SECTION
from rankwatch_monitor.core.incident_record import Incident

LONGEST: Final = 48
"""Characters of a label; most are half as long."""
_FAULTS: Final[Mapping[CulpritClass, str]] = {
    CulpritClass.DEAD: "crashed",
    CulpritClass.STOPPED: "stopped",
    CulpritClass.GIL_HELD: "blocked by the GIL",
    CulpritClass.HOST_SILENT: "silent",
    CulpritClass.NEVER_STARTED: "never started",
    CulpritClass.DEVICE_OR_NETWORK: "stuck in the kernel",
    CulpritClass.STRAGGLER: "slow",
    CulpritClass.WRONG_RESULT: "rejected a result",
}
_KINDS: Final[Mapping[VerdictKind, str]] = {
    VerdictKind.STALLED: "no step completed",
    VerdictKind.SILENT: "ranks silent",
    VerdictKind.RESTARTED_IN_PROCESS: "restarted in process",
}


def label(incident: Incident) -> str:
    """The ranks or the host, and what happened to them."""
    text = _label(incident)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1].rstrip()}…"


def _label(incident: Incident) -> str:
    culprits = incident.culprits
    if incident.kind is VerdictKind.ORDERED:
        return f"{incident.action.replace('_', ' ')} ordered"
    if incident.kind in _KINDS:
        return _KINDS[incident.kind] if not culprits else f"{_ranks(incident)}: {_KINDS[incident.kind]}"
    if not culprits:
        hung = f"{count(len(incident.affected), 'rank')} {_hung(incident)}"
        return hung if incident.kind in OF_A_SECTION else incident.kind.replace("_", " ")
    hosts = {culprit.host for culprit in culprits}
    first = culprits[0]
    whole_host = incident.kind is VerdictKind.NODE_LOST or first.kind is CulpritClass.HOST_SILENT
    if whole_host and len(hosts) == 1 and first.host:
        return f"{first.host} {'lost' if incident.kind is VerdictKind.NODE_LOST else 'silent'}"
    return f"{_ranks(incident)} {_FAULTS.get(first.kind) or _hung(incident)}"


def _hung(incident: Incident) -> str:
    """``hung in load_batch``: the innermost function of the first culprit's stack, else the section."""
    verb = "hung" if incident.confirmed else "suspected"
    rank = incident.culprits[0].rank if incident.culprits else -1
    frames = next((group.frames for group in incident.stacks.groups() if rank in group.ranks), ())
    where = frames[0].function if frames else incident.section or ""
    return f"{verb} in {where}" if where else verb


def _ranks(incident: Incident) -> str:
    ranks = [culprit.rank for culprit in incident.culprits]
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {as_ranges(ranks)}"
