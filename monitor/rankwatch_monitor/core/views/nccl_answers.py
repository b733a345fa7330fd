"""What NCCL answered about the job of an incident, beside whom the incident blames."""

from __future__ import annotations

from rankwatch.cli.formatting import count
from rankwatch.cli.formatting import ranks as as_ranges
from rankwatch_monitor.core.incident_record import Incident, NcclAnswer, Witness
from rankwatch_monitor.core.views import responses
from rankwatch_monitor.core.words.nccl import lines


def shown(incident: Incident) -> list[responses.NcclAnswer]:
    """The answers, one a node that asked."""
    return [_shown(incident, each) for each in incident.nccl]


def _shown(incident: Incident, answer: NcclAnswer) -> responses.NcclAnswer:
    blamed = {culprit.rank for culprit in incident.culprits}
    witness = Witness.OTHERS if answer.accused else Witness.NOBODY
    if blamed.intersection(answer.accused):
        witness = Witness.AGREES
    return {
        "node": answer.node,
        "host": answer.host,
        "version": answer.report.version,
        "accused": list(answer.accused),
        "witness": witness,
        "text": _text(incident, answer, witness),
        "lines": lines(answer.report),
    }


def _text(incident: Incident, answer: NcclAnswer, witness: Witness) -> str:
    asked = f"NCCL {answer.report.version}, asked on {answer.host or answer.node},"
    accused = f"rank{'' if len(answer.accused) == 1 else 's'} {as_ranges(answer.accused)}"
    if witness is Witness.NOBODY:
        return f"{asked} accuses no rank"
    if witness is Witness.AGREES:
        return f"{asked} accuses {accused} as well"
    others = "no rank is blamed" if not incident.culprits else f"blamed: {count(len(incident.culprits), 'other rank')}"
    return f"{asked} accuses {accused}; {others}"
