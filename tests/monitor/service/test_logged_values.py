"""What a script logs comes to the trends and to Prometheus: from OTLP, and from the two ranks of a real job."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from support.monitor_process import Api
from support.otlp import attributes, body, rank_report
from support.waiting import wait_for

RANK = """
import sys, time, rankwatch
rank, monitor, job = int(sys.argv[1]), sys.argv[2], sys.argv[3]
rankwatch.init(monitor=monitor, job_id=job, rank=rank, world_size=2, export_interval=0.2)
for i in range(10_000):
    with rankwatch.step():
        time.sleep(0.02)
    rankwatch.log({"loss": 2.0 + rank, "tokens_per_second": 1.2e5, "bad": float("nan"), "text": "x"}, step=i)
    if rank == 1:
        rankwatch.log({"of_the_last_stage": 0.5})
"""


def logging_report(job: str, rank: int, step: int | None = None, **values: float) -> ResourceMetrics:
    report = rank_report(job, rank, beats=1)
    scope = report.scope_metrics[0]
    metric = scope.metrics.add(name="rankwatch.training.scalar", unit="1")
    for name, value in values.items():
        metric.gauge.data_points.add(as_double=value).attributes.extend(attributes({"rankwatch.scalar": name}))
    if step is not None:
        scope.metrics.add(name="rankwatch.training.scalar.step").gauge.data_points.add(as_int=step)
    return report


def test_values_of_otlp_stand_in_the_trends_and_in_prometheus(api: Api, job: str) -> None:
    reports = [logging_report(job, 0, step=17, loss=2.5), logging_report(job, 3, loss=9.0, mfu=0.41)]
    api.report(*reports)
    trends = wait_for(lambda: (found := api.read(f"/jobs/{job}/trends"))["logged"] and found, "a point with them")
    assert (trends["logged"], trends["iteration"]) == ({"loss": [2.5], "mfu": [0.41]}, [17])
    assert f'rankwatch_job_logged_value{{job="{job}",name="loss"}} 2.5' in api.get("/metrics").text


def test_values_that_were_not_finite_stand_in_the_trends(api: Api, job: str) -> None:
    """All of them: the chart of a name that never was finite is there too."""
    report = rank_report(job, 0, beats=1)
    points = report.scope_metrics[0].metrics.add(name="rankwatch.training.scalar.non_finite", unit="1").sum.data_points
    points.add(as_int=3).attributes.extend(attributes({"rankwatch.scalar": "loss"}))
    api.report(report)
    trends = wait_for(lambda: (found := api.read(f"/jobs/{job}/trends"))["non_finite"] and found, "a point with them")
    assert (trends["non_finite"]["loss"][0], trends["logged"]["loss"][0]) == (3.0, None)
    assert f'rankwatch_job_logged_non_finite_total{{job="{job}",name="loss"}} 3.0' in api.get("/metrics").text


def test_the_same_scope_again_has_its_new_values(api: Api, job: str) -> None:
    """Reports of one shape are read by their layout, which must not cover these."""
    for i in range(50):
        report = logging_report(job, 0, loss=float(i))
        api.report(report)
    assert f'rankwatch_job_logged_value{{job="{job}",name="loss"}} 49.0' in api.get("/metrics").text


@pytest.mark.parametrize("values", [{"loss": float("nan")}, {"loss": float("inf")}, {"": 1.0}, {"a\nb": 1.0}])
def test_invalid_points_are_rejected_by_name(api: Api, job: str, values: dict[str, float]) -> None:
    answer = api.export(body(logging_report(job, 0, **values)))
    assert answer.status_code == 200
    assert "rankwatch.training.scalar" in answer.text
    assert f'rankwatch_job_logged_value{{job="{job}"' not in api.get("/metrics").text


def test_names_of_a_job_are_bounded(api: Api, job: str) -> None:
    for start in (0, 20, 40):
        values = {f"name{start + i}": 1.0 for i in range(20)}
        report = logging_report(job, 0, **values)
        api.report(report)
    assert api.get("/metrics").text.count(f'rankwatch_job_logged_value{{job="{job}"') == 32


def test_two_real_ranks_are_read_as_one_job(api: Api, job: str) -> None:
    command = [sys.executable, "-c", RANK]
    ranks = [subprocess.Popen([*command, str(rank), str(api.base_url), job]) for rank in range(2)]
    try:
        expected = {"loss", "tokens_per_second", "of_the_last_stage"}
        trends = wait_for(
            lambda: (
                api.get(f"/api/v1/jobs/{job}").status_code == 200
                and (found := api.read(f"/jobs/{job}/trends"))["logged"].keys() >= expected
                and found["logged"]["loss"][-1] == 2.0  # until rank 0 reports, it is that of rank 1
                and found["logged"]["of_the_last_stage"][-1] is not None  # which rank 1 logs alone
                and found
            ),
            "a point with all values",
            90,
        )
        last = {name: values[-1] for name, values in trends["logged"].items()}
        assert last == {"loss": 2.0, "tokens_per_second": 120_000.0, "of_the_last_stage": 0.5, "bad": None}
        assert sum(count or 0 for count in trends["non_finite"]["bad"]) > 0
        assert trends["iteration"][-1] > 0
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
