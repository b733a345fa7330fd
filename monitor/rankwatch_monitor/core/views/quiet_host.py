"""Hosts of which a job receives nothing while its ranks elsewhere wait: they may be down, which is not certain yet.

A limit of a section is passed sooner than silence is certain, so the ranks that wait are found first. Such a host is
then the likely cause, from :data:`.liveness.QUIET_AFTER` on until its ranks are silent by the policy, which names them.
Where other jobs are heard from it, it is up, and stays quiet: what this job runs there is then the likely cause.
No action follows from here: only the detector's verdicts lead to one. Shapes: R ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from rankwatch.contract.enums import Action, CulpritClass
from rankwatch_monitor.core import liveness
from rankwatch_monitor.core.incident import exclusion
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import Job, Node
from rankwatch_monitor.core.ranks import SILENT_INTERVALS, Bools, Floats, live_ranks, report_intervals, silence_limit
from rankwatch_monitor.core.views import host_commands

if TYPE_CHECKING:
    from rankwatch_monitor.core.views.host_activity import HostActivity  # which counts quiet hosts

PROCESSES: Final = 8
"""Ranks whose processes a command names."""


class QuietHost(NamedTuple):
    """Hosts of which a job receives nothing; most often one."""

    hosts: tuple[str, ...]
    """Those from which the fewest other jobs are heard first."""
    ranks: tuple[int, ...]
    since: float
    """Unix seconds of the last message of any of their ranks or launchers."""
    limit: float | None
    """Seconds of silence after which an incident names them; None: silence has no limit."""
    launchers: int
    """Launchers of these hosts, which are silent too."""
    excludable: bool
    """Whether the policy permits to restart without them, and launchers can carry it out with the nodes that remain."""
    command: str
    """Shows whether the first of them is up; where they are, what became of the job's processes there."""
    other_jobs: int
    """Other jobs that are heard from each of these hosts, which shows that they are up; 0: one of them may be down."""
    alternatives: tuple[str, ...]
    """What follows from each answer to the command, a sentence for each; empty: it is plain."""
    notes: tuple[str, ...]
    """Whether the launchers are silent too, what happens by itself, and what a restart without these hosts needs."""

    @property
    def headline(self) -> str:
        """In one line, without a time: ``since`` is beside it."""
        first, more = self.hosts[0], len(self.hosts) - 1
        number = len(self.ranks)
        if self.other_jobs:
            which, nodes = (f"{first} and {more} more", "nodes are") if more else (first, "node is")
            jobs = "1 other job reports" if self.other_jobs == 1 else f"{self.other_jobs} other jobs report"
            subject = f"Rank {self.ranks[0]}" if number == 1 else f"{number} ranks"
            return f"{subject} on {which} silent; the {nodes} up ({jobs})"
        subject, its = (f"Node {first} and {more} more have", "their") if more else (f"Node {first} has", "its")
        ranks = "rank" if number == 1 else f"{number} ranks"
        launchers = f" and {its} {'launcher' if self.launchers == 1 else 'launchers'}" if self.launchers else ""
        verb = "is" if number == 1 and not self.launchers else "are"
        return f"{subject} not been heard; {its} {ranks}{launchers} {verb} silent"

    @property
    def step(self) -> str:
        """What to do first, in a clause."""
        several = len(self.hosts) > 1
        where = f"these {len(self.hosts)} nodes" if several else f"node {self.hosts[0]}"
        verb = "are" if several else "is"
        if self.other_jobs:
            return f"Look at this job's launcher and ranks on {where}, which {verb} up"
        return f"Check whether {where} {verb} up"


def quiet_host(job: Job, now: float, activity: HostActivity | None = None) -> QuietHost | None:
    """The hosts that are quiet while an incident is open that they may have caused; None: there are none.

    Args:
        activity: from which hosts all jobs are heard; None: not known, and any of them may be down.
    """
    incident = job.open_incident
    if incident is None or not _may_explain(job, incident) or liveness.lost(job, now):
        return None
    columns = job.columns
    live_R, quiet_R = live_ranks(columns), quiet_ranks(job, now)
    if not quiet_R.any() or quiet_R[live_R].all():
        return None
    loud = {columns.hosts[rank] for rank in np.flatnonzero(live_R & ~quiet_R)}
    loud |= {n.registration.host for n in job.nodes.values() if not liveness.node_quiet(n, job.last_heard)}
    ranks = [
        rank for rank in np.flatnonzero(quiet_R).tolist() if columns.hosts[rank] and columns.hosts[rank] not in loud
    ]
    hosts = tuple(dict.fromkeys(columns.hosts[rank] for rank in ranks))
    if not hosts or not {culprit.host for culprit in incident.culprits} <= set(hosts):
        return None
    heard = dict.fromkeys(hosts, 0)
    if activity is not None:
        heard = {host: activity.other_jobs(job, host, now) for host in hosts}
    hosts = tuple(sorted(hosts, key=heard.__getitem__))
    other_jobs = heard[hosts[0]]
    if not other_jobs and any(culprit.kind is CulpritClass.HOST_SILENT for culprit in incident.culprits):
        return None
    silence = job.policy.silence_timeout
    limit = None if silence is None else float(silence_limit(columns, silence)[ranks].max())
    silent = [node for node in job.nodes.values() if node.registration.host in hosts]
    since = max([*(node.seen for node in silent), float(_heard(job)[ranks].max())])
    one_of_each = {columns.hosts[rank]: rank for rank in ranks}.values()
    permitted = all(exclusion.permitted(job, rank) is not None for rank in one_of_each)
    left = exclusion.remaining(job, *hosts)
    excludable = permitted and not left.too_few
    obstacle = left.obstacle(hosts[0] if len(hosts) == 1 else f"these {len(hosts)} nodes") if permitted else ""
    command = _processes(job, hosts[0], silent, ranks) if other_jobs else _reach(job, hosts[0])
    there = (node.registration for node in silent if node.registration.host == hosts[0])
    pids = [each.launcher_pid for each in there if each.launcher_pid > 0]
    return QuietHost(
        hosts,
        tuple(ranks),
        since,
        limit,
        launchers=len(silent),
        excludable=excludable,
        command=command,
        other_jobs=other_jobs,
        alternatives=_alternatives(hosts[0], pids, excludable=excludable) if " ps " in command else (),
        notes=tuple(filter(None, (*_notes(job, hosts, launchers=bool(silent)), obstacle))),
    )


def quiet_ranks(job: Job, now: float) -> Bools:
    """The live ranks that were not heard for several reports before the newest message of the job; shape (R,).

    Of a job of which nothing is received at all: those that were quiet before.
    """
    columns = job.columns
    threshold_R = np.fmax(liveness.QUIET_AFTER, SILENT_INTERVALS * report_intervals(columns))
    return live_ranks(columns) & (min(now, job.last_heard) - _heard(job) > threshold_R)


def _heard(job: Job) -> Floats:
    """Unix seconds, shape (R,)."""
    return np.fmax(job.columns.last_heard_R, job.silence_since)


def _alternatives(host: str, launchers: Sequence[int], *, excludable: bool) -> tuple[str, ...]:
    """``launchers``: their known process ids, which the command has too."""
    without = f"restart without {host}"
    stuck = without if excludable else f"look at the storage and the GPUs of {host}"
    again = f"start it again on {host}{f', or {without}' if excludable else ''}"
    gone = (
        *(f"The launcher (PID {pid}) is gone: {again}." for pid in launchers),
        f"{'The launcher is there, its' if launchers else 'The'} ranks are gone or in state Z: restart.",
    )
    return (
        *gone,
        f"One is in state D: {stuck}.",
        "One is in state T: kill -CONT PID, or restart.",
        f"All are in state S or R: check the network from {host} to the monitor.",
    )


def _notes(job: Job, hosts: Sequence[str], *, launchers: bool) -> Iterator[str]:
    first = hosts[0]
    if len(hosts) == 1:
        yield f"The launcher on {first} is silent too." if launchers else f"No launcher is known on {first}."
    if job.policy.observe_only:
        yield "Nothing restarts the ranks by itself (observe_only)."
    elif job.policy.on_hang in (Action.LOG, Action.CAPTURE):
        yield f"Nothing restarts the ranks by itself (on_hang = {job.policy.on_hang})."


def _may_explain(job: Job, incident: Incident) -> bool:
    """Whether nothing was done about the incident yet, and no loss is named that explains it."""
    dead = any(culprit.kind is CulpritClass.DEAD for culprit in incident.culprits)
    return incident.undecided and not incident.elective and not dead and incident.attempt == job.attempt


def _reach(job: Job, host: str) -> str:
    slurm = any(node.registration.facts.get("scheduler") == "slurm" for node in job.nodes.values())
    return host_commands.reach(host, slurm=slurm)


def _processes(job: Job, host: str, launchers: Sequence[Node], ranks: Sequence[int]) -> str:
    """Show what became of the job's launcher and of its ranks on a host."""
    columns = job.columns
    there = [node.registration for node in launchers if node.registration.host == host]
    for each in there:
        if each.facts.get("scheduler") == "kubernetes":
            return host_commands.still_runs(each.facts, host, each.launcher_pid)
    pids = [int(columns.pid_R[rank]) for rank in ranks if columns.hosts[rank] == host][:PROCESSES]
    return host_commands.processes([pid for pid in (*(each.launcher_pid for each in there), *pids) if pid > 0], host)
