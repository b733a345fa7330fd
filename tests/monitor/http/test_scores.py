"""Scores and stragglers over REST and the live stream, of jobs whose performance was set by hand."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import httpx
import numpy as np
import pytest

from monitor.publish.scored import NOW, scored, straggler
from rankwatch_monitor.app import create_app
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.plain import plain
from rankwatch_monitor.core.views.host_activity import HostActivity
from rankwatch_monitor.http.stream import _events
from rankwatch_monitor.service.monitor import Monitor


class Answers:
    """A monitor whose loop does not run, with one job."""

    def __init__(self, job: Job) -> None:
        self.monitor = Monitor()
        self.monitor.jobs[job.id] = job
        self.app = create_app(self.monitor)

    def get(self, path: str) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(self.app), base_url="http://localhost"
            ) as client:
                return await client.get(f"/api/v1{path}")

        return asyncio.run(ask())

    def read(self, path: str) -> Any:
        answer = self.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()


def test_every_rank_with_all_its_scores() -> None:
    shown = Answers(scored(8, slow=5)).read("/jobs/job/scores")
    assert (shown["at"], shown["reference"], shown["processing_seconds"]) == (NOW - 10.0, "robust", 0.0421)
    assert [row["rank"] for row in shown["ranks"]] == list(range(8))
    row = shown["ranks"][5]
    assert (row["host"], row["gpu_relative"], row["gpu_robust"]) == ("host-1", 0.5, 0.5)
    assert (row["lateness"], row["lateness_share"]) == (0.2, 0.2)
    assert row["sections"]["forward"]["robust"] == 0.55
    assert set(row["sections"]["data"]) == {"relative", "individual", "robust"}
    assert (shown["overall"]["gpu_robust"]["min"], shown["lowest"]["gpu_robust"]) == (0.5, 5)
    [blamed] = shown["stragglers"]
    assert (blamed["rank"], blamed["cause"], blamed["ended"]) == (5, "compute", None)
    assert (shown["finding"]["verdict"], shown["finding"]["ranks"]) == ("worker", [5])
    assert shown["cost_gpu_hours"] == 1.25


def test_what_is_not_known_is_null_and_a_section_that_a_rank_lacks_is_left_out() -> None:
    job = scored(8)
    scores = job.performance.scores
    assert scores is not None
    scores.gpu_relative_R[3], scores.lateness_R[3] = np.nan, np.inf
    for scores_RS in (scores.section_relative_RS, scores.section_individual_RS, scores.section_robust_RS):
        scores_RS[3, 0] = np.nan
    row = Answers(job).read("/jobs/job/scores")["ranks"][3]
    assert (row["gpu_relative"], row["lateness"], row["lateness_share"]) == (None, None, None)
    assert row["gpu_individual"] is not None
    assert set(row["sections"]) == {"forward"}


def test_a_step_that_is_not_known_is_no_division_by_zero() -> None:
    job = scored(4)
    assert job.performance.scores is not None
    job.performance.scores.step_R[:] = 0.0
    assert Answers(job).read("/jobs/job/scores")["ranks"][0]["lateness_share"] is None


def test_the_worst_are_those_that_are_slow_or_waited_for() -> None:
    job = scored(64, slow=5)
    assert job.performance.scores is not None
    job.performance.scores.lateness_R[40] = 0.3
    answers = Answers(job)
    assert {row["rank"] for row in answers.read("/jobs/job/scores?worst=2")["ranks"]} == {5, 40}
    assert len(answers.read("/jobs/job/scores?worst=7")["ranks"]) == 7
    assert len(answers.read("/jobs/job/scores?worst=100000")["ranks"]) == 64
    assert answers.get("/jobs/job/scores?worst=0").status_code == 422


def test_a_job_without_scores_has_none() -> None:
    answers = Answers(Job("job", NOW))
    shown = answers.read("/jobs/job/scores")
    assert (shown["at"], shown["ranks"], shown["stragglers"]) == (None, [], [])
    assert shown["finding"]["verdict"] == "no_step", "it is an hour old, and no rank has reported"
    assert answers.get("/jobs/job/scores/report").text.startswith("There are no scores yet")
    assert answers.read("/jobs/job/stragglers") == {"stragglers": []}


def test_open_stragglers_come_first_sorted_by_cost() -> None:
    job = scored(16)
    job.performance.stragglers += [
        straggler(1, ended=NOW - 90.0, cost=9.0),
        straggler(2, cost=1.0),
        straggler(3, cost=3.0),
        straggler(4, ended=NOW - 5.0),
    ]
    listed = Answers(job).read("/jobs/job/stragglers")["stragglers"]
    assert [each["rank"] for each in listed] == [3, 2, 4, 1]
    assert listed[0]["reason"].endswith("(rank 3)")


def test_the_report_as_text() -> None:
    answers = Answers(scored(8, slow=5))
    answer = answers.get("/jobs/job/scores/report?shown=2")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.text.startswith("GPU relative performance:\n Worst performing 2/8 ranks:\n  Rank=5 Node=host-1")
    assert "STRAGGLERS 1 now" in answers.get("/jobs/job/report").text
    assert answers.get("/jobs/job/scores/report?shown=no").status_code == 422


def test_ranks_have_what_is_known_of_their_scores() -> None:
    job = scored(8, slow=5)
    assert job.performance.scores is not None
    job.performance.scores.gpu_individual_R[5] = np.nan
    rows = Answers(job).read("/jobs/job/ranks")["ranks"]
    assert rows[5]["scores"] == {"gpu_relative": 0.5, "gpu_robust": 0.5, "lateness_share": 0.2}
    assert all(row["scores"] == {} for row in Answers(_without_scores()).read("/jobs/job/ranks")["ranks"])


def _without_scores() -> Job:
    job = scored(4)
    job.performance.scores = None
    return job


@pytest.mark.parametrize("path", ["scores", "scores/report", "stragglers"])
def test_an_unknown_job_is_a_404_with_words(path: str) -> None:
    answer = Answers(scored(1)).get(f"/jobs/nobody/{path}")
    assert answer.status_code == 404
    assert "there is no job 'nobody'" in answer.json()["detail"]


# The live stream ------------------------------------------------------------------------------------------------------


def pictures(job: Job) -> dict[str, Any]:
    return {event: plain(data) for _, event, data in _events(job, NOW, HostActivity({job.id: job}))}


def test_the_stream_reports_performance_with_one_byte_a_rank() -> None:
    job = scored(64, slow=5)
    assert job.performance.scores is not None
    job.performance.scores.gpu_robust_R[6] = np.nan
    job.performance.scores.lateness_R[7] = 5.0
    shown = pictures(job)["performance"]
    assert len(shown["ranks"]) == 10
    assert (shown["open"], [each["rank"] for each in shown["stragglers"]]) == (1, [5])
    robust, lateness = (
        np.frombuffer(base64.b64decode(shown["grid"][name]), np.uint8) for name in ("robust", "lateness")
    )
    assert (len(robust), robust[5], robust[6]) == (64, 100, 255)
    assert (lateness[0], lateness[5], lateness[7]) == (0, 40, 254)


def test_the_stream_is_bounded_however_many_are_slow() -> None:
    job = scored(512)
    job.performance.stragglers += [straggler(rank, cost=float(rank)) for rank in range(200)]
    job.performance.stragglers += [straggler(rank, ended=NOW + rank) for rank in range(300, 400)]
    shown = pictures(job)["performance"]
    assert (shown["open"], len(shown["stragglers"]), shown["stragglers"][0]["rank"]) == (200, 50, 199)
    assert (len(shown["ended"]), shown["ended"][0]["rank"]) == (20, 399)


def test_a_job_without_scores_and_stragglers_reports_none() -> None:
    assert "performance" not in pictures(Job("job", NOW))
