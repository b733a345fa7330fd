"""``rankwatch order`` and ``rankwatch policy`` against a real monitor, also one that wants tokens."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from rankwatch.cli import actions
from rankwatch.cli.actions import ACTIONS, lines, order, policy
from rankwatch.cli.terminal import Terminal
from rankwatch.contract.policy import Policy, changes_of
from rankwatch.monitor_client import MonitorClient
from support.launcher import PlayedLauncher
from support.monitor_fixtures import api as api
from support.monitor_fixtures import job as job
from support.monitor_fixtures import launcher as launcher
from support.monitor_fixtures import monitor as monitor
from support.monitor_process import Api, RunningMonitor, environment, running_monitor
from support.otlp import reports_of_all
from support.pseudo_terminal import seated


def test_an_order_reaches_the_launcher_with_its_reason(
    monitor: RunningMonitor, api: Api, job: str, launcher: PlayedLauncher, capsys: pytest.CaptureFixture[str]
) -> None:
    assert order([job, "capture", "--reason", "just looking", "--monitor", monitor.url]) == 0
    directive = launcher.next_directive("capture")
    assert "just looking" in directive["reason"]
    [incident] = api.incidents(job)
    assert capsys.readouterr().out == (f"ordered; 'rankwatch incidents {job} {incident['id']}' shows its progress\n")


def test_a_destructive_action_needs_yes_without_a_terminal(
    monitor: RunningMonitor, api: Api, job: str, launcher: PlayedLauncher, capsys: pytest.CaptureFixture[str]
) -> None:
    assert order([job, "stop", "--monitor", monitor.url]) == 2
    assert "add --yes to confirm" in capsys.readouterr().err
    assert api.incidents(job) == []
    assert order([job, "stop", "--yes", "--json", "--monitor", monitor.url]) == 0
    assert json.loads(capsys.readouterr().out)["incident_id"] == api.incidents(job)[0]["id"]


@pytest.mark.parametrize(("answer", "code", "ordered"), [("y", 0, 1), ("", 2, 0), ("no", 2, 0)])
def test_a_destructive_action_asks_for_confirmation(
    monitor: RunningMonitor,
    api: Api,
    job: str,
    launcher: PlayedLauncher,
    answer: str,
    code: int,
    ordered: int,
) -> None:
    command = [sys.executable, "-m", "rankwatch", "order", job, "restart", "--monitor", monitor.url]
    with seated(command, environment(TERM="xterm")) as seat:
        seat.until(f"restart kills and restarts all 4 ranks of job '{job}' (running, step 7). Do it? [y/N] ")
        seat.press(f"{answer}\r")
        assert seat.ended() == code
    assert len(api.incidents(job)) == ordered


def test_nothing_that_a_terminal_obeys_is_printed_whatever_the_monitor_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m"
    job = {"iteration": bad, "state": bad, "world_size": 2}
    monkeypatch.setattr(MonitorClient, "read", lambda *_: job)
    monkeypatch.setattr(MonitorClient, "send", lambda *_: {"incident_id": bad})
    monkeypatch.setattr(actions, "is_terminal", lambda _: True)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert order(["j", "stop", "--monitor", "http://127.0.0.1:9"]) == 0
    monkeypatch.setattr(MonitorClient, "read", lambda *_: {"section_timeouts": {bad: bad}, bad: bad})
    assert policy(["j", "--monitor", "http://127.0.0.1:9"]) == 0
    printed = capsys.readouterr()
    assert all(line.isprintable() for text in printed for line in text.splitlines())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["restart", "--rank", "1"], "'ranks' and 'nodes' need the action restart_excluding_node"),
        (["restart_excluding_node", "--node", "no-such"], "no-such"),
    ],
)
def test_a_rejection_is_printed_with_the_monitors_reason(
    monitor: RunningMonitor,
    api: Api,
    job: str,
    launcher: PlayedLauncher,
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert order([job, *arguments, "--yes", "--monitor", monitor.url]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("rankwatch order: ")
    assert words in printed
    assert api.incidents(job) == []


def test_a_job_that_is_only_watched_cannot_be_ordered_about(
    monitor: RunningMonitor, api: Api, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api.report(*reports_of_all(job, 2))
    assert order([job, "restart", "--yes", "--monitor", monitor.url]) == 2
    assert capsys.readouterr().err.startswith(f"rankwatch order: job '{job}' has no launcher")


def test_every_action_can_be_ordered() -> None:
    assert ACTIONS == ("capture", "restart", "restart_excluding_node", "save_and_stop", "stop")


def test_a_policy_is_changed_and_shown(
    monitor: RunningMonitor, api: Api, job: str, launcher: PlayedLauncher, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ["observe_only=true", "silence_timeout=none", "section_timeouts=step=30,save=600"]
    changes += ["straggler_slowdown=7%"]
    assert policy([job, *changes, "--monitor", monitor.url]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[1:4]] == ["observe_only", "section_timeouts", "silence_timeout"]
    now = api.read(f"/jobs/{job}/policy")
    assert now["observe_only"] is True
    assert now["silence_timeout"] is None
    assert now["straggler_slowdown"] == pytest.approx(0.07)
    assert printed[4].split()[:3] == ["straggler_slowdown", "7", "%"]
    assert now["section_timeouts"] == {"step": 30, "save": 600}
    assert policy([job, "section_timeouts=save=none", "--json", "--monitor", monitor.url]) == 0
    assert json.loads(capsys.readouterr().out)["section_timeouts"] == {"step": 30}
    assert policy([job, "--monitor", monitor.url]) == 0
    assert len(capsys.readouterr().out.splitlines()) > len(Policy().to_json())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["JOB", "observe_only=maybe"], "observe_only must be true or false, not 'maybe'"),
        (["JOB", "no_such=1"], "unknown policy setting 'no_such'"),
        (["JOB", "observe_only"], "invalid change 'observe_only': give NAME=VALUE"),
        (["JOB", "section_timeouts=30"], "section_timeouts=NAME=SECONDS"),
        (["observe_only=true"], "the job is missing before the changes: rankwatch policy JOB observe_only=true"),
    ],
)
def test_changes_that_make_no_sense(
    monitor: RunningMonitor,
    job: str,
    launcher: PlayedLauncher,
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert policy([*(job if a == "JOB" else a for a in arguments), "--monitor", monitor.url]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("rankwatch policy: ")
    assert words in printed


def test_a_read_token_cannot_change_a_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_monitor(tmp_path, "--token", "all", "--read-token", "looks") as guarded:
        with Api(guarded.url, "all") as api:
            api.report(*reports_of_all("job", 2))
        at = ["--monitor", guarded.url]
        assert policy(["job", *at, "--token", "looks"]) == 0
        capsys.readouterr()
        assert policy(["job", "observe_only=true", *at, "--token", "looks"]) == 2
        assert capsys.readouterr().err == (
            "rankwatch policy: this token does not allow control: pass one that may control with "
            "--token or RANKWATCH_TOKEN\n"
        )
        assert policy(["job", "observe_only=true", *at, "--token", "all"]) == 0


def test_values_are_read_as_json_has_them() -> None:
    given = ["a=true", "b=false", "c=none", "d=3", "e=0.5", "f=off", "section_timeouts=a=b=3"]
    assert changes_of(given) == {
        "a": True,
        "b": False,
        "c": None,
        "d": 3,
        "e": 0.5,
        "f": "off",
        "section_timeouts": {"a=b": 3},
    }


def test_what_is_not_the_default_is_marked() -> None:
    changed = Policy().changed({"observe_only": True}).to_json()
    printed = lines(changed, Terminal(200))
    assert [line.split()[:3] for line in printed if "  *  " in line] == [["observe_only", "true", "*"]]
    assert max(map(len, lines(changed, Terminal(80)))) <= 80
