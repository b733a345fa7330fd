"""How often incidents of all jobs named one host lately, which the pages of job, incident and node state alike.

Confirmed incidents count; suspicions that are open are counted beside them. An order, and what a rank handles by
itself, names no host.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from rankwatch.cli.formatting import count
from rankwatch.contract.enums import VerdictKind
from rankwatch_monitor.core.hang.verdict import Culprit
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.views.gpu_faults import Pointer, pointer
from rankwatch_monitor.core.views.node_gpus import gpus_of, standing_out

WINDOW: Final = 24 * 3600.0
"""Seconds after which an incident counts no more."""
OFTEN: Final = 2
"""Incidents about a host from which on it may be the cause, also where their errors differ."""
NOT_OF_A_HOST: Final = (VerdictKind.ORDERED, VerdictKind.RESTARTED_IN_PROCESS)


class HostHistory(NamedTuple):
    """The incidents of :data:`WINDOW` about one host."""

    host: str
    named: int
    """Confirmed incidents of which it is a culprit."""
    jobs: int
    """In which these were."""
    suspected: int
    """Incidents that suspect it now."""
    finding: Pointer | None = None
    """What points to one GPU; None: none stands out."""

    @property
    def repeats(self) -> bool:
        """Whether there were several."""
        return self.named + self.suspected >= OFTEN

    @property
    def clause(self) -> str:
        """``was named in 3 incidents of 2 jobs in 24 h``; empty: it was not, and is not suspected."""
        parts = []
        if self.named:
            parts.append(f"was named in {count(self.named, 'incident')} of {count(self.jobs, 'job')} in 24 h")
        if self.suspected:
            parts.append(f"is suspected in {count(self.suspected, 'incident')}")
        return " and ".join(parts)

    @property
    def fact(self) -> str:
        """The same as a sentence."""
        return f"{self.host} {self.clause}."

    @property
    def text(self) -> str:
        """The sentence with what points to one GPU; empty: there were not several."""
        if not self.repeats:
            return ""
        return self.fact if self.finding is None else f"{self.fact} {self.finding.verdict}"


def host_history(host: str, incidents: Iterable[Incident], now: float) -> HostHistory:
    """The incidents about a host.

    Args:
        host: its name.
        incidents: of all jobs; those about other hosts are passed over.
        now: unix seconds.
    """
    about = [each for each in incidents if host in hosts_about(each) and (each.open or now - each.opened_at < WINDOW)]
    named = [each for each in about if each.confirmed]
    suspected = [each for each in about if not each.confirmed]
    gpu = standing_out(gpus_of(host, named, ()))
    finding = None if gpu is None else pointer(host, gpu, _on(host, suspected))
    return HostHistory(host, len(named), len({each.job_id for each in named}), len(suspected), finding)


def hosts_named(incident: Incident) -> set[str]:
    """The hosts that an incident names; none of a suspicion, or of an order."""
    return hosts_about(incident) if incident.confirmed else set()


def hosts_about(incident: Incident) -> set[str]:
    """The hosts that an incident names, or suspects now."""
    if incident.kind in NOT_OF_A_HOST or not (incident.confirmed or incident.open):
        return set()
    return {culprit.host for culprit in incident.culprits if culprit.host}


def _on(host: str, incidents: Iterable[Incident]) -> list[tuple[Incident, Culprit]]:
    return [(each, culprit) for each in incidents for culprit in each.culprits if culprit.host == host]
