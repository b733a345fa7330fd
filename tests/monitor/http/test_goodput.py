"""What a job's time went into and the text report, asked of a real monitor; and the command that prints it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.launcher import PlayedLauncher
from support.monitor_process import Api, RunningMonitor, environment, running_monitor
from support.otlp import rank_report
from support.waiting import wait_for

WORLD = 3


def send(api: Api, job: str, iteration: int, seconds: float = 0.1) -> None:
    reports = [
        rank_report(
            job, rank, WORLD, iteration=iteration - (rank == 1 and seconds > 1), open_sections={"step": seconds}
        )
        for rank in range(WORLD)
    ]
    api.report(*reports)


@pytest.fixture
def hung(api: Api, job: str) -> str:
    """A job with an open incident, of which some time is accounted for."""
    send(api, job, 1)
    api.change_policy(job, section_timeouts={"step": 2.0})
    send(api, job, 5)
    wait_for(lambda: (send(api, job, 5), api.read(f"/jobs/{job}/goodput")["seconds"])[1] > 1.0, "time passes")
    send(api, job, 9, seconds=3.0)
    api.judge_now(job)
    assert api.incidents(job)
    return job


def test_goodput_has_a_ratio_a_window_buckets_and_a_row_for_each_incident(api: Api, hung: str) -> None:
    shown = api.read(f"/jobs/{hung}/goodput")
    beside = {"waited_for", "notes"}
    assert set(shown) == {"ratio", "seconds", "window", "buckets", "incidents"} | beside
    assert sum(shown["buckets"].values()) == pytest.approx(shown["seconds"])
    assert shown["ratio"] is None, "in the first minute"
    assert shown["window"]["seconds"] == pytest.approx(shown["seconds"])
    (row,), (incident,) = shown["incidents"], api.incidents(hung)
    assert (row["id"], row["kind"], row["opened_at"]) == (incident["id"], "section_overrun", incident["opened_at"])
    assert row["phases"] == incident["phases"]
    assert (row["phases"][0]["begin"], row["phases"][0]["end"]) == (
        incident["timeline"]["since"],
        incident["timeline"]["detected"],
    )
    assert (row["phases"][-1]["end"], row["cost"]["since"], row["steps_lost"]) == (
        None,
        incident["timeline"]["since"],
        None,
    )


def test_the_seconds_of_a_row_sum_to_its_total(api: Api, job: str) -> None:
    launcher = PlayedLauncher(api, job, "node-a", (0, 1))
    launcher.register()
    api.post(f"/api/v1/jobs/{job}/actions", json={"action": "capture"})

    def closed() -> dict:
        launcher.register()
        (row,) = api.read(f"/jobs/{job}/goodput")["incidents"]
        return row if row["cost"]["since"] is None else {}

    row = wait_for(closed, "the capture is over")
    took = [each["end"] - each["begin"] for each in row["phases"]]
    assert all(seconds >= 0.0 for seconds in took)
    assert sum(took) == pytest.approx(row["cost"]["seconds"])


def test_the_ratio_is_one_value_and_shown_from_the_end_of_a_short_job_on(api: Api, hung: str) -> None:
    assert api.job(hung)["goodput"] is None
    launcher = PlayedLauncher(api, hung, "node-a", tuple(range(WORLD)))
    launcher.register()
    launcher.events({"kind": "stopped", "reason": "enough"})
    wait_for(lambda: api.job(hung)["state"] == "stopped", "the job has ended")
    ratio = api.job(hung)["goodput"]
    assert 0.0 <= ratio <= 1.0
    assert api.read(f"/jobs/{hung}/goodput")["ratio"] == ratio


def test_the_report_is_plain_text(api: Api, hung: str) -> None:
    answer = api.get(f"/api/v1/jobs/{hung}/report")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.text.startswith(f"JOB {hung} is HUNG")
    assert api.incidents(hung)[0]["id"] in answer.text


@pytest.mark.parametrize("path", ["goodput", "report"])
def test_an_unknown_job_is_a_404_with_words(api: Api, path: str) -> None:
    answer = api.get(f"/api/v1/jobs/nobody/{path}")
    assert answer.status_code == 404
    assert (answer.json()["detail"], answer.json()["remedy"]) == (
        "there is no job 'nobody'",
        "GET /api/v1/jobs lists all jobs",
    )


def test_prometheus_gets_the_ratio_and_a_counter_for_each_bucket(api: Api, hung: str) -> None:
    samples = {(name, dict(labels).get("bucket")): value for (name, labels), value in of_job(api, hung).items()}
    buckets = {bucket for name, bucket in samples if name == "rankwatch_job_time_seconds_total"}
    assert buckets == set(api.read(f"/jobs/{hung}/goodput")["buckets"])
    assert ("rankwatch_goodput_ratio", None) not in samples, "in the first minute"


def of_job(api: Api, job: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {key: value for key, value in api.metrics().items() if dict(key[1]).get("job") == job}


# The command ----------------------------------------------------------------------------------------------------------


def command(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rankwatch", "report", *arguments],
        env=environment(**settings),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_command_prints_the_report_of_a_job_and_without_one_of_the_newest(
    monitor: RunningMonitor, api: Api, hung: str
) -> None:
    newest = f"{hung}-newer"
    send(api, newest, 1)
    named = command(hung, "--monitor", monitor.url)
    assert (named.returncode, named.stderr) == (0, "")
    assert named.stdout.startswith(f"JOB {hung} is HUNG")
    unnamed = command(RANKWATCH_MONITOR=monitor.url)
    assert unnamed.stdout.startswith(f"JOB {newest} is RUNNING")


def test_the_same_facts_as_json(monitor: RunningMonitor, api: Api, hung: str) -> None:
    done = command(hung, "--json", "--monitor", monitor.url)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert set(facts) == {"job", "goodput", "incidents", "stragglers", "scores"}
    assert facts["job"]["id"] == hung
    assert [each["id"] for each in facts["incidents"]] == [each["id"] for each in api.incidents(hung)]
    assert "stack_groups" in facts["incidents"][0]


def test_an_unknown_job(monitor: RunningMonitor) -> None:
    done = command("nobody", "--monitor", monitor.url)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("there is no job 'nobody'; 'rankwatch status' lists those there are\n")


def test_a_token_is_asked_for_checked_and_taken(tmp_path: Path) -> None:
    with running_monitor(tmp_path, settings={"RANKWATCH_TOKEN": "right"}) as guarded:
        where = ("--monitor", guarded.url)
        for done in (command(*where), command(*where, "--token", "wrong")):
            assert (done.returncode, done.stdout) == (2, "")
            assert "--token or RANKWATCH_TOKEN" in done.stderr
        with Api(guarded.url, "right") as api:
            send(api, "job-1", 1)
        assert command(*where, "--token", "right").stdout.startswith("JOB job-1")
        assert command(*where, RANKWATCH_TOKEN="right").stdout.startswith("JOB job-1")


def test_a_monitor_without_jobs_reports_it(tmp_path: Path) -> None:
    with running_monitor(tmp_path) as idle:
        done = command("--monitor", idle.url)
        assert (done.returncode, done.stdout) == (2, "")
        assert "has no job yet" in done.stderr
