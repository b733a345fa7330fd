from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch.profiling.plan import ProfilingPlan, TraceRequest
from rankwatch.profiling.sampler import Sample
from rankwatch.profiling.source import Kernel, Trace
from rankwatch.profiling.trace_request import TraceRequests
from rankwatch.settings import load

SAMPLE = Sample(64, (0, 10), (0, 10), Trace([Kernel("k", 1, 2, 1)]), 0)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def requests(tmp_path: Path, said: list[str]) -> TraceRequests:
    settings, _ = load({"rank": 3}, {"RANKWATCH_JOB_ID": "j", "RANKWATCH_TRACE_DIR": str(tmp_path / "traces")})
    return TraceRequests(settings, lambda words, **_: said.append(words))


def plan(rank: int, name: str) -> ProfilingPlan:
    return ProfilingPlan(trace=TraceRequest(rank, name))


def test_each_request_is_answered_once(requests: TraceRequests, said: list[str], tmp_path: Path) -> None:
    for wanted in (plan(3, "a"), plan(3, "a"), plan(3, "b")):
        requests.answer(wanted, SAMPLE, [])
        assert not requests.open(wanted)
    assert {path.name for path in (tmp_path / "traces").iterdir()} == {"j-rank3-a.json", "j-rank3-b.json"}
    assert said[0] == f"the trace of step 64 of rank 3 is in {tmp_path}/traces/j-rank3-a.json"
    assert len(said) == 2


def test_a_request_for_another_rank_is_none_of_ours(requests: TraceRequests, said: list[str], tmp_path: Path) -> None:
    requests.answer(plan(2, "a"), SAMPLE, [])
    requests.refuse(plan(2, "a"), "it is off")
    requests.refuse(ProfilingPlan(), "it is off")
    assert said == []
    assert not (tmp_path / "traces").exists()


def test_a_request_that_was_refused_is_still_open(requests: TraceRequests, said: list[str]) -> None:
    requests.refuse(plan(3, "a"), "kernel_timings is off")
    assert said == ["the trace of rank 3 that was asked for cannot be made: kernel_timings is off"]
    assert requests.open(plan(3, "a"))


def test_a_folder_that_cannot_be_written_is_said(requests: TraceRequests, said: list[str], tmp_path: Path) -> None:
    (tmp_path / "traces").touch()
    requests.answer(plan(3, "a"), SAMPLE, [])
    assert "set RANKWATCH_TRACE_DIR to a folder in which this process may write" in said[0]
