"""Two real ranks over gloo: what the parts of a step show of a slow one, and of none."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from rankwatch.contract import semconv
from telemetry.profiling.training_ranks import training_ranks
from telemetry.receiver import Receiver, Report

SAMPLES = 3


def parts(reports: list[Report], rank: int) -> dict[str, float]:
    """The median of each part over the sampled steps of a rank, in seconds."""
    found = [r.points[semconv.STEP_PART.name] for r in sampled(reports, rank)]
    return {part: median(points[(part,)] for points in found) for part in ("data", "host", "compute", "communication")}


def sampled(reports: list[Report], rank: int) -> list[Report]:
    return [r for r in reports if r.resource[semconv.RANK] == rank and semconv.STEP_PART.name in r.points]


def closed(reports: list[Report], rank: int) -> set[float | None]:
    """The steps that closed the windows of a rank."""
    return {r.value(semconv.WINDOW_ITERATION.name) for r in reports if r.resource[semconv.RANK] == rank} - {None}


def trained(receiver: Receiver, folder: Path, slow: str) -> list[Report]:
    """Reports of two ranks, until enough of their steps were sampled and enough windows ended with the same step."""

    def enough() -> bool:
        reports = list(receiver.reports)
        # On a busy machine the ranks do not find at once how many steps a window is to have.
        together = closed(reports, 0) & closed(reports, 1)
        return len(together) >= SAMPLES and all(len(sampled(reports, rank)) >= SAMPLES for rank in (0, 1))

    with training_ranks(folder, receiver.url, slow, RANKWATCH_PROFILING_INTERVAL="8"):
        try:
            receiver.wait_for(enough, 90)
        except AssertionError:
            raise AssertionError(*[(folder / f"{rank}.log").read_text()[-2000:] for rank in (0, 1)]) from None
    return receiver.reports


def assert_waits_lie_within_steps(spans: list[Span]) -> None:
    """Those of the healthy rank are as long as the slow one makes it wait; their steps were sent too."""
    by_iteration: dict[int, list[tuple[str, int, int]]] = {}
    for span in spans:
        iteration = next(each.value.int_value for each in span.attributes if each.key == semconv.ATTR_ITERATION)
        by_iteration.setdefault(iteration, []).append((span.name, span.start_time_unix_nano, span.end_time_unix_nano))
    longest = 0
    for iteration, entries in by_iteration.items():
        steps = [(start, end) for name, start, end in entries if name == "step"]
        for name, start, end in entries:
            if name == "communication" and end > start:
                longest = max(longest, end - start)
                assert any(begin < end and start < last for begin, last in steps), f"step {iteration}"
    assert longest > 80_000_000


@pytest.mark.parametrize("slow", ["host", "compute", "data"])
def test_the_healthy_rank_waits_and_the_slow_one_reports_what_for(
    slow: str, receiver: Receiver, tmp_path: Path
) -> None:
    reports = trained(receiver, tmp_path, slow)
    healthy, straggler = parts(reports, 0), parts(reports, 1)
    assert healthy["communication"] > 0.08, (healthy, straggler)
    assert straggler[slow] > 0.08, (healthy, straggler)
    others = {part: seconds for part, seconds in straggler.items() if part != slow}
    assert max(others.values()) < 0.05, (healthy, straggler)
    assert max(healthy["host"], healthy["compute"], healthy["data"]) < 0.05, (healthy, straggler)
    assert_waits_lie_within_steps(receiver.spans)


def test_healthy_ranks_look_alike_and_close_the_same_windows(receiver: Receiver, tmp_path: Path) -> None:
    reports = trained(receiver, tmp_path, "")
    for rank in (0, 1):
        assert "USDT" not in (tmp_path / f"{rank}.log").read_text(), "Kineto writes lines of its own"
        assert max(parts(reports, rank).values()) < 0.05
    assert all(iteration % 8 == 0 for rank in (0, 1) for iteration in closed(reports, rank) if iteration is not None)
    report = next(r for r in reports if semconv.STEP_PART.name in r.points)
    assert report.points[semconv.KERNEL_SOURCE.name].keys() == {("kineto-cpu", "this process uses no GPU")}
    assert report.value(semconv.COLLECTIVE_CALLS.name, "default_pg") >= 1
    busy = report.value(semconv.COLLECTIVE_DURATION.name, "default_pg", "busy")
    assert 0 < report.value(semconv.COLLECTIVE_DURATION.name, "default_pg", "shortest") <= busy
    assert report.value(semconv.WINDOW_SECTION_CALLS.name, "step") == report.value(semconv.WINDOW_STEPS.name)
    kernels = next(r.points[semconv.KERNEL_CALLS.name] for r in reports if semconv.KERNEL_CALLS.name in r.points)
    assert kernels[("aten::addmm[64,16x64,64x64]",)] % 4 == 0, "four layers, so many calls in each sampled step"
