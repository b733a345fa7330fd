"""Goodput as people are shown it, and what stands beside it: the waiting for slow ranks, steps that may be lost yet.

Waiting for a slow rank is no useful time: where ranks waited, the figure shown is the one after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rankwatch.cli.formatting import count, percent, ranks
from rankwatch.contract.enums import RESTARTS, JobState
from rankwatch_monitor.core import goodput_accounting
from rankwatch_monitor.core.goodput.intervals import Bucket
from rankwatch_monitor.core.incident_record import Phase
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views.job_verdict import steps_per_second

NAMED: Final = 3
"""Runs of slow ranks that are named."""
_STANDS: Final = (JobState.RESTARTING, JobState.FAILED, JobState.STOPPED, JobState.LOST)
"""States in which the ranks go on from a checkpoint, if at all."""
_OVER: Final = (JobState.FAILED, JobState.STOPPED)
"""Of these, those in which no step follows."""


def waited_for(job: Job) -> str:
    """``rank 21``, ``ranks 5, 7``: those for which the others waited; empty: they did not."""
    slow = sorted({each.rank for each in job.performance.stragglers if each.cost_gpu_hours})
    if not slow:
        return "slow ranks" if goodput_accounting.spent(job)[Bucket.WAITING] else ""
    return f"rank{'' if len(slow) == 1 else 's'} {ranks(slow, NAMED)}"


def stands(job: Job, state: JobState, now: float) -> bool:
    """Whether a job goes on from a checkpoint, if at all, or completes no step for a fault, suspected or certain."""
    if state in _STANDS:
        return True
    incident = job.open_incident
    return incident is not None and not incident.elective and steps_per_second(job, now) == 0


def steps_at_risk(job: Job, state: JobState, now: float) -> int | None:
    """Of a job that stands: the steps after its last checkpoint, which its next attempt may have to repeat."""
    return goodput_accounting.steps_at_risk(job) if stands(job, state, now) else None


def steps_lost(job: Job, state: JobState) -> int | None:
    """Of a job that stands: the steps that were thrown away and not done again. None: it does not stand."""
    return goodput_accounting.lost_steps(job) if state in _STANDS else None


def unsaved(job: Job) -> int:
    """Steps of a finished job that no known save may hold; 0: the last step may be saved, or no checkpoint is known."""
    checkpoint, last = job.ledger.checkpoint, job.ledger.reached
    if checkpoint is None or checkpoint.iteration < 0 or checkpoint.latest >= last:
        return 0
    return last - checkpoint.iteration


def without_save(job: Job) -> str:
    """``up to 29 steps without a known save``, of a finished job; empty: there are none."""
    steps = unsaved(job)
    return f"{'up to ' if steps > 1 else ''}{count(steps, 'step')} without a known save" if steps else ""


def risk(job: Job, state: JobState, now: float) -> str:
    """``up to 41 steps at risk``, ``14 steps unsaved``; empty: the job makes progress, or its last step is saved.

    Steps are at risk until a restart is under way or the job ends. An attempt that loaded the checkpoint shows how
    many; before that it is the most that they can be.
    """
    if not stands(job, state, now):
        return ""
    checkpoint = job.ledger.checkpoint
    fate = "unsaved" if state in _OVER else "lost by this restart" if restarting(job) else "at risk"
    if checkpoint is None:
        return f"all steps since the start {fate}"
    if state is JobState.STOPPED and checkpoint.latest >= job.ledger.reached:
        return ""  # the ranks have saved and left: the last report has their last steps and the save
    steps = goodput_accounting.steps_at_risk(job)
    return f"{'' if checkpoint.loaded else 'up to '}{count(steps, 'step')} {fate}" if steps else ""


def restarting(job: Job) -> bool:
    """Whether the ranks of an open incident are being restarted, or were and have completed no step since."""
    incident = job.open_incident
    if incident is None or incident.phase not in (Phase.ACTING, Phase.RECOVERING):
        return False
    return incident.action in RESTARTS


def waiting(job: Job) -> str:
    """``13.4 % lost waiting for rank 21``; empty: the ranks did not wait."""
    spent = goodput_accounting.spent(job)
    waited = spent[Bucket.WAITING]
    return f"{percent(waited / sum(spent.values()))} lost waiting for {waited_for(job)}" if waited else ""


def notes(job: Job, state: JobState, now: float) -> Sequence[str]:
    """:func:`waiting`, then :func:`risk`, or of a finished job :func:`without_save`."""
    waited = waiting(job)
    last = without_save(job) if state is JobState.FINISHED else risk(job, state, now)
    return [
        *([waited] if waited else []),
        *([last] if last else []),
    ]
