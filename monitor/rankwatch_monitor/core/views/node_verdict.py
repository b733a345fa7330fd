"""What the incidents and ranks of all jobs state about one host, and what a person should do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rankwatch.contract.enums import RankState
from rankwatch_monitor.core import liveness
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views import host_commands
from rankwatch_monitor.core.views.named_hosts import NOT_OF_A_HOST
from rankwatch_monitor.core.views.quiet_host import quiet_host
from rankwatch_monitor.core.views.slow_action import can_exclude

CULPRIT: Final = "culprit"
SUSPECT: Final = "suspect"
QUIET: Final = "quiet"
SLURM_NAME: Final = "slurm_node"
"""Fact of a launcher: what Slurm calls its node."""
OFTEN: Final = 2
"""Jobs in which a host is named, from which on it is suspicious."""


def incidents_about(jobs: Iterable[Job], host: str, now: float) -> list[tuple[Incident, str]]:
    """The incidents of which a host is culprit, suspect or quiet, each with which of these; the newest first."""
    found = []
    for job in jobs:
        quiet = quiet_host(job, now)
        for incident in job.incidents:
            if incident.kind in NOT_OF_A_HOST:
                continue
            if any(culprit.host == host for culprit in incident.culprits):
                found.append((incident, CULPRIT if incident.confirmed else SUSPECT))
            elif incident is job.open_incident and quiet is not None and host in quiet.hosts:
                found.append((incident, QUIET))
    return sorted(found, key=lambda each: -each[0].opened_at)


def verdict(host: str, parts: Sequence[Mapping[str, Any]], about: Sequence[tuple[Incident, str]]) -> str:
    """Whether anything points to the host, in a sentence.

    Args:
        host: its name.
        parts: what each job runs there, as in the view of a node.
        about: the incidents about it, of :func:`incidents_about`.
    """
    named = len({incident.job_id for incident, _ in about})
    silent, slow = sum(map(_silent, parts)), sum(map(_slow, parts))
    total = max(len(parts), named)
    counted = [("was named in", named), ("is silent in", silent), ("has a slow rank in", slow)]
    found = [f"{what} {number}" for what, number in counted if number]
    if not found:
        return "Nothing points to a fault of this node."
    found[0] += f" of {total} job{'' if total == 1 else 's'}"
    alone = "; one job alone is no sign of a fault of the node" if named + slow == 1 else ""
    todo = ": check it before anything else" if named >= OFTEN or silent else alone
    return f"{host} {', '.join(found)}{todo}."


def suspicious(parts: Sequence[Mapping[str, Any]], about: Sequence[tuple[Incident, str]]) -> bool:
    """Whether the host should be checked."""
    return bool(about) or any(map(_silent, parts)) or any(map(_slow, parts))


def commands(jobs: Iterable[Job], host: str) -> list[str]:
    """What to run to check the host, and, where its jobs run under Slurm, to give it no further jobs."""
    names = (
        node.registration.facts.get(SLURM_NAME)
        for job in jobs
        for node in job.nodes.values()
        if node.registration.host == host
    )
    slurm = next(filter(None, names), None)
    return [host_commands.reach(host), *([] if slurm is None else [host_commands.drain(slurm)])]


def exclusion(jobs: Iterable[Job], about: Sequence[tuple[Incident, str]], host: str) -> dict[str, Any] | None:
    """A job with an open incident about the host that can be restarted without it; None: there is none."""
    open_in = [incident.job_id for incident, _ in about if incident.open]
    for job in jobs:
        if job.id in open_in and job.ended is None and not liveness.all_shut_down(job):
            rank = next((rank for rank, each in enumerate(job.columns.hosts) if each == host), None)
            if rank is not None and can_exclude(job, rank):
                return {"job": job.id, "name": job.name, "ranks": [rank]}
    return None


def _silent(part: Mapping[str, Any]) -> bool:
    """Whether nothing is received of what a job that is not over runs there."""
    if part["over"]:
        return False
    ranks = bool(part["ranks"]) and all(row["state"] == RankState.SILENT for row in part["ranks"])
    return ranks or any(each["silent"] for each in part["launchers"])


def _slow(part: Mapping[str, Any]) -> bool:
    return not part["over"] and any(row["straggler"] is not None for row in part["ranks"])
