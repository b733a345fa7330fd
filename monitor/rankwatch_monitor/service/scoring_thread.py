"""Kernel scores of large jobs are made on a thread of their own: nothing that comes in may wait for them."""

from __future__ import annotations

import asyncio
from typing import Final

from rankwatch_monitor.core.effects import Score
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.straggler import scoring
from rankwatch_monitor.core.straggler.kernel_scores import scored

AT_ONCE: Final = 200_000
"""Kernel medians that are scored on the loop's own thread, in a few milliseconds; more are scored on another one."""


def score(job: Job, asked: Score, loop: asyncio.AbstractEventLoop | None) -> None:
    """Score the kernels of a job, and give it the scores when they are there. ``loop``: the one that runs, if any."""
    if asked.median_RK.size <= AT_ONCE or loop is None:
        scoring.take_kernel_scores(job, scored(asked))
        return
    future = loop.run_in_executor(None, scored, asked)
    future.add_done_callback(lambda done: None if done.cancelled() else scoring.take_kernel_scores(job, done.result()))
