"""The monitor dies in mid-run and comes back; and the one that ``rankwatch run`` brings along."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from e2e.story import WHOLE, assert_blamed, assert_in_order, functions, stack_of
from e2e.training import STEP_LIMIT, Training
from support.monitor_process import running_monitor

pytestmark = pytest.mark.timeout(240)

SILENCE = 4.0
LONG = 210
"""Steps that take longer than the silence limit, at 0.02 s and more each."""


@pytest.mark.long
def test_a_monitor_that_was_killed_goes_on_where_it_was(training: Training, tmp_path: Path) -> None:
    limits = ("--section-timeout", f"step={STEP_LIMIT}", "--silence-timeout", f"{SILENCE:g}")
    with running_monitor(tmp_path / "first") as first:
        training.follow(first.url)
        launcher = training.run(*limits)
        training.until_running(2)
        training.order("capture", "to have some history")
        before = training.incident()
        first.kill()
    training.until("the launcher notices", lambda: "does not answer" in launcher.printed())
    there = training.checkpoint()
    training.until("the ranks train on alone", lambda: training.checkpoint() >= there + LONG)

    port = str(urlsplit(first.url).port)
    with running_monitor(tmp_path / "second", "--port", port, database=first.database) as second:
        training.follow(second.url)
        training.until("the launcher finds it again", lambda: "answers again" in launcher.printed())
        back = training.until_running(2)
        assert back["iteration"] >= there + LONG
        assert back["policy"]["silence_timeout"] == SILENCE, "its policy was kept"
        training.until("they train on", lambda: training.summary()["iteration"] > back["iteration"] + LONG)
        assert training.incident() == before, "its history was kept, and its absence raised no alarm"
        assert training.steps("start") == {0: [(1, 0)], 1: [(1, 0)]}, "the ranks were left alone"

        training.strike("rank=1,kind=hang")
        training.until_running(2, attempt=2)
        resumed = training.resumed(2)
        assert training.finish() == [0]
        incident = training.incident(2)
        assert_blamed(incident, 1, "behind")
        assert (incident["kind"], incident["section"]) == ("section_overrun", "step")
        assert_in_order(incident, *WHOLE)
        assert functions(stack_of(incident, 1))[0] == "rankwatch_injected_hang"
        assert incident["outcome"].startswith(f"attempt 2 resumed at step {resumed}")
        assert incident["steps_lost"] < 10
        assert training.summary()["state"] == "finished"


def test_the_monitor_that_run_brings_along(training: Training, tmp_path: Path) -> None:
    launcher = training.run(monitor="")
    page = training.until(
        "the page's address",
        lambda: re.search(r"watching \S+: (http://127\.0\.0\.1:\d+)/j/", launcher.printed()),
    )[1]
    assert "<title>" in httpx.get(page, trust_env=False, timeout=30).text
    monitors = training.state / "rankwatch" / "monitors"
    [file] = training.until("the monitor is known", lambda: [*monitors.glob("*.json")])
    own = json.loads(file.read_text())
    assert own["url"] == page
    training.follow(page, own["token"])
    training.until_running(2)
    training.strike("rank=1,kind=exit,code=3")
    training.until_running(2, attempt=2)
    resumed = training.resumed(2)
    assert training.finish() == [0], launcher.printed()
    assert not [name for name in ("token", "ingest_token") if own[name] in launcher.printed()], "tokens are not logged"
    assert not file.exists()
    with pytest.raises(httpx.ConnectError):
        training.summary()
    database = training.state / "rankwatch" / "jobs" / f"{training.job}.db"
    assert database.exists()
    with running_monitor(tmp_path / "later", database=database) as later:
        training.follow(later.url)
        job = training.summary()
        assert (job["state"], job["attempt"], job["restarts"], job["world_size"]) == ("finished", 2, 1, 2)
        incident = training.incident()
        assert_blamed(incident, 1, "dead")
        assert incident["outcome"].startswith(f"attempt 2 resumed at step {resumed}")
