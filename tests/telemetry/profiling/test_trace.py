"""Traces on request: the file, and the one answer to each request."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from pathlib import Path

import pytest

from rankwatch.profiling.plan import ProfilingPlan, TraceRequest
from rankwatch.profiling.source import Collective, Kernel, Sample, Trace
from rankwatch.profiling.trace import MAX_FILES, MAX_LANES, TraceRequests, write_trace
from rankwatch.settings import load

TRACE = Trace(
    [Kernel("aten::add[8,8]", 2_000, 5_000, 3_000), Kernel("", 5_000, 6_000, 1_000, "aten::mul")],
    [Collective("default_pg", "gloo:all_reduce", 4_000, 9_000)],
    [(1_000, 2_000)],
)


def shown(path: Path) -> dict[str, list[list[str]]]:
    """By kind of lane, the names in each."""
    events = json.loads(path.read_text())["traceEvents"]
    kinds = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found: dict[str, list[list[str]]] = {}
    for tid, kind in kinds.items():
        found.setdefault(kind, []).append([e["name"] for e in events if e["ph"] == "X" and e["tid"] == tid])
    return found


def test_what_is_written_is_a_chrome_trace(tmp_path: Path) -> None:
    sections = [("forward", 2_000, 6_000)]
    path = write_trace(tmp_path / "made", "a/job of mine", 3, "../incident 7", TRACE, (1_000, 11_000), sections)
    assert path == tmp_path / "made" / "a_job_of_mine-rank3-.._incident_7.json"
    events = json.loads(path.read_text())["traceEvents"]
    assert [(e["name"], e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"] == [
        ("step", 0, 0.0, 10.0),
        ("forward", 1, 1.0, 4.0),
        ("aten::add[8,8]", 2, 1.0, 3.0),
        ("aten::mul", 2, 4.0, 1.0),
        ("gloo:all_reduce", 3, 3.0, 5.0),
        ("data", 4, 0.0, 1.0),
    ]
    assert list(shown(path)) == ["step", "sections", "operators", "collectives", "data loader"]
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["rank 3"]
    assert list(path.parent.iterdir()) == [path], "nothing unfinished is left"


def test_what_overlaps_is_in_lanes_of_its_own_and_what_nests_is_not(tmp_path: Path) -> None:
    spans = {"a": (0, 10), "in a": (2, 9), "over the end of a": (5, 12), "after a": (10, 11), "b": (12, 20)}
    collectives = [Collective("g", name, *span) for name, span in spans.items()]
    path = write_trace(tmp_path, "job", 0, "t", Trace(collectives=collectives), (0, 20))
    assert shown(path)["collectives"] == [["a", "in a", "after a", "b"], ["over the end of a"]]


def test_a_thousand_that_overlap_do_not_make_a_thousand_lanes(tmp_path: Path) -> None:
    collectives = [Collective("g", str(n), n, n + 1_000) for n in range(1_000)]
    path = write_trace(tmp_path, "job", 0, "t", Trace(collectives=collectives), (0, 2_000))
    lanes = shown(path)["collectives"]
    assert len(lanes) == MAX_LANES
    assert sum(map(len, lanes)) == 1_000


def test_only_the_newest_files_are_kept(tmp_path: Path) -> None:
    mine = tmp_path / "notes.json"
    mine.touch()
    for number in range(MAX_FILES + 5):
        path = write_trace(tmp_path, "job", 0, f"t{number}", TRACE, (0, 1))
        os.utime(path, (number, number))
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {mine.name} | {f"job-rank0-t{number}.json" for number in range(5, MAX_FILES + 5)}


def test_only_own_traces_are_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results-rank0-eval.json"
    results.write_text("{}")
    victim = tmp_path / "victim"
    victim.write_text('{"displayTimeUnit": "ms", "traceEvents": [\n]}\n')
    link = tmp_path / "job-rank0-link.json"
    link.symlink_to(victim)
    uid = os.geteuid()
    theirs = {write_trace(tmp_path, "theirs", 0, f"t{number}", TRACE, (0, 1)) for number in range(MAX_FILES)}
    real = os.lstat

    def lstat(path: Path, **given: object) -> os.stat_result:
        found = list(real(path))
        found[4] = uid + 1 if Path(path) in theirs else found[4]
        return os.stat_result(found)

    monkeypatch.setattr(Path, "lstat", lstat)
    for number in range(MAX_FILES + 2):
        os.utime(write_trace(tmp_path, "job", 0, f"t{number}", TRACE, (0, 1)), (10 + number, 10 + number))
    kept = set(tmp_path.iterdir())
    assert kept >= {results, victim, link, *theirs}
    assert len(kept) == 3 + len(theirs) + MAX_FILES


def test_a_trace_never_replaces_what_is_no_trace(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    planted = tmp_path / "job-rank0-a.json"
    planted.symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_trace(tmp_path, "job", 0, "a", TRACE, (0, 1))
    results = tmp_path / "job-rank0-b.json"
    results.write_text("{}")
    with pytest.raises(FileExistsError):
        write_trace(tmp_path, "job", 0, "b", TRACE, (0, 1))
    assert (victim.read_text(), results.read_text(), planted.is_symlink()) == ("kept", "{}", True)
    again = [write_trace(tmp_path, "job", 0, "c", TRACE, (0, 1)) for _ in range(2)]
    assert again[0] == again[1], "a rank that was restarted answers a request again"


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        write_trace(tmp_path / "file" / "folder", "job", 0, "t", TRACE, (0, 1))


SAMPLE = Sample(64, (0, 10), (0, 10), Trace([Kernel("k", 1, 2, 1)]), 0)


@pytest.fixture
def printed() -> list[str]:
    return []


@pytest.fixture
def requests(tmp_path: Path, printed: list[str]) -> TraceRequests:
    settings, _ = load({"rank": 3}, {"RANKWATCH_JOB_ID": "j", "RANKWATCH_TRACE_DIR": str(tmp_path / "traces")})
    return TraceRequests(settings, lambda words, **_: printed.append(words))


def plan(rank: int, name: str) -> ProfilingPlan:
    return ProfilingPlan(trace=TraceRequest(rank, name))


def test_each_request_is_answered_once(requests: TraceRequests, printed: list[str], tmp_path: Path) -> None:
    for wanted in (plan(3, "a"), plan(3, "a"), plan(3, "b")):
        requests.answer(wanted, SAMPLE, [])
        assert not requests.open(wanted)
    assert {path.name for path in (tmp_path / "traces").iterdir()} == {"j-rank3-a.json", "j-rank3-b.json"}
    assert printed[0] == f"the trace of step 64 of rank 3 is in {tmp_path}/traces/j-rank3-a.json"
    assert len(printed) == 2


def test_a_request_for_another_rank_is_none_of_ours(
    requests: TraceRequests, printed: list[str], tmp_path: Path
) -> None:
    requests.answer(plan(2, "a"), SAMPLE, [])
    requests.refuse(plan(2, "a"), "it is off")
    requests.refuse(ProfilingPlan(), "it is off")
    assert printed == []
    assert not (tmp_path / "traces").exists()


def test_a_request_that_was_refused_is_still_open(requests: TraceRequests, printed: list[str]) -> None:
    requests.refuse(plan(3, "a"), "kernel_timings is off")
    assert printed == ["the requested trace of rank 3 cannot be made: kernel_timings is off"]
    assert requests.open(plan(3, "a"))


def test_a_folder_that_cannot_be_written_is_reported(
    requests: TraceRequests, printed: list[str], tmp_path: Path
) -> None:
    (tmp_path / "traces").touch()
    requests.answer(plan(3, "a"), SAMPLE, [])
    assert "set RANKWATCH_TRACE_DIR to a folder in which this process may write" in printed[0]


def test_without_a_setting_traces_go_to_a_private_folder(
    printed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    settings, _ = load({"rank": 3}, {"RANKWATCH_JOB_ID": "j"})
    TraceRequests(settings, lambda words, **_: printed.append(words)).answer(plan(3, "a"), SAMPLE, [])
    folder = tmp_path / f"rankwatch.{os.geteuid()}" / "traces"
    assert [path.name for path in folder.iterdir()] == ["j-rank3-a.json"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o777)
    TraceRequests(settings, lambda words, **_: printed.append(words)).answer(plan(3, "b"), SAMPLE, [])
    assert len(list(folder.iterdir())) == 1
    assert "open to other users" in printed[-1]
