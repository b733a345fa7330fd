"""Whether a job is there at all: derived from who spoke last, and how."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from rankwatch.wire.vocabulary import JobState

if TYPE_CHECKING:
    from rankwatch_monitor.core.state import Job


OVER: Final = (JobState.FINISHED, JobState.FAILED, JobState.STOPPED, JobState.LOST)
"""States of a job that does not go on by itself."""


def said_goodbye(job: Job) -> bool:
    """Every rank that has spoken in this attempt shut down by itself."""
    return job.instrumented and bool(np.all(job.columns.ended_R | ~job.columns.seen_R))


def lost(job: Job, now: float) -> bool:
    """Nothing was heard of any rank or launcher for longer than the limit, and nobody had said goodbye."""
    silence = job.policy.silence_timeout
    return silence is not None and now - max(job.last_heard, job.watching_since) > silence and not said_goodbye(job)
