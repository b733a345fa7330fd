"""``rankwatch digest``: the sentences of the monitor, whole at 80 columns."""

from __future__ import annotations

import json
import time

import pytest

from monitor.core.scene import Scene
from rankwatch.cli.digest import digest, text
from rankwatch.cli.formatting import when
from rankwatch.cli.terminal import Terminal
from rankwatch_monitor.core.plain import plain
from rankwatch_monitor.core.views.digest import digest as made
from support.launcher import PlayedLauncher
from support.monitor_fixtures import api as api
from support.monitor_fixtures import job as job
from support.monitor_fixtures import monitor as monitor
from support.monitor_process import Api, RunningMonitor
from support.otlp import reports_of_all
from support.waiting import wait_for

NARROW = Terminal(80)


@pytest.fixture
def hung(api: Api, job: str) -> str:
    """A job whose rank 2 hangs."""
    PlayedLauncher(api, job).register(policy={"section_timeouts": {"step": 10}})
    for more in ({}, {"overdue": 12.5}):
        reports = reports_of_all(job, 4, **more)  # type: ignore[arg-type]
        api.report(*reports)
    wait_for(lambda: api.incidents(job), "the incident is open")
    return job


def test_every_sentence_is_whole_at_80_columns() -> None:
    scene = Scene(4, hosts=2).run(20).hang(2).until_found()
    scene.run(30).hang(3)
    scene.until(lambda: len(scene.job.incidents) == 2).run(2)
    found = plain(made([scene.job], scene.now - 3600, scene.now, scene.now - 60, stored=True))
    lines = text(found, NARROW)
    assert max(map(len, lines)) <= 80
    shown = " ".join(" ".join(lines).split())
    assert f"{when(found['since'])} to {when(found['until'])} {found['summary']}." in shown
    assert {"incidents", "restarts", "time", "nodes"} <= {each["kind"] for each in found["lines"]}
    for each in found["lines"]:
        assert each["text"] in shown
        assert [link["text"] for link in each["links"] if link["text"] not in shown] == []
    assert [note["text"] for note in found["notes"] if note["text"] not in shown] == []


def test_the_links_that_are_left_out_are_counted() -> None:
    link = {"text": "gpt: rank 1", "job": "j", "incident": "", "host": "", "at": None}
    line = {"kind": "incidents", "text": "9 incidents.", "links": [link], "more": 1200}
    found = {"since": 0.0, "until": 60.0, "summary": "9 incidents", "lines": [line], "notes": []}
    assert text(found, NARROW)[-2:] == ["  gpt: rank 1", "  and 1,200 more"]


def test_a_monitor_is_asked_for_the_last_hours(
    monitor: RunningMonitor, hung: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert digest(["--monitor", monitor.url]) == 0
    printed = capsys.readouterr().out
    assert "1 hang, not over yet: a section took longer than its limit." in printed
    assert f"{hung}: " in printed

    assert digest(["--since", "-3h", "--json", "--monitor", monitor.url]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["until"] - found["since"] == pytest.approx(3 * 3600, abs=5)
    assert digest(["--since", str(int(time.time()) + 60), "--json", "--monitor", monitor.url]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["since"] == found["until"], "a moment to come is now"


def test_exit_codes_of_a_wrong_moment_and_a_monitor_that_is_away(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        digest(["--since", "yesterday"])
    assert ended.value.code == 2
    assert digest(["--monitor", "http://127.0.0.1:9"]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("rankwatch digest: no monitor answers at")
