"""The incidents about one host, over all jobs, and how often there were any lately.

A host is *named* by confirmed incidents of which it is a culprit, *suspected* by open ones that are not confirmed, and
*silent* in one that is open while a job receives nothing from it. An order, and what a rank handles by itself, is about
no host, and a suspicion that is over neither. Pages of job, incident and node, the list of hosts, the digest and the
terminal count by these functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from rankwatch.cli.formatting import count
from rankwatch.contract.enums import VerdictKind
from rankwatch_monitor.core.hang.verdict import Culprit
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views.gpu_faults import Pointer, pointer
from rankwatch_monitor.core.views.node_gpus import OF_HOST, Gpu, fault_words, gpus_of, standing_out
from rankwatch_monitor.core.views.quiet_host import quiet_host

WINDOW: Final = 24 * 3600.0
"""Seconds after which an incident that is over counts no more."""
OFTEN: Final = 2
"""Incidents about a host from which on it may be the cause, also where their errors differ."""
NOT_OF_A_HOST: Final = (VerdictKind.ORDERED, VerdictKind.RESTARTED_IN_PROCESS)

CULPRIT: Final = "culprit"
SUSPECT: Final = "suspect"
QUIET: Final = "quiet"
About = tuple[Incident, str]
"""An incident, and as what it is about a host: :data:`CULPRIT`, :data:`SUSPECT` or :data:`QUIET`."""
_UNCERTAIN: Final = {SUSPECT: ("suspected", "suspected"), QUIET: ("silent", "silent")}


class HostHistory(NamedTuple):
    """The incidents of :data:`WINDOW` about one host."""

    host: str
    about: tuple[About, ...]
    gpu: Gpu | None = None
    """The one with the most faults; None: none stands out."""
    finding: Pointer | None = None
    """What the faults on that one point to."""

    @property
    def incidents(self) -> int:
        """How many there were."""
        return len(self.about)

    @property
    def jobs(self) -> int:
        """In how many jobs."""
        return len({incident.job_id for incident, _ in self.about})

    @property
    def silent(self) -> int:
        """Jobs that have an open incident and receive nothing from it."""
        return sum(named_as == QUIET for _, named_as in self.about)

    @property
    def repeats(self) -> bool:
        """Whether there were several."""
        return self.incidents >= OFTEN

    @property
    def clause(self) -> str:
        """``was named in 4 incidents of 4 jobs in 24 h (2 hangs, 1 suspected, 1 silent)``; empty: it was in none."""
        return self._clause("") if self.about else ""

    @property
    def fact(self) -> str:
        """The same as a sentence."""
        return f"{self.host} {self.clause}."

    def includes(self, incident: Incident) -> bool:
        """Whether an incident is among them."""
        return any(_key(each) == _key(incident) for each, _ in self.about)

    def concerns(self, incident: Incident) -> bool:
        """Whether an incident has a culprit on the GPU that stands out, or one of the ranks that failed on it."""
        if self.gpu is None:
            return False
        places, ranks = {self.gpu.uuid, str(self.gpu.number)}, {culprit.rank for _, culprit in self.gpu.faults}
        return any(
            culprit.host == self.host
            and culprit.kind not in OF_HOST
            and (culprit.gpu_key in places or culprit.rank in ranks)
            for culprit in incident.culprits
        )

    def beside(self, incident: Incident) -> str:
        """The sentence beside one incident, with what points to a GPU if it is the incident's; empty: it is alone.

        Of an incident that is over, the count is that of now: it has those that came later.
        """
        if not self.repeats:
            return ""
        moment = "" if incident.open else " as of now"
        this = "this one included" if self.includes(incident) else "this one not included"
        fact = f"{self.host} {self._clause(f'{moment}, {this}')}."
        if self.gpu is None or self.finding is None:
            return fact
        if self.concerns(incident):
            return f"{fact} {self.finding.verdict}"
        on_it = {_key(each) for each, _ in self.gpu.faults}
        return f"{fact} {len(on_it)} of them are of {self.gpu.name}, {self.gpu.of_ranks}."

    def _clause(self, which: str) -> str:
        kinds = kinds_of(self.host, self.about)
        beside = f" ({kinds})" if kinds else ""
        times, jobs = count(self.incidents, "incident"), count(self.jobs, "job")
        return f"was named in {times} of {jobs} in 24 h{which}{beside}"


def host_history(host: str, about: Iterable[About], now: float) -> HostHistory:
    """The latest incidents about a host.

    Args:
        host: its name.
        about: those of all jobs, of :func:`about_of`.
        now: unix seconds.
    """
    lately = latest(about, now - WINDOW)
    gpu = standing_out(gpus_of(host, [each for each, named_as in lately if named_as == CULPRIT], ()))
    suspected = [each for each, named_as in lately if named_as == SUSPECT]
    finding = None if gpu is None else pointer(host, gpu, _on(host, suspected))
    return HostHistory(host, lately, gpu, finding)


def about_of(job: Job, now: float) -> Iterator[tuple[str, About]]:
    """The hosts that each incident of a job is about, and as what."""
    quiet = quiet_host(job, now)
    for incident in job.incidents:
        if incident.kind in NOT_OF_A_HOST:
            continue
        named = {culprit.host for culprit in incident.culprits if culprit.host}
        for host in named if incident.confirmed or incident.open else ():
            yield host, (incident, CULPRIT if incident.confirmed else SUSPECT)
        for host in () if quiet is None or incident is not job.open_incident else set(quiet.hosts) - named:
            yield host, (incident, QUIET)


def about_by_host(jobs: Iterable[Job], now: float) -> dict[str, list[About]]:
    """The incidents about each host, the newest first."""
    found: dict[str, list[About]] = {}
    for job in jobs:
        for host, about in about_of(job, now):
            found.setdefault(host, []).append(about)
    for each in found.values():
        each.sort(key=lambda about: -about[0].opened_at)
    return found


def latest(about: Iterable[About], since: float) -> tuple[About, ...]:
    """Those that were opened since then (unix seconds), or are open."""
    return tuple(each for each in about if each[0].open or each[0].opened_at >= since)


def counted(host: str, about: Iterable[About]) -> str:
    """How many incidents are about a host: ``4 (2 hangs, 1 suspected, 1 silent)``."""
    about = tuple(about)
    kinds = kinds_of(host, about)
    return f"{len(about)} ({kinds})" if kinds else str(len(about))


def kinds_of(host: str, about: Sequence[About]) -> str:
    """``2 hangs, 1 suspected, 1 silent``; empty: all name the host for the same kind of fault."""
    words = Counter(_words(host, each) for each in about)
    if len(words) == 1 and not {named_as for _, named_as in about} - {CULPRIT}:
        return ""
    last = list(_UNCERTAIN.values())
    order = sorted(words.items(), key=lambda item: (last.index(item[0]) if item[0] in last else -1, -item[1]))
    return ", ".join(f"{number} {one if number == 1 else many}" for (one, many), number in order)


def hosts_named(incident: Incident) -> set[str]:
    """The hosts that an incident names; none of a suspicion, or of an order."""
    if incident.kind in NOT_OF_A_HOST or not incident.confirmed:
        return set()
    return {culprit.host for culprit in incident.culprits if culprit.host}


def _words(host: str, about: About) -> tuple[str, str]:
    """One and several, by the first culprit on the host."""
    incident, named_as = about
    kinds = (culprit.kind for culprit in incident.culprits if culprit.host == host)
    return _UNCERTAIN[named_as] if named_as in _UNCERTAIN else fault_words(next(kinds))


def _key(incident: Incident) -> tuple[str, str]:
    return incident.job_id, incident.id


def _on(host: str, incidents: Iterable[Incident]) -> list[tuple[Incident, Culprit]]:
    return [(each, culprit) for each in incidents for culprit in each.culprits if culprit.host == host]
