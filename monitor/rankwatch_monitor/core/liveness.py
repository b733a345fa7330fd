"""Whether a job is there at all: derived from who spoke last, and how."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from rankwatch.contract.enums import JobState
from rankwatch_monitor.core.hang.detect import SILENT_INTERVALS

if TYPE_CHECKING:
    from rankwatch_monitor.core.job import Job


TERMINAL_STATES: Final = (JobState.FINISHED, JobState.FAILED, JobState.STOPPED, JobState.LOST)
"""States of a job that does not go on by itself."""

COMPACT_AFTER: Final = 300.0
"""Seconds of silence after which a job that is over lets go what only a running one needs."""


def may_compact(job: Job, state: JobState, now: float) -> bool:
    """Whether a job is over and nobody has spoken of it for minutes."""
    return state in TERMINAL_STATES and now - job.last_heard > COMPACT_AFTER


def all_shut_down(job: Job) -> bool:
    """Every rank that has spoken in this attempt shut down by itself."""
    return job.instrumented and bool(np.all(job.columns.shut_down_R | ~job.columns.reported_R))


def lost(job: Job, now: float) -> bool:
    """Nothing was heard of any rank or launcher for longer than the limit, and nobody had said goodbye."""
    limit, silence = job.policy.silence_timeout, now - max(job.last_heard, job.silence_baseline)
    if limit is None or silence <= limit or all_shut_down(job):
        return False
    gaps = job.columns.report_interval_R[job.columns.reported_R]
    return not len(gaps) or silence > SILENT_INTERVALS * float(np.median(np.nan_to_num(gaps)))
