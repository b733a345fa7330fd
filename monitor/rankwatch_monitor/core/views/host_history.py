"""The incidents about one host, over all jobs, and how often there were any lately.

A host is *named* by confirmed incidents of which it is a culprit, *suspected* by open ones that are not confirmed, and
*silent* in one that is open while a job receives nothing from it. About no host are an order, what a rank handles by
itself, a suspicion that is over, and whatever happens to a job into which faults are injected. Pages of job, incident
and node, the list of hosts, the digest and the terminal count by these functions, suspicions apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

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

NamedAs = Literal["culprit", "suspect", "quiet"]
CULPRIT: Final = "culprit"
SUSPECT: Final = "suspect"
QUIET: Final = "quiet"
About = tuple[Incident, NamedAs]
"""An incident, and as what it is about a host: :data:`CULPRIT`, :data:`SUSPECT` or :data:`QUIET`."""
_SILENT: Final = ("silent", "silent")


class HostHistory(NamedTuple):
    """The incidents of :data:`WINDOW` about one host."""

    host: str
    about: tuple[About, ...]
    gpu: Gpu | None = None
    """The one with the most faults; None: none stands out."""
    finding: Pointer | None = None
    """What the faults on that one point to."""
    compared: bool = True
    """There was another host that they could have struck."""

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
        """Whether there were several, with suspicions, which another host did not have."""
        return self.compared and len(self.about) >= OFTEN

    @property
    def clause(self) -> str:
        """``was named in 3 incidents (2 hangs, 1 silent) and 1 open suspicion of 4 jobs in 24 h``; empty: in none."""
        return self._clause(counted(self.host, self.about)) if self.about else ""

    @property
    def fact(self) -> str:
        """The same as a sentence, without the kinds."""
        return f"{self.host} {self._clause(self._times)}."

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

        The incidents of one job are listed with it, so that of them only what they point to is stated.

        Of an incident that is over, the count is that of now: it has those that came later.
        """
        if not self.repeats:
            return ""
        moment = "" if incident.open else " as of now"
        this = "this one included" if self.includes(incident) else "this one not included"
        which = f"{moment}, {this}."
        if self.finding is not None and self.concerns(incident):
            verdict = self.finding.verdict
            return verdict if self.jobs == 1 else f"{self.host} {self._clause(self._times)}{which} {verdict}"
        if self.jobs == 1:
            return ""
        fact = f"{self.host} {self.clause}{which}"
        if self.gpu is None:
            return fact
        on_it = {_key(each) for each, _ in self.gpu.faults}
        return f"{fact} {len(on_it)} of them are of {self.gpu.place}."

    @property
    def _times(self) -> str:
        return tally(incident for incident, _ in self.about)

    def _clause(self, times: str) -> str:
        return f"was named in {times} of {count(self.jobs, 'job')} in 24 h"


def host_history(host: str, about: Iterable[About], now: float, *, compared: bool = True) -> HostHistory:
    """The latest incidents about a host.

    Args:
        about: those of all jobs, of :func:`about_of`.
        compared: the jobs ran on other hosts too, :func:`several_hosts`.
    """
    lately = latest(about, now - WINDOW)
    gpu = standing_out(gpus_of(host, [each for each, named_as in lately if named_as == CULPRIT], ()))
    suspected = [each for each, named_as in lately if named_as == SUSPECT]
    finding = None if gpu is None else pointer(host, gpu, _on(host, suspected))
    return HostHistory(host, lately, gpu, finding, compared)


def several_hosts(jobs: Iterable[Job]) -> bool:
    """Whether jobs run on more than one host: what strikes the only one may strike any."""
    seen: set[str] = set()
    for job in jobs:
        seen.update(job.columns.hosts, (node.registration.host for node in job.nodes.values()))
        if len(seen - {""}) > 1:
            return True
    return False


def about_of(job: Job, now: float) -> Iterator[tuple[str, About]]:
    """The hosts that each incident of a job is about, and as what."""
    if job.rehearses:
        return
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


def tally(incidents: Iterable[Incident], kinds: str = "") -> str:
    """How many incidents there are, suspicions apart: ``3 incidents (2 hangs, 1 silent) and 1 open suspicion``.

    Args:
        incidents: those that are confirmed, or may still be.
        kinds: of the confirmed ones, of :func:`kinds_of`; empty: not stated.
    """
    confirmed = Counter(incident.confirmed for incident in incidents)
    faults = f"{count(confirmed[True], 'incident')}{f' ({kinds})' if kinds else ''}"
    suspicions = count(confirmed[False], "open suspicion")
    return " and ".join(text for known, text in ((True, faults), (False, suspicions)) if confirmed[known])


def in_jobs(incidents: Sequence[Incident]) -> str:
    """``9 incidents and 2 open suspicions in 6 jobs``; empty: there are none."""
    jobs = {incident.job_id for incident in incidents}
    return f"{tally(incidents)} in {count(len(jobs), 'job')}" if incidents else ""


def counted(host: str, about: Sequence[About]) -> str:
    """How many incidents are about a host, by kind: ``3 incidents (2 hangs, 1 silent) and 1 open suspicion``."""
    return tally((each for each, _ in about), kinds_of(host, about))


def kinds_of(host: str, about: Sequence[About]) -> str:
    """``2 hangs, 1 silent``, of confirmed incidents; empty: all name the host for the same kind of fault."""
    confirmed = [each for each in about if each[0].confirmed]
    words = Counter(_words(host, each) for each in confirmed)
    if len(words) <= 1 and all(named_as == CULPRIT for _, named_as in confirmed):
        return ""
    order = sorted(words.items(), key=lambda item: (item[0] == _SILENT, -item[1]))
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
    return _SILENT if named_as == QUIET else fault_words(next(kinds))


def _key(incident: Incident) -> tuple[str, str]:
    return incident.job_id, incident.id


def _on(host: str, incidents: Iterable[Incident]) -> list[tuple[Incident, Culprit]]:
    return [(each, culprit) for each in incidents for culprit in each.culprits if culprit.host == host]
