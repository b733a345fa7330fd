"""``rankwatch incidents`` against a real monitor: the list with its phases, one incident with its stacks."""

from __future__ import annotations

import json

import pytest

from rankwatch.cli.formatting import of_it_lost
from rankwatch.cli.incident_report import collective_lines, incident_report
from rankwatch.cli.incidents import incidents, table
from rankwatch.cli.terminal import Terminal
from support.launcher import AT_WORK, WAITING, PlayedLauncher
from support.monitor_fixtures import api as api
from support.monitor_fixtures import job as job
from support.monitor_fixtures import monitor as monitor
from support.monitor_process import Api, RunningMonitor
from support.otlp import reports_of_all
from support.waiting import wait_for


@pytest.fixture
def restarted(api: Api, job: str) -> str:
    """A job whose rank 2 hung in attempt 1, and which went on in attempt 2."""

    def report(**more: float) -> None:
        reports = reports_of_all(job, 4, **more)  # type: ignore[arg-type]
        api.report(*reports)

    launcher = PlayedLauncher(api, job)
    launcher.register(policy={"section_timeouts": {"step": 10}})
    launcher.start(1)
    report()
    report(overdue=12.5)
    capture = launcher.next_directive("capture")
    launcher.send_stacks(capture, {0: WAITING, 1: WAITING, 2: AT_WORK, 3: WAITING})
    launcher.acknowledge(capture)
    restart = launcher.next_directive("restart")
    launcher.acknowledge(restart)
    launcher.start(2)
    report(attempt=2, resumed_at=5)
    wait_for(lambda: api.incidents(job)[0]["phase"] == "closed", "the incident is closed")
    return job


def test_the_list_has_phases_culprit_and_outcome(
    monitor: RunningMonitor,
    api: Api,
    restarted: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert incidents([restarted, "--monitor", monitor.url]) == 0
    head, row, outcome = capsys.readouterr().out.splitlines()
    [known] = api.incidents(restarted)
    assert [each["name"] for each in known["phases"] if each["name"].upper() not in head] == []
    assert "section over its limit" in row
    assert "2 behind" in row
    assert "restart" in row
    assert row.endswith(f"  {known['id'].removeprefix(f'{restarted}-')}")
    assert outcome.strip() == known["outcome"]


def test_one_incident_is_found_by_any_clear_part_of_its_id_and_shows_its_stacks(
    monitor: RunningMonitor, api: Api, restarted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    [known] = api.incidents(restarted)
    shown = []
    for wanted in (known["id"], known["id"][:-1], known["id"].rpartition("-")[2]):
        assert incidents([restarted, wanted, "--monitor", monitor.url]) == 0
        shown.append(capsys.readouterr().out)
    assert len(set(shown)) == 1
    lines = shown[0].splitlines()
    assert lines[0] == f"INCIDENT section over its limit in attempt 1 of {restarted}, over"
    blamed, waiting = lines.index("  rank 2: culprit"), lines.index("  3 ranks (0-1, 3): waits for peers")
    assert blamed < waiting
    assert lines[blamed + 1] == "    compute  train.py:30"
    assert "TIMELINE" in lines
    assert any("to the first new step" in line for line in lines)
    assert any(f" in all{of_it_lost(known['lost_steps_s'], known['steps_lost'])}" in line for line in lines)


def test_json(monitor: RunningMonitor, api: Api, restarted: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert incidents([restarted, "--json", "--monitor", monitor.url]) == 0
    shown = json.loads(capsys.readouterr().out)
    [row] = shown["incidents"]
    took = sum(each["end"] - each["begin"] for each in row["phases"])
    assert took + row["lost_steps_s"] == pytest.approx(row["cost"]["seconds"], abs=0.01)
    assert incidents([restarted, row["id"], "--json", "--monitor", monitor.url]) == 0
    assert [group["ranks"] for group in json.loads(capsys.readouterr().out)["stack_groups"]] == [[2], [0, 1, 3]]


def test_an_incident_that_is_not_there(
    monitor: RunningMonitor, restarted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert incidents([restarted, "nonsense", "--monitor", monitor.url]) == 2
    printed = capsys.readouterr().err
    assert printed == (
        f"rankwatch incidents: job {restarted!r} has no incident 'nonsense'; 'rankwatch incidents {restarted}' "
        "lists them\n"
    )


def test_a_job_without_incidents(
    monitor: RunningMonitor, api: Api, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api.report(*reports_of_all(job, 2))
    assert incidents([job, "--monitor", monitor.url]) == 0
    assert capsys.readouterr().out == "no incident\n"


def test_lines_fit_and_names_cannot_steer_the_terminal() -> None:
    row = {
        "id": "job-1",
        "job_id": "job\x1b[2J",
        "kind": "section_overrun",
        "attempt": 1,
        "opened_at": 1e9,
        "closed_at": None,
        "phase": "detected",
        "confirmed": False,
        "reason": "word " * 50,
        "culprits": [
            {"rank": r, "host": "h\x07", "class": "behind", "reason": "", "cause": {"kind": "behind"}}
            for r in range(20)
        ],
        "action": "log",
        "action_reason": "",
        "outcome": "",
        "steps_lost": None,
        "timeline": {"since": None},
        "node_checks": [],
        "nccl": [{"text": "NCCL \x1b[2J" + "x" * 99, "lines": ["y\x1b[2J" + "y" * 99]}],
        "flight_dumps": {"ranks": [0], "bytes": 5, "path": "/"},
        "phases": [],
        "cost": {"seconds": 0.0, "since": 1e9},
        "lost_steps_s": None,
        "stack_groups": [
            {
                "ranks": [0],
                "is_culprit": True,
                "waits": False,
                "note": "",
                "frames": [{"function": "f" * 99, "file": "/p\x1b[2J" + "/d" * 99, "line": 1}] * 20,
            }
        ],
        "stack_errors": [{"rank": r, "error": "no right"} for r in range(3)],
    }
    lines = table([row], Terminal(60)) + incident_report(row, Terminal(60), 0.0)
    assert max(map(len, lines)) <= 60
    assert not any("\x1b" in line or "\x07" in line for line in lines)
    assert any("only suspected so far" in line for line in " ".join(lines).split("  "))
    assert "    and 8 more frames" in lines
    assert "  3 ranks (0-2): no stack, no right" in lines


def test_collectives_are_sentences() -> None:
    front = {
        "group": "default_pg",
        "operation": "all_reduce",
        "completed": 64,
        "calls_from": 61,
        "calls": ["all_reduce"],
    }
    fronts = [{**front, "enqueued": 65, "ranks": [0, 1, 3]}, {**front, "enqueued": 64, "ranks": [2]}]
    assert collective_lines({"collectives": fronts}, Terminal(100))[2:] == [
        "  3 ranks (0-1, 3) wait in all_reduce number 65 of group default_pg",
        "  rank 2 has completed all_reduce number 64 of group default_pg and entered no other",
    ]
