"""The simulator's command: what the monitor would see and do, told in words and for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankwatch_monitor.replay.cli import replay
from support.simulator.cli import simulate

SMALL = ["--world", "4", "--seconds", "200", "--compilation", "5", "--checkpoint-every", "30", "--checkpoint", "2"]
HANG = ["--fault", "kind=hang,rank=3,step=40"]


def reported(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert simulate([*SMALL, *arguments, "--json"]) == 0
    read: dict[str, Any] = json.loads(capsys.readouterr().out)
    return read


def test_a_hang_is_reported_from_its_beginning_to_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate([*SMALL, *HANG, "--policy", "section_timeouts=step=8"]) == 0
    printed = capsys.readouterr().out
    order = [
        "* fault hang: rank 3 in section step/forward of step 40",
        "over its configured limit of 8 s",
        "directive",
        "the job is restarting",
        "* the ranks are restarted",
        "resumed at step 30; 10 steps were lost",
        "the job is running",
        "found after",
        "the right ranks were named",
    ]
    place = 0
    for words in order:
        assert words in printed[place:], f"{words!r} is not where it should be in\n{printed}"
        place += printed[place:].index(words)


def test_a_healthy_job_states_that_nothing_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(SMALL) == 0
    printed = capsys.readouterr().out
    assert "no incident" in printed
    assert "0 alarms, 0 suspicions without consequence, 0 restarts" in printed


def test_programs_get_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    long_enough = (*HANG, "--seconds", "400")
    found = reported(capsys, *long_enough)
    (fault,) = found["faults"]
    assert fault["right"]
    assert fault["named"] == [3]
    assert found["incidents"][0]["culprits"][0]["rank"] == 3
    assert reported(capsys, *long_enough) == found
    assert reported(capsys)["incidents"] == []


def test_what_is_simulated_can_be_recorded_and_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "scene.jsonl.zst"
    found = reported(capsys, *HANG, "--record", str(path))
    assert replay([str(path), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    for was, now in zip(found["incidents"], again["jobs"][0]["incidents"], strict=True):
        assert was == {name: now[name] for name in was}
    assert again["events"] == found["events"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fault", "kind=sleepy"], "kind of a fault"),
        (["--fault", "kind=hang,rank=9"], "no rank 9 among 4"),
        (["--nodes", "9"], "cannot run on 9 nodes"),
        (["--policy", "colour=red"], "unknown policy setting"),
        (["--record", "{folder}/none/file.jsonl"], "cannot write"),
    ],
)
def test_what_makes_no_sense_is_refused_with_words(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate([*SMALL, *(each.format(folder=tmp_path) for each in arguments)]) == 2
    assert words in capsys.readouterr().err
