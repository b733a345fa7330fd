"""The points of a job over time, as columns for charts."""

from __future__ import annotations

from rankwatch.contract.enums import JobState
from rankwatch_monitor.service import trend
from support.windows import Ranks


def test_the_worst_rank_of_a_score_is_kept_with_the_score() -> None:
    ranks = Ranks(8).run(2)
    ranks.kernels({3: 0.6})
    ranks.run(1)
    trend.sample(ranks.job, JobState.RUNNING, ranks.now)
    scores = trend.to_json(ranks.job.trends, 0.0, ranks.now)["scores"]["gpu_robust"]
    assert scores["rank"] == [3.0]
    assert scores["min"][0] < 0.7 < scores["median"][0]
