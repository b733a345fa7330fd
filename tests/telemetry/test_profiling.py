"""A whole rank with torch's real profiler: what its exports tell of its speed, and how to change that."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import rankwatch
from rankwatch import sections
from rankwatch.kernels import kineto
from rankwatch.kernels.sampler import DROP_WINDOW
from rankwatch.recorder import NEVER, Recorder
from rankwatch.slots import Slots
from rankwatch.wire import environment, names
from telemetry.receiver import Receiver, Report

ALIVE = {names.KERNEL_SOURCE.name, names.STEP_PART.name}


@pytest.fixture
def rank(receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Slots]:
    """Begins a session that exports often, and returns the slots by which its launcher reaches it."""

    def begin(**variables: str) -> Slots:
        for name, value in {"SLOTS_DIR": str(tmp_path / "slots"), "PROFILING_INTERVAL": "8", **variables}.items():
            monkeypatch.setenv(f"RANKWATCH_{name}", value)
        rankwatch.init(monitor=receiver.url, job_id="j", export_interval=0.05)
        return Slots.open(tmp_path / "slots" / environment.slots_file(0))

    return begin


def train_until(receiver: Receiver, condition: Callable[[Report], Any], seen: int = 0) -> Report:
    """Make steps until a report after the first ``seen`` ones fulfils ``condition``; return it."""
    model = torch.nn.Linear(32, 32)
    for _ in range(100_000):
        with rankwatch.step(), rankwatch.section("forward"):
            model(torch.ones(8, 32)).sum().backward()
        for report in receiver.reports[seen:]:
            if condition(report):
                return report
    raise AssertionError(f"in vain; the last reports: {[list(r.points) for r in receiver.reports[-3:]]}")


def source_is(name: str) -> Callable[[Report], Any]:
    return lambda report: any(key[0] == name for key in report.points.get(names.KERNEL_SOURCE.name, {}))


def has(metric: names.Metric) -> Callable[[Report], Any]:
    return lambda report: metric.name in report.points


def recorder() -> Recorder:
    recorder = sections._recorder
    assert recorder is not None
    return recorder


def test_windows_parts_and_kernels_are_each_told_once(rank: Callable[..., Slots], receiver: Receiver) -> None:
    rank()
    report = train_until(receiver, has(names.STEP_PART))
    parts = report.points[names.STEP_PART.name]
    assert {key[0] for key in parts} == {"data", "host", "compute", "communication"}
    assert report.value(names.WINDOW_ITERATION.name) % 8 == 0
    assert report.value(names.WINDOW_SECTION_CALLS.name, "forward") == report.value(names.WINDOW_STEPS.name)
    statistics = {key[1] for key in report.points[names.WINDOW_SECTION_DURATION.name]}
    assert statistics == {"median", "tail", "max", "mean"}
    kernels = train_until(receiver, has(names.KERNEL_CALLS))
    durations = kernels.points[names.KERNEL_DURATION.name]
    assert {key[1] for key in durations} == {"min", "median", "tail", "max", "mean", "stddev"}
    key = "aten::addmm[32,8x32,32x32]"
    assert durations[key, "min"] <= durations[key, "median"] <= durations[key, "tail"] <= durations[key, "max"]
    receiver.wait_for(lambda: names.WINDOW_ITERATION.name not in receiver.reports[-1].points)
    rankwatch.shutdown()
    told = [r.value(names.WINDOW_ITERATION.name) for r in receiver.reports]
    closed = [iteration for iteration in told if iteration is not None]
    assert len(closed) == len(set(closed)), "each window in one export only"


def test_off_costs_nothing_and_says_so(rank: Callable[..., Slots], receiver: Receiver) -> None:
    rank(KERNEL_TIMINGS="off")
    report = train_until(receiver, source_is("none"))
    assert report.points[names.KERNEL_SOURCE.name].keys() == {("none", "kernel_timings is off")}
    assert report.value(names.WINDOW_ITERATION.name) is not None, "sections are told all the same"
    assert recorder().boundary == NEVER
    assert recorder().at_boundary.__name__ == "_nothing"
    assert not hasattr(torch.autograd.profiler._prepare_profiler, "__closure__"), "torch is as it was"


def test_a_rank_that_is_not_profiled_says_so(rank: Callable[..., Slots], receiver: Receiver) -> None:
    rank(PROFILED_RANKS="1-7")
    report = train_until(receiver, source_is("none"))
    ((_, reason),) = report.points[names.KERNEL_SOURCE.name]
    assert reason == "profiled_ranks is 1-7, which leaves this rank out"
    assert recorder().boundary == NEVER


def test_it_is_switched_while_the_rank_runs(rank: Callable[..., Slots], receiver: Receiver) -> None:
    slots = rank()
    train_until(receiver, has(names.STEP_PART))
    slots.hand_down({"profiling": {"source": "off"}})
    train_until(receiver, source_is("none"), len(receiver.reports))
    train_until(receiver, lambda _: recorder().boundary == NEVER, len(receiver.reports))
    assert torch.autograd.profiler._prepare_profiler is torch._C._autograd._prepare_profiler
    slots.hand_down({"profiling": {"source": "auto", "stride": 16}})
    train_until(receiver, has(names.STEP_PART), len(receiver.reports))
    seen = len(receiver.reports)
    train_until(receiver, has(names.WINDOW_ITERATION), seen)
    closed = [r.value(names.WINDOW_ITERATION.name) for r in receiver.reports[seen:]]
    assert all(iteration % 16 == 0 for iteration in closed if iteration is not None)
    slots.hand_down({})
    train_until(receiver, lambda r: (r.value(names.WINDOW_ITERATION.name) or 0) % 16 == 8, seen)


def test_a_source_that_cannot_be_had_is_said_once_and_training_goes_on(
    rank: Callable[..., Slots], receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "rankwatch"):
        rank(KERNEL_TIMINGS="cupti")
        reports = [train_until(receiver, source_is("none"))]
        reports.append(train_until(receiver, source_is("none"), len(receiver.reports)))
    ((_, reason),) = reports[-1].points[names.KERNEL_SOURCE.name]
    assert "cupti needs a GPU" in reason
    assert [record.message.count("cupti needs a GPU") for record in caplog.records] == [1]


def test_a_source_that_breaks_is_given_up_with_one_warning(
    rank: Callable[..., Slots],
    receiver: Receiver,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(self: kineto.KinetoSource) -> None:
        raise RuntimeError("torch has changed its mind")

    monkeypatch.setattr(kineto.KinetoSource, "start", broken)
    with caplog.at_level(logging.WARNING, "rankwatch"):
        rank()
        report = train_until(receiver, source_is("none"))
        train_until(receiver, source_is("none"), len(receiver.reports))
    ((_, reason),) = report.points[names.KERNEL_SOURCE.name]
    assert reason == "3 windows in a row failed: torch has changed its mind"
    assert [record.levelname for record in caplog.records if "switched off" in record.message] == ["WARNING"]
    assert recorder().dropped[DROP_WINDOW] == 3
    assert torch.autograd.profiler._prepare_profiler is torch._C._autograd._prepare_profiler


def test_the_trace_of_a_suspect_is_written_once(
    rank: Callable[..., Slots], receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "traces"
    slots = rank(TRACE_DIR=str(folder))
    with caplog.at_level(logging.WARNING, "rankwatch"):
        slots.hand_down({"profiling": {"trace": {"rank": 0, "id": "incident-7"}}})
        train_until(receiver, lambda _: (folder / "j-rank0-incident-7.json").exists())
        seen = len(receiver.reports)
        (folder / "j-rank0-incident-7.json").rename(folder / "mine.json")
        for _ in range(2):
            train_until(receiver, has(names.STEP_PART), seen)
            seen = len(receiver.reports)
    assert [path.name for path in folder.iterdir()] == ["mine.json"]
    assert json.loads((folder / "mine.json").read_text())["traceEvents"]
    assert len([record for record in caplog.records if str(folder) in record.message]) == 1


def test_a_child_that_is_forked_in_a_sampled_step_is_not_profiled(
    rank: Callable[..., Slots], receiver: Receiver
) -> None:
    rank()
    train_until(receiver, has(names.STEP_PART))
    for _ in range(100_000):
        with rankwatch.step():
            profiled = torch._C._autograd._profiler_enabled()
            if profiled:
                child = os.fork()
                if child == 0:
                    os._exit(3 if torch._C._autograd._profiler_enabled() else 7)
        if profiled:
            break
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert recorder().dropped[DROP_WINDOW] == 1
    train_until(receiver, has(names.STEP_PART), len(receiver.reports))


def test_shutdown_in_a_sampled_step_leaves_no_profiler_behind(rank: Callable[..., Slots], receiver: Receiver) -> None:
    rank()
    train_until(receiver, has(names.STEP_PART))
    for _ in range(100_000):
        with rankwatch.step():
            if torch._C._autograd._profiler_enabled():
                rankwatch.shutdown()
                break
    assert not torch._C._autograd._profiler_enabled()
    assert torch.autograd.profiler._prepare_profiler is torch._C._autograd._prepare_profiler


def test_a_rank_without_steps_tells_windows_without_a_number(
    rank: Callable[..., Slots], receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankwatch.windows.WINDOW_SECONDS", 0.2)
    rank()

    def train() -> Report | None:
        with rankwatch.section("epoch"):
            pass
        return next((r for r in receiver.reports if names.WINDOW_SECTION_CALLS.name in r.points), None)

    report = None
    while report is None:
        report = train()
    assert report.value(names.WINDOW_SECTION_CALLS.name, "epoch") > 0
    assert names.WINDOW_ITERATION.name not in report.points
    assert report.value(names.WINDOW_STEPS.name) == 0


def test_settings_that_were_handed_down_before_the_session_began_count(
    rank: Callable[..., Slots], receiver: Receiver, tmp_path: Path
) -> None:
    folder = tmp_path / "slots"
    folder.mkdir()
    Slots.create(folder / environment.slots_file(0)).hand_down({"profiling": {"source": "off"}})
    rank()
    ((_, reason),) = train_until(receiver, has(names.KERNEL_SOURCE)).points[names.KERNEL_SOURCE.name]
    assert reason == "kernel_timings is off"
    assert recorder().boundary == NEVER


def test_a_session_that_ends_before_its_first_report_makes_no_source(
    rank: Callable[..., Slots], receiver: Receiver
) -> None:
    rank()
    for _ in range(20):
        with rankwatch.step():
            pass
    rankwatch.shutdown()
    receiver.wait_for(lambda: any(has(names.SESSION_ENDED)(report) for report in receiver.reports))
    assert torch.autograd.profiler._prepare_profiler is torch._C._autograd._prepare_profiler
