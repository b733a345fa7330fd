"""``rankwatch replay``: the recording of a real monitor gives the same incidents again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rankwatch_monitor.recording import Recording
from rankwatch_monitor.replay import policy_changes, replay
from support.launcher import AT_WORK, WAITING, PlayedLauncher
from support.monitor_process import Api, running_monitor
from support.otlp import PROTOBUF, body, reports_of_all
from support.waiting import wait_for

WORLD = 3
LIMIT = 2.0
SAME = ("id", "kind", "culprits", "affected", "section", "limit", "action", "attempt", "phase", "confirmed", "outcome")


def send(api: Api, *, attempt: int = 1, overdue: float = 0.0, resumed_at: int | None = None) -> None:
    reports = reports_of_all("job", WORLD, attempt=attempt, overdue=overdue, resumed_at=resumed_at)
    assert api.post("/v1/metrics", content=body(*reports), headers=PROTOBUF).status_code == 200


def hang_and_restart(api: Api) -> list[dict[str, Any]]:
    """A rank hangs, the launcher sends stacks and restarts, the job goes on; the incidents as the API shows them."""
    launcher = PlayedLauncher(api, "job", ranks=range(WORLD))
    launcher.register(policy={"section_timeouts": {"step": LIMIT}})
    launcher.start(1, WORLD)
    send(api)
    send(api, overdue=LIMIT + 1)
    capture = launcher.next_directive("capture")
    launcher.send_stacks(capture, {rank: AT_WORK if rank == 2 else WAITING for rank in range(WORLD)})
    launcher.acknowledge(launcher.next_directive("restart"))
    launcher.events({"kind": "restarting", "reason": "ordered"})
    launcher.start(2, WORLD)
    send(api, attempt=2, resumed_at=5)
    wait_for(lambda: api.incidents("job")[0]["closed_at"], "the incident is closed")
    return api.incidents("job")


def replayed(path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert replay([str(path), "--json", *more]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A recording of a real monitor that was told to end, and the incidents that it had shown."""
    folder = tmp_path_factory.mktemp("recorded")
    path = folder / "run.jsonl.gz"
    with running_monitor(folder, "--record", str(path)) as monitor, Api(monitor.url) as api:
        incidents = hang_and_restart(api)
        monitor.process.terminate()
        assert monitor.process.wait(20) == 0
    return path, incidents


def test_a_real_monitor_s_recording_gives_the_same_incidents(
    recorded: tuple[Path, list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    path, incidents = recorded
    told = replayed(path, capsys)
    (job,) = told["jobs"]
    assert (told["lost"], told["truncated"]) == (0, False)
    assert len(incidents) == len(job["incidents"]) == 1
    for was, now in zip(incidents, job["incidents"], strict=True):
        assert {name: was[name] for name in SAME} == {name: now[name] for name in SAME}
        assert abs(was["opened_at"] - now["opened_at"]) <= 0.25
        assert [c["rank"] for c in now["culprits"]] == [2]
    assert [d["kind"] for d in job["directives"]] == ["capture", "restart"]


def test_it_is_the_same_each_time(
    recorded: tuple[Path, list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    first, again = (replayed(recorded[0], capsys) for _ in range(2))
    assert first == again


def test_another_policy_shows_what_would_have_happened(
    recorded: tuple[Path, list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    (lenient,) = replayed(recorded[0], capsys, "--policy", "section_timeouts=step=60")["jobs"]
    assert lenient["incidents"] == []
    (observing,) = replayed(recorded[0], capsys, "--policy", "observe_only=true")["jobs"]
    assert [d["kind"] for d in observing["directives"]] == []
    assert observing["incidents"][0]["action"] == "log"


def test_a_monitor_that_was_killed_leaves_a_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.jsonl.zst"
    with running_monitor(tmp_path, "--record", str(path)) as monitor, Api(monitor.url) as api:
        send(api)
        wait_for(lambda: _reports(path) >= WORLD, "the reports are in the file")
        monitor.kill()
    assert replayed(path, capsys)["events"] == WORLD


def _reports(path: Path) -> int:
    """Whole lines of events in a file that is being written."""
    if not path.stat().st_size:
        return 0
    return sum(entry.event is not None for entry in Recording(path))


def test_it_is_told_in_words(recorded: tuple[Path, list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]) -> None:
    assert replay([str(recorded[0]), "--job", "job"]) == 0
    said = capsys.readouterr().out
    assert "job job: 3 ranks, attempt 2" in said
    assert "Rank 2 on node-a has been in section 'step'" in said
    assert "directive 2: restart (not delivered)" in said
    assert "2 (behind)" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{none}"], "cannot read"),
        (["{text}"], "line 1"),
        (["{good}", "--job", "other"], "holds no job 'other'"),
        (["{good}", "--policy", "colour=red"], "unknown policy setting 'colour'"),
        (["{good}", "--policy", "silence_timeout"], "NAME=VALUE"),
        (["{good}", "--policy", "silence_timeout=-3"], "silence_timeout must be"),
        (["{good}", "--policy", "section_timeouts=step"], "NAME=SECONDS"),
    ],
)
def test_what_makes_no_sense_is_refused_with_words(
    arguments: Sequence[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, good = tmp_path / "notes.txt", tmp_path / "good.jsonl"
    text.write_text("buy milk\nand bread\n")
    good.write_text('{"rankwatch": "recording", "version": 1, "at": 1.0}\n{"at": 2.0}\n')
    places = {"none": tmp_path / "none", "text": text, "good": good}
    assert replay([argument.format(**places) for argument in arguments]) == 2
    assert words in capsys.readouterr().err


def test_policies_are_read_as_what_they_are() -> None:
    given = ["observe_only=true", "silence_timeout=none", "max_restarts=5", "on_hang=log"]
    given += ["section_timeouts=step=10", "section_timeouts=data=5,evaluation=600"]
    assert policy_changes(given) == {
        "observe_only": True,
        "silence_timeout": None,
        "max_restarts": 5,
        "on_hang": "log",
        "section_timeouts": {"step": 10.0, "data": 5.0, "evaluation": 600.0},
    }
