"""How long ``GET /metrics`` keeps the monitor's loop, for a large job in good health and in trouble; how many series.

The page is made on the loop's own thread, as in the monitor. ``healthy``: every rank has a GPU score, and one is a
straggler. ``hung``: the same, with all ranks past their limit and one of them behind. ``silent``: half of them fell
silent.

Run: python benchmarks/metrics_page.py [--ranks 16384] [--json FILE]     Goal (P9): 0.5 s
"""

from __future__ import annotations

import time
from typing import Final

import numpy as np
from _table import arguments, report, spread

from rankwatch.contract.enums import Cause, ScoreReference, StragglerVerdict
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.events import PolicyChanged, RankIdentity, RankReport
from rankwatch_monitor.core.incident.lifecycle import advance
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.straggler.findings import Finding, Straggler
from rankwatch_monitor.core.straggler.lateness import PARTS
from rankwatch_monitor.core.straggler.scores import Scores
from rankwatch_monitor.publish.prometheus.exposition import Own, exposition

BEGAN: Final = 1_000_000.0
ROUNDS: Final = 20
RANKS_A_NODE: Final = 8


def reported(job: Job, ranks: range, world: int, now: float, *, age: float, behind: int | None = None) -> None:
    """Every rank of ``ranks`` reports at ``now``, in a step for ``age`` seconds; ``behind`` is one step behind."""
    for rank in ranks:
        identity = RankIdentity(
            "job", rank, world_size=world, host=f"node-{rank // RANKS_A_NODE:05d}", pid=4000 + rank, instance=f"i{rank}"
        )
        iteration = 99 if rank == behind else 100
        apply(job, RankReport(identity, iteration=iteration, open_sections={"step": age}), now)


def scored(job: Job, world: int) -> None:
    """Give every rank scores, and make the last one a straggler."""
    scores = Scores.empty(world, BEGAN, ("step", "data"))
    near_R = np.random.default_rng(1).normal(0.98, 0.01, world)
    scores.gpu_relative_R, scores.gpu_individual_R, scores.gpu_robust_R = near_R, near_R.copy(), near_R.copy()
    scores.lateness_R, scores.step_R = np.zeros(world), np.ones(world)
    slow = Straggler(
        id="s1",
        rank=world - 1,
        host="node-last",
        device="0",
        cause=Cause.COMPUTE,
        reference=ScoreReference.ROBUST,
        reason="Its kernels are slow.",
        since=BEGAN,
        seen=BEGAN,
    )
    job.performance.scores = scores
    job.performance.stragglers.append(slow)
    job.performance.findings = (Finding(StragglerVerdict.WORKER, Cause.COMPUTE, slow.reason, BEGAN, (world - 1,)),)
    job.performance.parts_RP = np.full((world, len(PARTS)), 0.25)
    job.performance.sources_of = dict.fromkeys(range(world), ("cupti", ""))


def scene(name: str, world: int) -> tuple[Job, float]:
    """A job as the scene wants it, and the moment to look at it."""
    job, now = Job("job", BEGAN), BEGAN + 1.0
    apply(job, PolicyChanged(job.policy.changed({"section_timeouts": {"step": 30.0}})), now)
    reported(job, range(world), world, now, age=0.1)
    if name == "hung":
        now += 40.0
        reported(job, range(world), world, now, age=40.0, behind=world // 2)
    elif name == "silent":
        for _ in range(14):
            now += 5.0
            reported(job, range(world // 2), world, now, age=0.1)
    scored(job, world)
    for later in (0.0, 0.5):  # a verdict is stated after a moment in which others may speak
        advance(job, now + later)
    return job, now + 0.5


def main() -> None:
    """Measure and print."""
    given = arguments(__doc__ or "", ranks=(16_384, "ranks of the job"))
    rows = {}
    for name in ("healthy", "hung", "silent"):
        job, now = scene(name, given.ranks)
        assert (job.open_incident is None) == (name == "healthy"), f"the scene {name!r} is not what its name states"
        taken, page = [], b""
        for _ in range(ROUNDS):
            started = time.perf_counter()
            page = exposition([job], Own(0, {}, 0.0, 0, 0), now)
            taken.append(time.perf_counter() - started)
        series = sum(1 for line in page.splitlines() if line and not line.startswith(b"#"))
        rows[name] = spread(taken) | {"series": series, "kB": len(page) / 1000}
    report(rows, f"seconds, {given.ranks} ranks", given.json)


if __name__ == "__main__":
    main()
