"""What other jobs show of a host: whether it is up although one job does not hear it, and which incidents name it.

The indexes over all jobs are made when a job has a quiet host or an open incident, and then kept for :data:`REFRESH`
seconds: in healthy fleets they are never made, and where a host fails that many jobs share, they are made once for all
of them. Shapes: R ranks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from rankwatch.contract.intervals import LAUNCHER_HEARTBEAT_SECONDS
from rankwatch_monitor.core import liveness
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.ranks import SILENT_INTERVALS, live_ranks, report_intervals
from rankwatch_monitor.core.views.host_history import About, HostHistory, about_by_host, host_history, several_hosts

REFRESH: Final = LAUNCHER_HEARTBEAT_SECONDS
"""Seconds for which the index is kept: no launcher is heard more often."""


class HostActivity:
    """Counts the jobs that are heard from a host, and the incidents about it."""

    def __init__(self, jobs: Mapping[str, Job]) -> None:
        """``jobs``: all of a monitor, by id; read anew whenever the index is made."""
        self._jobs = jobs
        self._made_at = -math.inf
        self._ranks: Counter[str] = Counter()
        self._launchers: Counter[str] = Counter()
        self._indexed_at = -math.inf
        self._about: dict[str, list[About]] = {}
        self._several = True

    def other_jobs(self, job: Job, host: str, now: float) -> int:
        """How many jobs besides this one are heard from a host: by their ranks, or by launchers where no rank is.

        Args:
            job: the one in which the host is quiet.
        """
        if not self._made_at <= now < self._made_at + REFRESH:
            self._made_at = now
            jobs = self._jobs.values()
            self._ranks = Counter(host for each in jobs for host in hosts_of_ranks(each, now))
            self._launchers = Counter(host for each in jobs for host in hosts_of_launchers(each, now))
        ranks = self._ranks[host] - (host in hosts_of_ranks(job, self._made_at))
        return ranks or self._launchers[host] - (host in hosts_of_launchers(job, self._made_at))

    def history(self, host: str, fresh: Iterable[Job], now: float) -> HostHistory:
        """The incidents of all jobs about a host.

        Args:
            fresh: jobs whose incidents are read as of now, not from the index.
        """
        if not self._indexed_at <= now < self._indexed_at + REFRESH:
            self._indexed_at, self._about = now, about_by_host(self._jobs.values(), now)
            self._several = several_hosts(self._jobs.values())
        jobs = {job.id: job for job in fresh}
        others = [about for about in self._about.get(host, ()) if about[0].job_id not in jobs]
        about = [*others, *about_by_host(jobs.values(), now).get(host, ())]
        return host_history(host, about, now, compared=self._several)


def history_of(job: Job, host: str, now: float, activity: HostActivity | None) -> HostHistory:
    """The incidents about a host as a job of it shows them; ``activity``: None: only this job's are known."""
    if activity is not None:
        return activity.history(host, [job], now)
    return host_history(host, about_by_host([job], now).get(host, ()), now, compared=several_hosts([job]))


def hosts_of_ranks(job: Job, now: float) -> set[str]:
    """The hosts of which a rank of a job was heard lately; none of a job that is over."""
    if job.ended is not None:
        return set()
    columns = job.columns
    limit_R = np.fmax(liveness.QUIET_AFTER, SILENT_INTERVALS * report_intervals(columns))
    heard_R = live_ranks(columns) & (now - columns.last_heard_R <= limit_R)
    return {columns.hosts[rank] for rank in np.flatnonzero(heard_R).tolist()} - {""}


def hosts_of_launchers(job: Job, now: float) -> set[str]:
    """The hosts of which a launcher of a job was heard lately; none of a job that is over."""
    if job.ended is not None:
        return set()
    heard = (node for node in job.nodes.values() if node.ended is None and not liveness.node_quiet(node, now))
    return {node.registration.host for node in heard}
