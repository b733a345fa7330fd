"""How much of a report or claim is accepted when all of it would exceed the limits on ranks and section names."""

from __future__ import annotations

from collections.abc import Mapping

from rankwatch.contract.messages import NodeObservation, ProcessEvent
from rankwatch_monitor.core.events import JobEvent, RankReport
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.ingest.limits import Limits


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


def limit_sections(job: Job, report: RankReport, limit: int) -> tuple[RankReport, int]:
    """The report without the new section names for which a job of ``limit`` has no room, and how many were dropped."""
    known, reported = set(job.columns.sections), report.open_sections or {}
    room = max(0, limit - len(known))
    accepted = known.union([name for name in reported if name not in known][:room])
    kept = {name: age for name, age in reported.items() if name in accepted}
    return report._replace(open_sections=kept), len(reported) - len(kept)
