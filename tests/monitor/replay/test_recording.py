"""Recordings: written without ever holding up the monitor, and read back to the last whole line."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any

import pytest

from rankwatch_monitor.core.events import RankIdentity, RankReport
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.replay import recording
from rankwatch_monitor.replay.recording import Entry, Recorder, Recording, RecordingError, Writer
from support.waiting import wait_for

NAMES = ("run.jsonl", "run.jsonl.gz", "run.jsonl.zst")


def report(rank: int = 0, **reported: Any) -> RankReport:
    return RankReport(RankIdentity("job", rank, world_size=4), **reported)


def written(path: Path, *entries: Entry) -> Path:
    writer = Writer(path, 100.0)
    for entry in entries:
        writer.write(entry)
    writer.close()
    return path


@pytest.mark.parametrize("name", NAMES)
def test_what_was_recorded_is_read_back(tmp_path: Path, name: str) -> None:
    entries = [Entry(100.5 + i, "job", report(i % 4, iteration=i)) for i in range(3000)]
    entries += [Entry(9000.0, lost=3), Entry(9001.0)]
    found = Recording(written(tmp_path / name, *entries))
    assert list(found) == entries
    assert not found.truncated


@pytest.mark.parametrize("name", NAMES)
def test_a_monitor_that_is_killed_leaves_all_but_the_last_line(tmp_path: Path, name: str) -> None:
    """What was flushed is there although the file was never closed, and half of what came after it is no error."""
    path = tmp_path / name
    writer = Writer(path, 100.0)
    writer.write(Entry(101.0, "job", report()))
    writer.flush()
    whole = path.stat().st_size
    for i in range(20):
        writer.write(Entry(102.0 + i, "job", report(iteration=i)))
    writer.flush()
    path.write_bytes(path.read_bytes()[: (whole + path.stat().st_size) // 2])
    found = Recording(path)
    entries = list(found)
    assert entries[0] == Entry(101.0, "job", report())
    assert len(entries) < 21
    writer.close()


def test_a_last_line_that_is_cut_off_is_reported(tmp_path: Path) -> None:
    path = written(tmp_path / "run.jsonl", Entry(101.0, "job", report()), Entry(102.0))
    path.write_bytes(path.read_bytes()[:-4])
    found = Recording(path)
    assert [entry.at for entry in found] == [101.0]
    assert found.truncated


HEADER = b'{"rankwatch": "recording", "version": 1, "at": 1.0}\n'


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (HEADER[:20], "line 1: it is cut off"),
        (b"hello\n{}\n", "line 1"),
        (b'{"some": "thing"}\n{}\n', "line 1: this is no recording"),
        (HEADER.replace(b"1,", b"99,") + b"{}\n", "line 1: it has version 99"),
        (HEADER + b'{"at": 2.0}\nnonsense\n{"at": 3.0}\n', "line 3"),
        (HEADER + b"{}\n", "line 2: it has no time"),
        (HEADER + b"[1]\n", "line 2: it is no object"),
        (HEADER + b'{"at": 2.0, "job": "a", "mystery": {}}\n', "line 2: it holds no event"),
        (HEADER + b'{"at": 2.0, "job": "a", "report": {}}\n', "line 2: RankReport lacks identity"),
        (HEADER + b'{"at": 2.0}\n{"at": 1.0}\n', "line 3: it is 1 s before"),
    ],
)
def test_what_is_odd_gets_an_error_that_names_the_line(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=words):
        list(Recording(path))


@pytest.mark.parametrize("name", NAMES[1:])
def test_a_packed_file_that_is_damaged_gets_words(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name, *(Entry(101.0 + i, "job", report(iteration=i * i)) for i in range(500)))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    content[2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(RecordingError):
        list(Recording(path))


def test_a_recorder_reports_each_job_before_its_first_event(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.jsonl.gz", 100.0)
    first, second = Job("a", 99.0), Job("b", 100.0)
    for at, job in ((101.0, first), (102.0, first), (103.0, second)):
        recorder.put(at, job, report())
    recorder.put(104.0, Job("a", 104.0), report())
    recorder.tick(104.1)
    recorder.put(104.2, second, report())
    recorder.tick(120.0)
    recorder.close(121.0)
    entries = list(Recording(recorder.path))
    assert [(e.at, e.job_id, e.began is not None) for e in entries] == [
        (101.0, "a", True),
        (101.0, "a", False),
        (102.0, "a", False),
        (103.0, "b", True),
        (103.0, "b", False),
        (104.0, "a", True),
        (104.0, "a", False),
        (104.2, "b", False),
        (120.0, None, False),
        (121.0, None, False),
    ]
    assert [e.ticked for e in entries if e.at == 104.2] == [104.1]
    assert recorder.lost == 0


def test_a_recording_that_is_there_is_never_overwritten(tmp_path: Path) -> None:
    for number in range(3):
        Recorder(tmp_path / "run.jsonl.gz", 100.0 + number).close(200.0)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.1.jsonl.gz", "run.2.jsonl.gz", "run.jsonl.gz"]


def test_a_folder_that_is_not_there_is_refused_with_words(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--record: cannot write .*No such file"):
        Recorder(tmp_path / "none" / "run.jsonl", 100.0)


class FullDisk:
    """Takes so many bytes, then none."""

    def __init__(self, file: Any, room: int) -> None:
        self.close = file.close
        self.room = room

    def write(self, data: bytes) -> int:
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return len(data)

    def flush(self) -> None: ...


def test_a_full_disk_ends_the_recording_but_not_the_monitor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recording, "FLUSH_SECONDS", 0.01)
    recorder = Recorder(tmp_path / "run.jsonl", 100.0)
    monkeypatch.setattr(recorder._writer, "_file", FullDisk(recorder._writer._file, 1000))
    job = Job("a", 99.0)
    with caplog.at_level(logging.INFO, "rankwatch"):
        for i in range(200):
            recorder.put(101.0 + i, job, report())
        wait_for(lambda: "recording has ended" in caplog.text, "the recorder logs the full disk")
        recorder.put(400.0, job, report())
        recorder.close(401.0)
    assert "No space left on device; the monitor continues" in caplog.text
    assert caplog.text.count("recording has ended") == 1
    assert 0 < recorder.lost <= 201
    assert f"{recorder.lost} events were dropped" in caplog.text


def test_a_slow_disk_blocks_no_caller_and_dropped_events_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recording, "QUEUE_LENGTH", 50)
    monkeypatch.setattr(recording, "FLUSH_SECONDS", 0.05)
    recorder = Recorder(tmp_path / "run.jsonl", 100.0)
    job = Job("a", 99.0)
    with caplog.at_level(logging.INFO, "rankwatch"):
        for i in range(5000):
            recorder.put(101.0 + i, job, report(iteration=i))
        recorder.close(9000.0)
    assert caplog.text.count("the disk is too slow") == 1
    entries = list(Recording(recorder.path))
    kept = sum(entry.event is not None for entry in entries)
    assert recorder.lost > 0
    assert kept + recorder.lost == 5000
    assert 0 < sum(entry.lost for entry in entries) <= recorder.lost
