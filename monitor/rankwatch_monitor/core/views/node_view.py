"""Nodes over all jobs: every host in one row, and one host with its ranks, devices, launchers and incidents.

A node is a host. Its name is shared by all jobs that run there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rankwatch.contract.enums import JobState, RankState
from rankwatch_monitor.core import liveness
from rankwatch_monitor.core.events import DeviceReading
from rankwatch_monitor.core.incident.lifecycle import verdicts_of
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import Job, Node
from rankwatch_monitor.core.plain import copied
from rankwatch_monitor.core.ranks import Floats
from rankwatch_monitor.core.straggler.findings import Straggler
from rankwatch_monitor.core.views import downtime, job_view, node_verdict, rankings, responses
from rankwatch_monitor.core.views.headline import title
from rankwatch_monitor.core.views.host_activity import HostActivity
from rankwatch_monitor.core.views.host_history import (
    WINDOW,
    NamedAs,
    about_by_host,
    counted,
    host_history,
    several_hosts,
)
from rankwatch_monitor.core.views.named_hosts import incidents_by_host
from rankwatch_monitor.core.views.node_gpus import gpus_of, slow_by_host
from rankwatch_monitor.core.views.quiet_host import quiet_host
from rankwatch_monitor.core.views.stated import stated

NO_RANKS: Final = len(job_view.RANK_STATES)
"""State code of a host that runs no rank now."""
LEGEND: Final = [*(str(state) for state in job_view.RANK_STATES), "no ranks"]
NAMED: Final = frozenset({RankState.DEAD, RankState.HUNG, RankState.SILENT, RankState.SUSPECTED, RankState.STOPPED})
"""States of a host's worst rank of which the jobs are named."""
MOST_HOSTS: Final = 20_000
MOST_RANKS: Final = 256
"""Ranks of one job in the view of a host."""
MOST_INCIDENTS: Final = 50
_URGENT: Final = (
    *(JobState.HUNG, JobState.LOST, JobState.FAILED, JobState.NO_STEP, JobState.SLOW, JobState.SUSPECTED),
    *(JobState.RUNNING, JobState.STOPPING, JobState.RESTARTING),
)
"""As in the list of jobs."""
DIMENSIONS: Final[tuple[responses.Dimension, ...]] = ("data", "tensor", "pipeline", "expert")
"""Of the parallel layout, in the order of :class:`~rankwatch_monitor.core.straggler.peers.Layout`."""


class RunningJob(NamedTuple):
    """The ranks of a job that is not over, at one moment."""

    id: str
    name: str
    hosts: Sequence[str]
    """Of each rank; empty where unknown."""
    codes_R: npt.NDArray[np.uint8]
    """The state of each rank."""


class Glance(NamedTuple):
    """All jobs at one moment, as plain data that another thread may read."""

    jobs: list[RunningJob]
    named: dict[str, int]
    """How many incidents named each host."""
    slow: dict[str, int]
    """How many ranks of each host are slow now; only hosts with any."""
    slow_jobs: dict[str, list[str]]
    """The ids of the jobs of these ranks."""


def glance(jobs: Sequence[Job], now: float) -> Glance:
    """What :func:`rows` is made from: 1 ms for 16,384 ranks."""
    running = [
        RunningJob(job.id, job.name, list(job.columns.hosts), job_view.rank_states(job, verdicts_of(job, now), now))
        for job in jobs
        if job.ended is None and not liveness.all_shut_down(job)
    ]
    live = {job.id for job in running}
    slow = [
        (each.host, job.id) for job in jobs if job.id in live for each in job.performance.open_stragglers if each.host
    ]
    slow_jobs: dict[str, list[str]] = {}
    for host, job_id in dict.fromkeys(slow):
        slow_jobs.setdefault(host, []).append(job_id)
    named = {host: len(found) for host, found in incidents_by_host(jobs).items()}
    return Glance(running, named, dict(Counter(host for host, _ in slow)), slow_jobs)


def rows(seen: Glance) -> responses.NodeMap:
    """Every host in one row: name, state code of its worst rank, ranks, incidents that named it, its jobs.

    Hosts of jobs that are over are left out, unless an incident named them. Jobs are given by their place in ``jobs``.
    """
    worst: dict[str, int] = {}
    worst_jobs: dict[str, list[str]] = {}
    ranks: Counter[str] = Counter()
    places: dict[str, list[int]] = {}
    for place, job in enumerate(seen.jobs):
        for host, code in zip(job.hosts, job.codes_R.tolist(), strict=True):
            if host:
                ranks[host] += 1
                known = worst.get(host)
                if known is None or job_view.SEVERITY[code] > job_view.SEVERITY[known]:
                    worst[host] = code
                    worst_jobs[host] = [job.id]
                elif code == known and worst_jobs[host][-1] != job.id:
                    worst_jobs[host].append(job.id)
        for host in dict.fromkeys(job.hosts):
            if host:
                places.setdefault(host, []).append(place)
    names = [*worst, *(host for host in seen.named if host not in worst)]
    return {
        "legend": LEGEND,
        "jobs": [{"id": job.id, "name": job.name} for job in seen.jobs],
        "total": len(names),
        "slow": seen.slow,
        "slow_jobs": seen.slow_jobs,
        "worst_jobs": {host: found for host, found in worst_jobs.items() if LEGEND[worst[host]] in NAMED},
        "hosts": [
            (host, worst.get(host, NO_RANKS), ranks[host], seen.named.get(host, 0), places.get(host, []))
            for host in names[:MOST_HOSTS]
        ],
    }


def one_node(
    jobs: Iterable[Job], host: str, now: float, activity: HostActivity | None = None
) -> responses.NodeDetail | None:
    """One host: what each job runs there, and the incidents of all jobs that named it; None: no job knows it.

    Args:
        jobs: all that the reader may see.
        activity: from which hosts all jobs are heard; None: not known.
    """
    jobs = list(jobs)
    parts = [part for job in jobs if (part := _of_job(job, host, now, activity)) is not None]
    about = about_by_host(jobs, now).get(host, [])
    if not parts and not about:
        return None
    of_id, named = {job.id: job for job in jobs}, node_verdict.naming(about)
    gpus = gpus_of(host, named, slow_by_host(jobs).get(host, ()), parts, node_verdict.suspected(about, host))
    listed = sorted(about[:MOST_INCIDENTS], key=lambda each: -downtime.began(each[0]))
    known = host_history(host, about, now, compared=several_hosts(jobs))
    history = known if activity is None else activity.history(host, jobs, now)
    todo = node_verdict.todo(jobs, host, parts, about, gpus, history)
    return {
        "host": host,
        "verdict": node_verdict.verdict(host, parts, about, gpus, history),
        "state": node_verdict.state(parts, about, gpus, history),
        "presence": node_verdict.presence(parts).sentence,
        "todo": todo,
        "commands": [] if todo is None else [*todo.here, *todo.anywhere, *todo.drain],
        "of_jobs": node_verdict.of_jobs(jobs, host, about, now, activity),
        "jobs": sorted(parts, key=lambda part: _urgency(part, now)),
        "incidents": [_incident(of_id[each.job_id], each, now, how, activity) for each, how in listed],
        "named_by": len(named),
        "counted": counted(host, about),
        "gpus": [gpu.to_json() for gpu in gpus],
    }


def _of_job(job: Job, host: str, now: float, activity: HostActivity | None) -> responses.NodeJob | None:
    """What a job runs on a host; None: nothing, and it has no launcher there."""
    on_host = [rank for rank, each in enumerate(job.columns.hosts) if each == host]
    launchers = [_launcher(job, name, node, now) for name, node in job.nodes.items() if node.registration.host == host]
    if not on_host and not launchers:
        return None
    slow = {each.rank: each for each in job.performance.open_stragglers}
    rows = job_view.ranks(job, now, worst_first(job, on_host, now)[:MOST_RANKS])
    placed: list[responses.PlacedRank] = [
        {
            **row,
            "straggler": None if (each := slow.get(row["rank"])) is None else _slow_now(each),
            "device": device(job.performance.readings.get(row["rank"]), job.performance.read_at.get(row["rank"])),
            "uuid": job.columns.devices[row["rank"]] or None,
        }
        for row in rows
    ]
    return {
        "job": job.id,
        "verdict": stated(job, now, activity),
        "over": job.ended is not None or liveness.all_shut_down(job),
        "attempt": job.attempt,
        "total_ranks": len(on_host),
        "ranks": placed,
        "launchers": launchers,
    }


def _launcher(job: Job, name: str, node: Node, now: float) -> responses.PlacedLauncher:
    """A launcher, with the time of its last message, and whether those that are due since are missing."""
    silent = job.ended is None and node.ended is None and liveness.node_quiet(node, now)
    return {**job_view.launcher(name, node, now), "silent": silent}


def _urgency(part: responses.NodeJob, now: float) -> tuple[bool, bool, int, bool]:
    """Jobs in trouble first, as in the list of jobs; then those that run, then those that are over.

    A job that failed within :data:`.host_history.WINDOW` is in trouble.
    """
    found = part["verdict"]
    since = found["since"]
    calm = found["tone"] in ("calm", "over") or (part["over"] and since is not None and now - since > WINDOW)
    place = _URGENT.index(found["state"]) if found["state"] in _URGENT else len(_URGENT)
    return calm, calm and part["over"], place, found["open_incidents"] > 0


def worst_first(job: Job, ranks: Sequence[int], now: float) -> list[int]:
    """These ranks: those that the open incident names, then by state, then those that are slow."""
    chosen = np.asarray(ranks, dtype=np.intp)
    codes = job_view.rank_states(job, verdicts_of(job, now), now)[chosen]
    late = lateness_of(job, chosen)
    incident = job.open_incident
    named = incident is not None and incident.attempt == job.attempt
    culprits = [culprit.rank for culprit in incident.culprits] if incident is not None and named else []
    slow = [each.rank for each in job.performance.open_stragglers]
    severity = job_view.SEVERITY[codes].astype(np.int64)
    order = np.lexsort((chosen, -late, ~np.isin(chosen, slow), -severity, ~np.isin(chosen, culprits)))
    return [int(rank) for rank in chosen[order]]


def _slow_now(each: Straggler) -> responses.SlowNow:
    return {**copied(responses.SlowNow, each), "share": each.stated_share}


def lateness_of(job: Job, ranks: npt.NDArray[np.intp]) -> Floats:
    """The share of a step for which the others wait for each of these ranks; 0 where it is not known."""
    late = np.zeros(len(ranks))
    _, share_R = rankings.lateness(job)
    known = ranks < len(share_R)
    late[known] = np.nan_to_num(share_R[ranks[known]])
    return late


def device(reading: DeviceReading | None, at: float | None = None) -> responses.Device | None:
    """A device reading for the API, received ``at`` (unix seconds; None: not known); None: there is none."""
    if reading is None:
        return None
    return {**copied(responses.Device, reading), "at": at}


def _incident(
    job: Job, incident: Incident, now: float, named_as: NamedAs, activity: HostActivity | None
) -> responses.NodeIncident:
    quiet = quiet_host(job, now, activity) if incident is job.open_incident else None
    return {
        "job": incident.job_id,
        "incident": incident.id,
        "kind": incident.kind,
        "opened_at": incident.opened_at,
        "closed_at": incident.closed_at,
        "since": downtime.began(incident),
        "until": downtime.known_until(job, incident, now),
        "headline": title(incident) if quiet is None else quiet.headline,
        "outcome": incident.outcome,
        "named_as": named_as,
    }
