"""A recording may come from another: what is none is refused in words, whatever it holds."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest
import zstandard

from rankwatch_monitor.core.hang.observed_durations import ObservedDurations
from rankwatch_monitor.replay import player, recording
from rankwatch_monitor.replay.cli import replay
from rankwatch_monitor.replay.recording import VERSION, Recording, RecordingError

EVENT = '"job": "j", "process": {"node": "n", "kind": "started", "attempt": 1}'
LINES = {
    "deep": "[" * 200_000,
    "a deep event": '{"at": 1, "job": "j", "report": ' + '{"a":' * 100_000,
    "no time": '{"at": NaN}',
    "a time beyond all": '{"at": 1e300}',
    "a long number": '{"at": ' + "9" * 400 + "}",
    "a very long number": '{"at": ' + "9" * 5000 + "}",
    "ticks before all time": f'{{"at": 1, {EVENT}, "ticked": -1e300}}',
    "ticks beyond all time": f'{{"at": 1, {EVENT}, "ticked": Infinity}}',
    "a pickle": "cos\nsystem\n(S'false'\ntR.",
}


@pytest.mark.parametrize("line", LINES.values(), ids=list(LINES))
def test_a_hostile_recording_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "hostile.jsonl"
    path.write_text(json.dumps({"rankwatch": "recording", "version": VERSION, "at": 0}) + f"\n{line}\n")
    with pytest.raises(RecordingError):
        list(Recording(path))


def test_of_a_long_silence_only_the_first_day_is_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job may be silent over a weekend, and a hostile file states 8,000 years."""
    monkeypatch.setattr(player, "LONGEST_WATCH", 60.0)
    path = tmp_path / "silent.jsonl"
    path.write_text(
        json.dumps({"rankwatch": "recording", "version": VERSION, "at": 0})
        + f'\n{{"at": 1, {EVENT}}}\n{{"at": 2.5e11, {EVENT}}}\n'
    )
    played = player.RecordingPlayer(lambda job, now, effect: None, every_tick=True)
    played.play(Recording(path))
    assert (played.events, played.last) == (2, 2.5e11)


@pytest.mark.parametrize("name", ["bomb.jsonl", "bomb.jsonl.gz", "bomb.jsonl.zst"])
def test_a_line_without_end_takes_no_memory(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "LONGEST_LINE", 16 << 20)
    path = tmp_path / name
    packed = {".gz": gzip.open, ".zst": zstandard.open}.get(path.suffix, open)
    with packed(path, "wb") as file:
        file.write(json.dumps({"rankwatch": "recording", "version": VERSION, "at": 0}).encode() + b"\n")
        for _ in range(16):
            file.write(b" " * (1 << 24))
    tracemalloc.start()
    try:
        with pytest.raises(RecordingError, match="a line has more than"):
            list(Recording(path))
        assert tracemalloc.get_traced_memory()[1] < 48 << 20
    finally:
        tracemalloc.stop()


def test_a_line_of_many_values_is_refused_before_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kilobyte may unpack to 256 MiB of empty lists, which take 13 GiB of memory."""
    monkeypatch.setattr(recording, "MOST_VALUES", 1_000)
    path = tmp_path / "bomb.jsonl.zst"
    header = json.dumps({"rankwatch": "recording", "version": VERSION, "at": 0})
    path.write_bytes(zstandard.compress(f'{header}\n{{"at": 1, "x": [{"[]," * 1_000_000}[]]}}\n'.encode()))
    tracemalloc.start()
    try:
        with pytest.raises(RecordingError, match="more than 1000 values"):
            list(Recording(path))
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()


LEARNED = ObservedDurations().to_json()
ESCAPE = "\x1b[2J\u202e"
HUGE = {
    "a report of a huge rank": {"report": {"identity": {"job_id": "j", "rank": 10**9, "world_size": 2 * 10**9}}},
    "an event of a huge rank": {
        "process": {"node": "n", "kind": "started", "attempt": 1, "rank": 3 * 10**9, "world_size": 3 * 10**9}
    },
    "a job of a huge world": {"began": {"id": "j", "created_at": 1.0, "last_heard": 1.0, "policy": {}, "body": {
        "name": "", "world_size": 2 * 10**9, "attempt": 1, "attempt_since": 1.0}}},
    "a job of less than none": {"began": {"id": "j", "created_at": 1.0, "last_heard": 1.0, "policy": {}, "body": {
        "name": "", "world_size": -5, "attempt": 1, "attempt_since": 1.0}}},
}  # fmt: skip


@pytest.mark.parametrize("event", HUGE.values(), ids=list(HUGE))
def test_what_is_about_more_ranks_than_any_job_has_is_refused(
    tmp_path: Path, event: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "hostile.jsonl"
    lines = [{"rankwatch": "recording", "version": VERSION, "at": 0}, {"at": 1, "job": f"j{ESCAPE}", **event}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    tracemalloc.start()
    try:
        assert replay([str(path)]) == 2
        assert tracemalloc.get_traced_memory()[1] < 48 << 20
    finally:
        tracemalloc.stop()
    assert not set(ESCAPE[:1] + ESCAPE[-1:]) & set(capsys.readouterr().err)


@pytest.mark.parametrize("kind", ["a report of a huge rank", "a job of a huge world"])
def test_jobs_that_claim_more_ranks_together_than_there_is_room_for_are_refused(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(player, "MOST_OF_ALL", 2500)
    path = tmp_path / "many.jsonl"

    def write(jobs: int) -> None:
        lines = [json.dumps({"rankwatch": "recording", "version": VERSION, "at": 0})]
        for number in range(jobs):
            event = json.dumps({"at": 1, "job": f"j{number}", **HUGE[kind]}).replace('"j"', f'"j{number}"')
            event = event.replace('"policy": {}', f'"policy": {{}}, "learned": {json.dumps(LEARNED)}')
            lines.append(event.replace("2000000000", "1000").replace("1000000000", "999"))
        path.write_text("".join(f"{line}\n" for line in lines))

    write(2)
    assert replay([str(path)]) == 0
    write(3)
    assert replay([str(path)]) == 2
    assert "j2" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["line.csv", "line.csv.gz"])
def test_a_line_of_a_table_without_end_takes_no_memory(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with (gzip.open if name.endswith(".gz") else open)(path, "wb") as file:
        file.write(b"rank,step,optype,start_ts,duration\n")
        for _ in range(8):
            file.write(b" " * (1 << 24))
    tracemalloc.start()
    try:
        assert replay([str(path)]) == 2
        assert tracemalloc.get_traced_memory()[1] < 48 << 20
    finally:
        tracemalloc.stop()
