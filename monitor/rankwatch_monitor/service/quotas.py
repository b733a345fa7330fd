"""What of a report is taken where all of it would be more than a job may hold."""

from __future__ import annotations

from collections.abc import Mapping

from rankwatch.contract.messages import NodeObservation, ProcessEvent
from rankwatch_monitor.core.events import JobEvent, RankReport
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.ingest.limits import Limits


def ranks_told(event: JobEvent) -> int:
    """How many ranks a job must have for what is said of it: the world that is claimed, or the highest rank's."""
    match event:
        case RankReport(identity=who):
            return max(who.rank + 1, who.world_size)
        case ProcessEvent(rank=rank, world_size=world):
            return max(-1 if rank is None else rank, (world or 0) - 1) + 1
        case NodeObservation(ranks=ranks):
            return max((seen.rank for seen in ranks), default=-1) + 1
        case _:
            return 0


def too_many_ranks(jobs: Mapping[str, Job], job_id: str, ranks: int, limits: Limits) -> str:
    """Why a job cannot have so many ranks beside all others; empty when it can.

    A claim costs the sender a few bytes and the monitor 200 for each rank, whether or not that rank ever speaks.
    """
    others = sum(len(job.columns) for job in jobs.values() if job.id != job_id)
    if others + ranks <= limits.ranks:
        return ""
    return (
        f"job {job_id!r} is not taken with {ranks} ranks: together with the {others} of other jobs that would be above "
        f"the limit of {limits.ranks}"
    )


def without_new_sections(job: Job, report: RankReport, most: int) -> tuple[RankReport, int]:
    """The report with no more new section names than a job of ``most`` has room for, and how many it lost."""
    known, told = set(job.columns.sections), report.open_sections or {}
    room = max(0, most - len(known))
    taken = known.union([name for name in told if name not in known][:room])
    kept = {name: age for name, age in told.items() if name in taken}
    return report._replace(open_sections=kept), len(told) - len(kept)
