"""A recording may come from another: what is none is refused in words, whatever it holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
def test_a_hostile_recording_is_refused_in_words(tmp_path: Path, line: str) -> None:
    path = tmp_path / "hostile.jsonl"
    path.write_text(json.dumps({"rankwatch": "recording", "version": VERSION, "at": 0}) + f"\n{line}\n")
    with pytest.raises(RecordingError):
        list(Recording(path))
