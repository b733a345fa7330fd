"""A recording may come from another: what is none is refused in words, whatever it holds."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest
import zstandard

from rankwatch_monitor.replay import recording
from rankwatch_monitor.replay.recording import VERSION, Recording, RecordingError

LINES = {
    "deep": "[" * 200_000,
    "a deep event": '{"at": 1, "job": "j", "report": ' + '{"a":' * 100_000,
    "no time": '{"at": NaN}',
    "a time beyond all": '{"at": 1e300}',
    "a long number": '{"at": ' + "9" * 400 + "}",
    "a very long number": '{"at": ' + "9" * 5000 + "}",
    "a pickle": "cos\nsystem\n(S'false'\ntR.",
}


@pytest.mark.parametrize("line", LINES.values(), ids=list(LINES))
def test_a_hostile_recording_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "hostile.jsonl"
    path.write_text(json.dumps({"rankwatch": "recording", "version": VERSION, "at": 0}) + f"\n{line}\n")
    with pytest.raises(RecordingError):
        list(Recording(path))


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
