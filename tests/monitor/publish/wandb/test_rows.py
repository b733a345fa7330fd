"""Names, tables and alerts, without W&B."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from monitor.core.scene import Scene
from monitor.publish.scored import NOW, scored, straggler
from rankwatch.contract.enums import JobState
from rankwatch_monitor.core.job import Ending
from rankwatch_monitor.publish.snapshot import snapshot
from rankwatch_monitor.publish.wandb import rows


def test_every_number_is_documented() -> None:
    job = scored(slow=2)
    row = rows.row(snapshot(job, NOW)) | dict.fromkeys(rows.tables(snapshot(job, NOW)), 0.0)
    row |= {"rankwatch/iteration": 1.0, "rankwatch/goodput": 1.0, "rankwatch/step_seconds": 1.0}
    row |= {"rankwatch/steps_per_second": 1.0}
    names = {re.sub(r"section/[^/]+/\w+", "section/NAME/relative", re.sub(r"_(min|median|max)$", "", n)) for n in row}
    assert names == {m.name.removesuffix("_max") for m in rows.METRICS}


def test_incidents_and_stragglers_that_were_over_before_are_no_news() -> None:
    job = scored()
    job.performance.stragglers = [straggler(1, ended=NOW - 100), straggler(2, ended=NOW - 1), straggler(3)]
    reported = {alert.id: alert.current for alert in rows.alerts(snapshot(job, NOW), since=NOW - 50)}
    assert reported == {"s1": False, "s2": True, "s3": True}


def test_titles_fit_into_what_wandb_takes() -> None:
    job = scored(slow=2)
    job.name = "n" * 300
    (alert,) = rows.alerts(snapshot(job, NOW), since=0)
    assert alert.title.startswith("rank 2 is slow: compute (nnn")
    assert len(alert.title) < 64


def test_an_alert_links_to_its_incident() -> None:
    scene = Scene(on_hang="log").run(10).hang(2).until_found()
    scene.run(10)
    (alert,) = rows.alerts(snapshot(scene.job, scene.now), 0, "https://monitor.example/")
    reason, action, link = alert.text.split("\n")
    assert link == f"https://monitor.example/#/jobs/job/incidents/{scene.incident.id}"
    assert (reason, action) == (scene.incident.reason, "action: none, only recorded; the policy only records")
    assert alert.title == "section over its limit, rank 2 (gpt)"


def test_few_numbers_are_logged_unless_all_are_wanted() -> None:
    taken = snapshot(scored(slow=2), NOW)
    few = rows.row(taken, rows.CURATED)
    assert len(few) < 17 < len(rows.row(taken, rows.ALL))
    spreads = {f"rankwatch/gpu_{s}_{p}" for s in ("relative", "individual") for p in ("min", "median", "max")}
    assert spreads <= few.keys()
    assert few["rankwatch/gpu_robust_min"] == 0.5
    assert few["rankwatch/lateness_max"] == 0.2


@pytest.mark.parametrize(("source", "word"), [("kineto-cpu", "cpu"), ("cupti", "gpu"), ("none", "gpu")])
def test_scores_of_the_cpu_are_not_called_gpu_scores(source: str, word: str) -> None:
    job = scored(slow=2)
    job.performance.sources_of = {0: (source, ""), 1: ("none", "no torch")}
    taken = snapshot(job, NOW)
    names = [*rows.row(taken), *(column for table in rows.tables(taken).values() for column in table.columns)]
    assert {each for each in ("cpu", "gpu") if any(each in name for name in names)} == {word}


def test_a_job_without_progress_has_speed_zero_and_no_time_of_a_step() -> None:
    job = scored()
    job.last_heard = NOW
    job.columns.reported_R[:] = True
    assert rows.row(snapshot(job, NOW))["rankwatch/step_seconds"] == 1.0
    job.ended = Ending(JobState.FAILED, "rank 1 exited with code 1", NOW)
    taken = snapshot(job, NOW)
    assert rows.row(taken)["rankwatch/steps_per_second"] == 0.0
    assert "rankwatch/step_seconds" not in rows.row(taken)
    assert rows.summary(taken)["rankwatch/verdict"] == "no_step"


def test_a_link_fits_below_the_longest_reason() -> None:
    job = scored()
    job.performance.stragglers = [replace(straggler(3), reason="r" * 5000)]
    (alert,) = rows.alerts(snapshot(job, NOW), 0, "https://monitor.example")
    assert len(alert.text) == rows.LONGEST_TEXT
    assert alert.text.endswith("\nhttps://monitor.example/#/jobs/job")
    (alert,) = rows.alerts(snapshot(job, NOW), 0)
    assert "\n" not in alert.text
