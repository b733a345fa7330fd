"""Jobs whose performance is known: what the lines above detection would have put there, set by hand."""

from __future__ import annotations

import numpy as np

from rankwatch.contract.enums import Cause, ScoreReference, StragglerVerdict
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.straggler.findings import Finding, Straggler
from rankwatch_monitor.core.straggler.scores import Scores

NOW = 1_000_000.0


def scored(ranks: int = 8, *, slow: int | None = None, sections: tuple[str, ...] = ("data", "forward")) -> Job:
    """A job with scores of every rank; ``slow`` is half as fast as the others, and they wait for it."""
    job = Job("job", NOW - 3600.0, name="gpt")
    job.world_size = ranks
    job.make_room(ranks - 1)
    job.columns.iteration_R[:] = 1204
    for rank in range(ranks):
        job.columns.hosts[rank] = f"host-{rank // 4}"
    scores = Scores.empty(ranks, NOW - 10.0, sections)
    near = np.linspace(0.99, 1.0, ranks)
    scores.gpu_relative_R, scores.gpu_individual_R, scores.gpu_robust_R = near.copy(), near[::-1].copy(), near + 0.005
    spread = np.repeat(near[:, None], len(sections), axis=1)
    scores.section_relative_RS, scores.section_individual_RS = spread.copy(), spread.copy()
    scores.section_robust_RS = spread.copy()
    scores.lateness_R, scores.step_R = np.full(ranks, -0.001), np.full(ranks, 1.0)
    scores.seconds = 0.0421
    performance = job.performance
    performance.scores = scores
    if slow is not None:
        scores.gpu_relative_R[slow] = scores.gpu_robust_R[slow] = 0.5
        scores.section_robust_RS[slow, -1:] = 0.55
        scores.lateness_R[slow] = 0.2
        performance.stragglers.append(straggler(slow))
        job.performance.found = {Cause.COMPUTE: 1}
        performance.findings = (
            Finding(
                StragglerVerdict.WORKER, Cause.COMPUTE, f"rank {slow} makes the others wait", NOW - 600.0, (slow,), 0.2
            ),
        )
        performance.cost_gpu_hours = 1.25
    return job


def straggler(rank: int, *, cost: float = 1.25, ended: float | None = None, cause: Cause = Cause.COMPUTE) -> Straggler:
    """One that has been slow for ten minutes."""
    return Straggler(
        id=f"s{rank}",
        rank=rank,
        host=f"host-{rank // 4}",
        device="0",
        cause=cause,
        reference=ScoreReference.ROBUST,
        reason=f"its kernels take twice as long as those of its peers (rank {rank})",
        since=NOW - 600.0,
        seen=NOW,
        ended=ended,
        score=0.5,
        lateness=0.2,
        share=0.2,
        cost_gpu_hours=cost,
    )
