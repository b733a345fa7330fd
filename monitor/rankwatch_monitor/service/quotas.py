"""How much of a report or claim is accepted when all of it would exceed the limits on ranks and section names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from rankwatch.contract.messages import NodeObservation, NodeRegistration, ProcessEvent
from rankwatch_monitor.core.events import JobEvent, RankReport
from rankwatch_monitor.core.job import LAUNCHER_BYTES, Job, registration_bytes
from rankwatch_monitor.ingest.limits import Limits

_MINUTE: Final = 60.0
SECTIONS_AT_ONCE: Final = 32
_RANKS_AT_ONCE: Final = 64
_NAMES_A_RANK: Final = 4
_MOST_KEPT: Final = 4_000
"""Jobs and tokens whose evidence is counted, before those of more than a minute ago are forgotten."""


def claimed_ranks(event: JobEvent) -> int:
    """The number of ranks that a job needs for an event: the claimed world size, or the highest rank plus one."""
    match event:
        case RankReport(identity=identity):
            return max(identity.rank + 1, identity.world_size)
        case ProcessEvent(rank=rank, world_size=world):
            return max(-1 if rank is None else rank, (world or 0) - 1) + 1
        case NodeObservation(ranks=ranks):
            return max((seen.rank for seen in ranks), default=-1) + 1
        case _:
            return 0


def over_rank_limit(jobs: Mapping[str, Job], job_id: str, ranks: int, limits: Limits) -> str:
    """Why a job cannot have this many ranks beside all other jobs; empty when it can.

    A claim costs the sender a few bytes and the monitor 200 bytes a rank, whether or not that rank ever reports.
    """
    others = sum(len(job.columns) for job in jobs.values() if job.id != job_id)
    if others + ranks <= limits.ranks:
        return ""
    return (
        f"job {job_id!r} is rejected with {ranks} ranks: together with the {others} ranks of other jobs that exceeds "
        f"the limit of {limits.ranks}"
    )


class LauncherBytes:
    """What the launchers of each job take, added up anew only when they have changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, int], int]] = {}

    def of(self, job: Job) -> int:
        """Bytes of one job."""
        version = job.nodes_version, len(job.nodes)
        if (known := self._known.get(job.id)) is None or known[0] != version:
            known = self._known[job.id] = version, sum(node.size for node in job.nodes.values())
        return known[1]

    def forget(self, job_id: str) -> None:
        """Remove a dropped job."""
        self._known.pop(job_id, None)

    def over_limit(
        self,
        jobs: Mapping[str, Job],
        job_id: str,
        registration: NodeRegistration,
        limits: Limits,
        covers: Callable[[str], bool] | None,
    ) -> tuple[str, bool]:
        """Why a registration cannot be taken, empty if it can; and whether the end of other jobs would make room.

        ``covers``: the jobs of the sender's token; None: all.
        """
        job = jobs.get(job_id)
        known = job.nodes.get(registration.node) if job is not None else None
        added = LAUNCHER_BYTES + registration_bytes(registration) - (known.size if known is not None else 0)
        if added <= 0:
            return "", False
        held = self.of(job) if job is not None else 0
        if held + added > limits.launcher_bytes_per_job:
            return f"the launchers of job {job_id!r} take {held} bytes: {added} more exceed the limit of a job", False
        if covers is not None:
            mine = sum(self.of(each) for each in jobs.values() if covers(each.id))
            if mine + added > limits.launcher_bytes_per_token:
                return f"the launchers of this token's jobs take {mine} bytes: {added} more exceed its limit", False
        total = sum(self.of(each) for each in jobs.values())
        if total + added > limits.launcher_bytes:
            return f"the launchers of all jobs take {total} bytes: {added} more exceed the limit", True
        return "", False


class EvidenceQuota:
    """How much evidence a job, and a token that is bound to jobs, may send: 1 MB costs 0.05 s of CPU.

    A minute's worth may come at once and is given back evenly. It grows with the launchers: a rank's stack of 64 frames
    has 8 kB, so a node of 8 ranks sends 64 kB each time its ranks are looked at, and may eight times in a minute. In a
    job of 100,000 ranks one look at all of them is 0.8 GB of the 6.6 GB that its 12,500 launchers have.
    """

    def __init__(self) -> None:
        self._taken: dict[tuple[str, str], tuple[float, float]] = {}
        """By job, and by name of a token: bytes not given back yet, and when that was so."""

    def take(
        self,
        jobs: Mapping[str, Job],
        job_id: str,
        size: int,
        limits: Limits,
        now: float,
        token: str,
        covers: Callable[[str], bool] | None,
    ) -> float:
        """Seconds until so many bytes can be taken; 0: they are. ``covers``: the jobs of the token, None: all.

        Of a job that there is not nothing is kept, since a sender can name any number of them.
        """
        launchers = {("job", job_id): len(jobs[job_id].nodes)} if job_id in jobs else {}
        if covers is not None:
            launchers["token", token] = sum(len(job.nodes) for job in jobs.values() if covers(job.id))
        taken, waits = {}, 0.0
        for key, count in launchers.items():
            room = limits.evidence_bytes + count * limits.evidence_bytes_per_launcher
            before, at = self._taken.get(key, (0.0, now))
            held = max(0.0, before - room * (now - at) / _MINUTE) + size
            taken[key] = held, now
            waits = max(waits, (held - room) / room * _MINUTE)
        if waits > 0.0:
            return waits
        self._taken |= taken
        if len(self._taken) > _MOST_KEPT:
            self._taken = {key: (held, at) for key, (held, at) in self._taken.items() if now - at < _MINUTE}
        return 0.0

    def give_back(self, job_id: str, size: int, token: str) -> None:
        """Bytes that were announced and did not arrive."""
        for key in (("job", job_id), ("token", token)):
            if key in self._taken:
                held, at = self._taken[key]
                self._taken[key] = max(0.0, held - size), at


def section_limit(job: Job, most: int, ranks: int = 0) -> int:
    """How many section names a job of ``ranks`` has room for: ``most`` of them, if it has as many as it claims.

    A column costs the monitor 9 bytes for each rank that was claimed, whether or not it ever reports.
    """
    reported = int(np.count_nonzero(job.columns.reported_R))
    cells = _NAMES_A_RANK * most * (reported + _RANKS_AT_ONCE)
    return min(most, max(SECTIONS_AT_ONCE, cells // max(1, ranks, len(job.columns))))


def limit_sections(job: Job, report: RankReport, limit: int) -> tuple[RankReport, int]:
    """The report without the new section names for which a job of ``limit`` has no room, and how many were dropped."""
    known, reported = set(job.columns.sections), report.open_sections or {}
    room = max(0, limit - len(known))
    accepted = known.union([name for name in reported if name not in known][:room])
    kept = {name: age for name, age in reported.items() if name in accepted}
    return report._replace(open_sections=kept), len(reported) - len(kept)
