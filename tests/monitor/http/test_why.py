"""Why steps take another time, asked over HTTP and by the command: a whole monitor in this process, on a real port."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import httpx
import pytest
import uvicorn

from monitor.core.steps import PERIOD, START, Steps
from rankwatch.cli.why import why
from rankwatch_monitor.app import create_app
from rankwatch_monitor.service.monitor import Monitor
from support.waiting import wait_for

CHANGED = START + 60 * PERIOD


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A monitor with a job whose data became slow, one that was always the same, and one of which nothing is known."""
    monitor = Monitor()
    for job, data in (("slowed", 0.45), ("steady", 0.04)):
        history, steps = monitor.register(job, job).performance.history, Steps()
        steps.go(history, 60)
        steps.data = data
        steps.go(history, 60)
    monitor.register("new", "new")
    server = uvicorn.Server(uvicorn.Config(create_app(monitor), host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started, "the server listens")
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def api(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{url}/api/v1", trust_env=False, timeout=60.0) as client:
        yield client


def test_the_answer_has_a_sentence_and_its_parts(api: httpx.Client) -> None:
    reported = api.get("/jobs/slowed/why").json()
    assert reported["since"] == pytest.approx(CHANGED, abs=PERIOD)
    assert reported["factor"] == pytest.approx(reported["after"] / reported["before"])
    assert (reported["kind"], reported["cause"]) == ("change", "data")
    assert sum(part["share"] for part in reported["parts"]) == pytest.approx(1.0)
    assert set(reported["parts"][0]) == {"part", "before", "after", "share"}
    assert {"kind", "name", "before", "after", "share", "sentence"} <= set(reported["contributors"][0])
    assert reported["circumstances"] == []
    assert api.get(f"/jobs/slowed/why?at={CHANGED + 60}").json() == reported


def test_its_twin_nothing_changed(api: httpx.Client) -> None:
    reported = api.get("/jobs/steady/why").json()
    assert (reported["kind"], reported["parts"], reported["contributors"]) == ("steady", [], [])
    assert reported["sentence"].startswith("Nothing changed since the first step")


def test_a_job_of_which_no_window_was_judged(api: httpx.Client) -> None:
    assert api.get("/jobs/new/why").json()["sentence"].startswith("Nothing is known yet")
    assert api.get("/jobs/new/history").json() == {"samples": []}


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/jobs/nobody/why", 404, "there is no job 'nobody'"),
        ("/jobs/nobody/history", 404, "there is no job 'nobody'"),
        ("/jobs/slowed/why?at=1000000000", 422, "does not cover 2001-09-09"),
        ("/jobs/slowed/why?at=tomorrow", 422, "query.at"),
        ("/jobs/slowed/why?at=nan", 422, "query.at"),
        ("/jobs/slowed/why?at=-1", 422, "query.at"),
        ("/jobs/slowed/history?since=20&until=10", 422, "since (20) must not be later than until (10)"),
    ],
)
def test_wrong_questions_are_answered(api: httpx.Client, path: str, status: int, words: str) -> None:
    answer = api.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert words in answer.json()["detail"]


def test_the_history_has_the_samples(api: httpx.Client) -> None:
    samples = api.get("/jobs/slowed/history").json()["samples"]
    assert len(samples) == 120
    first = samples[0]
    assert (first["ranks"], first["hosts"], first["attempt"]) == (8, ["node-a", "node-b"], 0)
    assert set(first["parts"]) == {"data", "host", "compute", "communication"}
    assert set(first["sections"]["forward"]) == {"median", "max", "worst", "calls"}
    assert first["collectives"]["data_parallel"]["shortest"] == 0.04
    some = api.get(f"/jobs/slowed/history?since={CHANGED}&until={CHANGED + 100}").json()["samples"]
    assert [sample["at"] for sample in some] == [CHANGED + PERIOD * i for i in range(11)]


def test_the_command_prints_the_sentence_and_the_shares(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert why(["slowed", "--monitor", url]) == 0
    out = capsys.readouterr().out
    assert "times as long since 09:03:20" in out.splitlines()[0]
    assert "What a step's time goes into\n  data" in out
    assert "section 'load_batch' (40 ms -> 45" in out
    assert why(["slowed", "--monitor", url, "--at", "2025-10-09T09:03", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cause"] == "data"


def test_the_command_asks_for_the_newest_job(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert why(["--monitor", url]) == 0
    assert capsys.readouterr().out.startswith("Nothing is known yet")


def test_the_command_passes_on_why_a_question_is_wrong(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert why(["slowed", "--monitor", url, "--at", "-1m"]) == 2
    assert "does not cover" in capsys.readouterr().err
    assert why(["nobody", "--monitor", url]) == 2
    assert "there is no job 'nobody'" in capsys.readouterr().err


def test_a_chart_reads_as_many_points_as_it_has_room_for_and_nothing_else(api: httpx.Client) -> None:
    whole = api.get("/jobs/slowed/history?since=0").json()["samples"]
    few = api.get("/jobs/slowed/history?since=0&points=7&brief=true").json()["samples"]
    assert 3 < len(few) <= 7 < len(whole)
    assert few[-1]["at"] == whole[-1]["at"], "the whole range, more coarsely"
    assert set(few[0]) == {"at", "attempt", "iteration", "seconds", "step", "step_max", "parts", "waiting"}
    brief = api.get("/jobs/slowed/history?since=0&brief=true")
    assert brief.json()["samples"] == [{name: sample[name] for name in few[0]} for sample in whole]
    attempt = whole[0]["attempt"]
    assert api.get(f"/jobs/slowed/history?since=0&attempt={attempt}").json()["samples"] == whole
    assert api.get(f"/jobs/slowed/history?since=0&attempt={attempt + 1}").json()["samples"] == []
    assert api.get("/jobs/slowed/history?points=1501").status_code == 422


def test_a_chart_of_the_cause_reads_one_section_and_the_devices_too(api: httpx.Client) -> None:
    whole = api.get("/jobs/slowed/history").json()["samples"]
    brief = api.get("/jobs/slowed/history?brief=true&section=load_batch&devices=true").json()["samples"]
    assert [sample["section"] for sample in brief] == [sample["sections"]["load_batch"] for sample in whole]
    assert [sample["device"] for sample in brief] == [sample["device"] for sample in whole]
    slowest = api.get("/jobs/slowed/history?brief=true&slowest=true").json()["samples"]
    first = [sample["slow_ranks"][0] for sample in whole]
    named = ("rank", "work", "late")
    assert [[each["slowest"][name] for name in named] for each in slowest] == [
        [each[name] for name in named] for each in first
    ]
    assert [[*each["slowest"]["parts"].items()] for each in slowest] == [
        [*zip(("data", "host", "compute"), each["parts"], strict=True)] for each in first
    ]
    unknown = api.get("/jobs/slowed/history?brief=true&section=nothing").json()["samples"]
    assert {sample["section"] for sample in unknown} == {None}
    assert "device" not in unknown[0]


def test_the_last_sample_has_the_figures_of_the_newest_window(api: httpx.Client) -> None:
    """A chart shows them as those of now, beside the newest window itself."""
    whole, fine, merged = (
        api.get("/jobs/slowed/history", params=asked).json()["samples"][-1]
        for asked in ({"brief": True, "points": 1}, {"brief": True}, {"points": 1})
    )
    newest = api.get("/jobs/slowed").json()["vitals"]["step"]
    assert [(each["step"], each["parts"]) for each in (whole, fine)] == [(newest["seconds"], newest["parts"])] * 2
    assert whole["seconds"] == merged["seconds"] > fine["seconds"]
    assert merged["step"] < 0.9 * newest["seconds"], "the median over both levels"
