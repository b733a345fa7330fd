"""What Prometheus gets of a job's performance; the rest is judged in ``tests/monitor/service/test_prometheus.py``."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from monitor.publish.scored import NOW, scored, straggler
from rankwatch.wire import prometheus as names
from rankwatch.wire.vocabulary import Cause
from rankwatch_monitor.core.lateness import PARTS
from rankwatch_monitor.core.state import Job
from rankwatch_monitor.publish.prometheus import Own, exposition

Sample = tuple[str, frozenset[tuple[str, str]]]


def published(*jobs: Job) -> bytes:
    return exposition(jobs, Own(0, {}, 0.0, 0, 0), NOW)


def samples(*jobs: Job) -> dict[Sample, float]:
    found = {}
    for family in text_string_to_metric_families(published(*jobs).decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, "Prometheus refuses a series that stands twice"
            found[key] = sample.value
    return found


def value(found: dict[Sample, float], name: str, **labels: str) -> float | None:
    return found.get((f"rankwatch_{name}", frozenset(({"job": "job"} | labels).items())))


def test_scores_over_the_ranks_and_the_worst_by_name() -> None:
    found = samples(scored(512, slow=77))
    assert value(found, "gpu_score", score="relative", aggregation="min") == 0.5
    assert value(found, "gpu_score", score="individual", aggregation="max") == 1.0
    assert value(found, "gpu_score", score="robust", aggregation="median") == pytest.approx(1.0, abs=0.01)
    assert value(found, "rank_gpu_score", rank="77", host="host-19", score="robust") == 0.5
    assert value(found, "rank_lateness_seconds", rank="77", host="host-19") == 0.2
    assert value(found, "scored_ranks", score="relative") == 512
    assert value(found, "step_seconds") == 1.0
    assert value(found, "scoring_seconds") == 0.0421


def test_stragglers_the_verdict_and_the_cost() -> None:
    found = samples(scored(8, slow=5))
    reason = "its kernels take twice as long as those of its peers (rank 5)"
    assert value(found, "straggler", rank="5", host="host-1", cause="compute", reason=reason) == 1.0
    assert value(found, "job_verdict", verdict="worker") == 1.0
    assert value(found, "job_verdict", verdict="healthy") == 0.0
    assert value(found, "straggler_cost_gpu_seconds_total") == 4500.0


def test_what_a_step_went_into_and_where_timings_come_from() -> None:
    job = scored(4)
    job.performance.parts_RP = np.array([[0.1, 0.2, 0.5, 0.2], [0.1, 0.4, 0.5, 0.0], [0.3, 0.3, 0.5, 0.1]])
    job.performance.sources_of = {0: ("cupti", ""), 1: ("cupti", ""), 2: ("none", "no CUPTI here")}
    found = samples(job)
    parts = {part: value(found, "step_part_seconds", part=part) for part in PARTS}
    assert parts == {"data": 0.1, "host": 0.3, "compute": 0.5, "communication": 0.1}
    assert value(found, "kernel_source_ranks", source="cupti") == 2
    assert value(found, "kernel_source_ranks", source="none") == 1


def test_each_family_has_the_labels_of_the_table() -> None:
    job = scored(8, slow=5)
    job.performance.parts_RP = np.full((8, len(PARTS)), 0.25)
    job.performance.sources_of = {0: ("cupti", "")}
    labels = {name: {label for label, _ in given} for name, given in samples(job)}
    for family in (*names.FROM_WINDOWS, names.STRAGGLER_COST, names.JOB_VERDICT):
        assert labels[family.name] == set(family.labels)


def test_the_healthy_twin_has_no_straggler() -> None:
    found = samples(scored(8))
    assert value(found, "job_verdict", verdict="healthy") == 1.0
    assert not [key for key in found if key[0] == "rankwatch_straggler"]


def test_a_job_without_scores_publishes_none() -> None:
    published_names = {name for name, _ in samples(Job("job", NOW))}
    assert not published_names & {"rankwatch_gpu_score", "rankwatch_rank_gpu_score", "rankwatch_step_seconds"}


def test_ranks_without_a_score_are_counted_and_never_nan() -> None:
    job = scored(8)
    assert job.performance.told.scores is not None
    job.performance.told.scores.gpu_relative_R[:7] = np.nan
    job.performance.told.scores.gpu_robust_R[:] = np.nan
    found = samples(job)
    assert (value(found, "scored_ranks", score="relative"), value(found, "scored_ranks", score="robust")) == (1, 0)
    assert value(found, "gpu_score", score="robust", aggregation="min") is None
    assert not [key for key, figure in found.items() if np.isnan(figure)]


def test_series_do_not_grow_with_the_ranks_nor_with_the_stragglers() -> None:
    job = scored(4096, slow=5)
    job.performance.told.stragglers += [straggler(rank) for rank in range(10, 1000)]
    by_name = Counter(name for name, _ in samples(job))
    assert by_name["rankwatch_straggler"] == 100
    assert by_name["rankwatch_rank_gpu_score"] == 15
    assert by_name["rankwatch_rank_lateness_seconds"] == 5


def test_one_rank_told_of_twice_is_one_series() -> None:
    job = scored(8)
    job.performance.told.stragglers += [straggler(3), straggler(3), straggler(3, cause=Cause.DATA)]
    assert Counter(name for name, _ in samples(job))["rankwatch_straggler"] == 2


def test_promtool_finds_nothing_wrong() -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("needs promtool")
    done = subprocess.run(
        [tool, "check", "metrics"], input=published(scored(8, slow=5)), capture_output=True, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
