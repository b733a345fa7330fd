from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rankwatch.kernels.source import Collective, Kernel, Trace
from rankwatch.kernels.trace_file import MAX_FILES, write

TRACE = Trace(
    [Kernel("aten::add[8,8]", 2_000, 5_000, 3_000), Kernel("", 5_000, 6_000, 1_000)],
    [Collective("default_pg", "gloo:all_reduce", 4_000, 9_000)],
    [(1_000, 2_000)],
)


def test_what_is_written_is_a_chrome_trace(tmp_path: Path) -> None:
    path = write(tmp_path / "made", "a/job of mine", 3, "../incident 7", TRACE, (1_000, 11_000))
    assert path == tmp_path / "made" / "a_job_of_mine-rank3-.._incident_7.json"
    events = json.loads(path.read_text())["traceEvents"]
    shown = [(e["name"], e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert shown == [
        ("step", 0, 0.0, 10.0),
        ("aten::add[8,8]", 1, 1.0, 3.0),
        ("operator", 1, 4.0, 1.0),
        ("gloo:all_reduce", 2, 3.0, 5.0),
        ("data", 3, 0.0, 1.0),
    ]
    assert [e["args"]["name"] for e in events if e["ph"] == "M"] == ["step", "kernels", "collectives", "data"]
    assert list(path.parent.iterdir()) == [path], "nothing unfinished is left"


def test_only_the_newest_files_are_kept(tmp_path: Path) -> None:
    mine = tmp_path / "notes.json"
    mine.touch()
    for number in range(MAX_FILES + 5):
        path = write(tmp_path, "job", 0, f"t{number}", TRACE, (0, 1))
        os.utime(path, (number, number))
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {mine.name} | {f"job-rank0-t{number}.json" for number in range(5, MAX_FILES + 5)}


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        write(tmp_path / "file" / "folder", "job", 0, "t", TRACE, (0, 1))
