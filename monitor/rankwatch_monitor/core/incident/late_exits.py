"""Crashes of an attempt that are reported after the next one has begun, or after those that only followed from them."""

from __future__ import annotations

from rankwatch.contract.enums import VerdictKind
from rankwatch_monitor.core.hang.blame import blame, described, detection_of, follows_from_another
from rankwatch_monitor.core.hang.detect import exited
from rankwatch_monitor.core.hang.stacks import Stacks
from rankwatch_monitor.core.hang.verdict import union
from rankwatch_monitor.core.incident.state_machine import Diagnosis
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.ranks import RankColumns


def blames_consequences(incident: Incident, columns: RankColumns) -> bool:
    """Whether a crash is blamed on ranks that only lost their connection to another one."""
    if incident.kind is not VerdictKind.PROCESS_EXITED:
        return False
    known = [culprit.rank for culprit in incident.culprits if culprit.rank < len(columns)]
    return bool(known) and all(follows_from_another(columns, rank) for rank in known)


def diagnosis(columns: RankColumns, since: float) -> Diagnosis | None:
    """The crash that ended an attempt; None while the known exits only follow from another one.

    Args:
        since: when it began, unix seconds.
    """
    verdicts = exited(columns, since)
    blamed = blame(columns, verdicts, Stacks())
    if not verdicts or all(follows_from_another(columns, culprit.rank) for culprit in blamed.culprits):
        return None
    named = {culprit.rank for culprit in blamed.culprits}
    first = next((v for v in verdicts if v.rank in named), verdicts[0])
    found = detection_of(columns, first, len(verdicts) - 1, blamed)
    return Diagnosis(
        VerdictKind.PROCESS_EXITED,
        described(found, blamed),
        since=first.since,
        found=found,
        culprits=blamed.culprits,
        affected=union(verdicts.ranks, [*named]),
    )
