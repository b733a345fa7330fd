"""A job that is over lets go what only a running one needs, and tells the same as before; measured in bytes."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

from rankwatch.contract.statistics import CollectiveWindow, KernelStatistics, SectionWindow
from rankwatch_monitor.core import goodput_accounting
from rankwatch_monitor.core.events import RankIdentity, RankReport, WindowReport
from rankwatch_monitor.core.liveness import COMPACT_AFTER
from rankwatch_monitor.core.regression.trends import Selection
from rankwatch_monitor.core.straggler.lateness import PARTS
from rankwatch_monitor.core.views import rankings, verdict
from rankwatch_monitor.publish.text.scores_report import scores_text
from rankwatch_monitor.service import trend
from rankwatch_monitor.service.monitor import Clock, Monitor

RANKS, WINDOWS, KERNELS = 16, 40, 60


class Moved(Clock):
    def __init__(self) -> None:
        self.at = 1_700_000_000.0

    def now(self) -> float:
        return self.at


def report(rank: int, iteration: int, ended: bool = False) -> RankReport:
    identity = RankIdentity("j", rank, "gpt", world_size=RANKS, attempt=1, host=f"n{rank // 8}", instance=f"j/{rank}")
    seconds = 0.1 * (1 + (7 * rank + 3 * iteration) % 11 / 100)
    sections = {name: SectionWindow(8, seconds, seconds, seconds, seconds) for name in ("step", "forward", "backward")}
    group = {"dp": CollectiveWindow(4, seconds, seconds, seconds)}
    window = WindowReport(8 * iteration, 8, sections, dict.fromkeys(PARTS, seconds), group)
    kernel = KernelStatistics(9, seconds, seconds, seconds, seconds, seconds, 0.0)
    kernels = {f"gemm<{n}>": kernel for n in range(KERNELS)} if iteration % 8 == 1 else None
    reported = {"iteration": 8 * iteration, "open_sections": {}, "idle": 0.0, "ended": ended}
    return RankReport(identity, **reported, kernels=kernels, window=None if ended else window)  # type: ignore[arg-type]


class Stage:
    """A job that has run for some minutes and has ended just now."""

    def __init__(self) -> None:
        self.clock = Moved()
        self.monitor = Monitor(clock=self.clock)
        for iteration in range(1, WINDOWS):
            self.receive(iteration)
            for _ in range(4):
                self.later(2.5)
        self.receive(WINDOWS, ended=True)
        self.later(1.0)
        self.job = self.monitor.jobs["j"]

    def receive(self, iteration: int, *, ended: bool = False) -> None:
        assert not self.monitor.ingest([report(rank, iteration, ended) for rank in range(RANKS)])

    def later(self, seconds: float) -> None:
        self.clock.at += seconds
        self.monitor.tick()

    def reported(self, now: float) -> dict[str, Any]:
        """What page, report and API show of it."""
        job = self.job
        return {
            "state": verdict.job_state(job, now),
            "history": job.performance.history.window(),
            "scores": rankings.score_table(job, now),
            "score report": scores_text(job, now, None),
            "goodput": (goodput_accounting.ratio(job), job.ledger.to_json()["settled"]),
            "trends": trend.to_json(job.trends, Selection(0.0, now)),
            "ranks": [dict(job.columns.open_sections(rank, now)) for rank in range(RANKS)],
            "incidents": [incident.to_json() for incident in job.incidents],
        }


def test_what_is_shown_of_a_job_that_rests_is_what_it_was() -> None:
    stage = Stage()
    at = stage.clock.at
    before = stage.reported(at)
    assert before["history"]
    assert before["scores"]
    stage.later(COMPACT_AFTER / 2)
    assert stage.job.performance.kernels.names, "somebody may start it again at once"
    stage.later(COMPACT_AFTER)
    assert not stage.job.performance.kernels.names
    assert not stage.job.performance.history._short.open
    assert stage.reported(at) == before


def test_one_that_is_launched_again_is_judged_as_ever() -> None:
    stage = Stage()
    stage.later(2 * COMPACT_AFTER)
    judged = stage.job.performance.judged
    windows = len(stage.job.performance.history.window())
    for iteration in range(WINDOWS + 1, WINDOWS + 12):
        stage.receive(iteration)
        for _ in range(4):
            stage.later(2.5)
    assert stage.job.performance.judged > judged
    assert len(stage.job.performance.history.window()) > windows
    assert len(stage.job.performance.kernels.names) == KERNELS
    scores = stage.job.performance.scores
    assert scores is not None
    assert (scores.gpu_relative_R > 0.5).all()


def test_a_job_that_rests_takes_less_memory_and_no_more_with_time() -> None:
    tracemalloc.start()
    try:
        stage = Stage()
        sizes = []
        for _ in range(3):
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
            for _ in range(30):
                stage.later(2 * COMPACT_AFTER / 30)
    finally:
        tracemalloc.stop()
    awake, rested, later = sizes
    assert awake - rested > 60_000, "kernels and history"
    assert later - rested < 2_000


def test_nothing_is_added_to_the_trends_of_a_job_that_is_over() -> None:
    stage = Stage()
    points = stage.job.trends.window(0.0, stage.clock.at)
    assert points
    stage.later(100 * trend.INTERVAL)
    assert stage.job.trends.window(0.0, stage.clock.at) == points
