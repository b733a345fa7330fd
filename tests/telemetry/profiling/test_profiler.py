"""A whole rank with torch's real profiler: what its exports show of its speed, and how to change that."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import rankwatch
from rankwatch.contract import env, semconv
from rankwatch.profiling import kineto
from rankwatch.profiling.profiler import Profiling
from rankwatch.profiling.sampler import DROP_WINDOW
from rankwatch.recording import sections
from rankwatch.recording.recorder import NEVER, Recorder, SectionRun
from rankwatch.recording.shared_slots import Slots
from rankwatch.settings import load
from support.waiting import wait_for
from telemetry.receiver import Receiver, Report

PATIENCE = 60.0
STEP = 0.001
"""Seconds: of steps that are much faster, on a busy machine, one in thousands is sampled."""


@pytest.fixture
def rank(receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Slots]:
    """Begins a session that exports often, and returns the slots by which its launcher reaches it."""

    def begin(**variables: str) -> Slots:
        for name, value in {"SLOTS_DIR": str(tmp_path / "slots"), "PROFILING_INTERVAL": "8", **variables}.items():
            monkeypatch.setenv(f"RANKWATCH_{name}", value)
        rankwatch.init(monitor=receiver.url, job_id="j", export_interval=0.05)
        return Slots.open(tmp_path / "slots" / env.slots_file(0))

    return begin


@pytest.fixture
def recorder_only() -> Recorder:
    """A recorder that the hot path records into, without threads."""
    made = Recorder(Slots.private())
    sections.attach(made)
    return made


def train_until(receiver: Receiver, condition: Callable[[Report], Any], seen: int = 0) -> Report:
    """Make steps until a report after the first ``seen`` ones fulfils ``condition``; return it."""
    model = torch.nn.Linear(32, 32)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        with rankwatch.step(), rankwatch.section("forward"):
            model(torch.ones(8, 32)).sum().backward()
            time.sleep(STEP)
        for report in receiver.reports[seen:]:
            if condition(report):
                return report
    raise AssertionError(f"in vain; the last reports: {[list(r.points) for r in receiver.reports[-3:]]}")


def source_is(name: str) -> Callable[[Report], Any]:
    return lambda report: any(key[0] == name for key in report.points.get(semconv.KERNEL_SOURCE.name, {}))


def has(metric: semconv.Metric) -> Callable[[Report], Any]:
    return lambda report: metric.name in report.points


def torch_is_as_it_was() -> bool:
    return torch.autograd.profiler._prepare_profiler is torch._C._autograd._prepare_profiler


def recorder() -> Recorder:
    recorder = sections._recorder
    assert recorder is not None
    return recorder


def test_windows_parts_and_kernels_are_each_reported_once(rank: Callable[..., Slots], receiver: Receiver) -> None:
    rank()
    report = train_until(receiver, has(semconv.STEP_PART))
    parts = report.points[semconv.STEP_PART.name]
    assert {key[0] for key in parts} == {"data", "host", "compute", "communication"}
    assert report.value(semconv.WINDOW_ITERATION.name) % 8 == 0
    assert report.value(semconv.WINDOW_SECTION_CALLS.name, "forward") == report.value(semconv.WINDOW_STEPS.name)
    statistics = {key[1] for key in report.points[semconv.WINDOW_SECTION_DURATION.name]}
    assert statistics == {"median", "tail", "max", "mean"}
    kernels = train_until(receiver, has(semconv.KERNEL_CALLS))
    durations = kernels.points[semconv.KERNEL_DURATION.name]
    assert {key[1] for key in durations} == {"min", "median", "tail", "max", "mean", "stddev"}
    key = "aten::addmm[32,8x32,32x32]"
    assert durations[key, "min"] <= durations[key, "median"] <= durations[key, "tail"] <= durations[key, "max"]
    receiver.wait_for(lambda: semconv.WINDOW_ITERATION.name not in receiver.reports[-1].points)
    rankwatch.shutdown()
    reported = [r.value(semconv.WINDOW_ITERATION.name) for r in receiver.reports]
    closed = [iteration for iteration in reported if iteration is not None]
    assert len(closed) == len(set(closed)), "each window in one export only"


def test_off_costs_nothing_and_reports_it(rank: Callable[..., Slots], receiver: Receiver) -> None:
    rank(KERNEL_TIMINGS="off")
    report = train_until(receiver, source_is("none"))
    assert report.points[semconv.KERNEL_SOURCE.name].keys() == {("none", "kernel_timings is off")}
    assert report.value(semconv.WINDOW_ITERATION.name) is not None, "sections are reported all the same"
    assert recorder().boundary == NEVER
    assert recorder().at_boundary.__name__ == "_nothing"
    assert not hasattr(torch.autograd.profiler._prepare_profiler, "__closure__"), "torch is as it was"


def test_a_rank_that_is_not_profiled_reports_it(rank: Callable[..., Slots], receiver: Receiver) -> None:
    rank(PROFILED_RANKS="1-7")
    report = train_until(receiver, source_is("none"))
    ((_, reason),) = report.points[semconv.KERNEL_SOURCE.name]
    assert reason == "profiled_ranks is 1-7, which leaves this rank out"
    assert recorder().boundary == NEVER


def test_it_is_switched_while_the_rank_runs(rank: Callable[..., Slots], receiver: Receiver) -> None:
    slots = rank()
    train_until(receiver, has(semconv.STEP_PART))
    slots.write_settings({"profiling": {"source": "off"}})
    train_until(receiver, source_is("none"), len(receiver.reports))
    train_until(receiver, lambda _: recorder().boundary == NEVER, len(receiver.reports))
    assert torch.autograd.profiler._prepare_profiler is torch._C._autograd._prepare_profiler
    slots.write_settings({"profiling": {"source": "auto", "stride": 24}})
    train_until(receiver, has(semconv.STEP_PART), len(receiver.reports))
    seen = len(receiver.reports)
    train_until(receiver, has(semconv.WINDOW_ITERATION), seen)
    closed = [r.value(semconv.WINDOW_ITERATION.name) for r in receiver.reports[seen:]]
    assert all(iteration % 24 == 0 for iteration in closed if iteration is not None)
    slots.write_settings({})
    train_until(receiver, lambda r: (r.value(semconv.WINDOW_ITERATION.name) or 0) % 24, seen)


def test_an_interval_that_is_too_short_to_be_reported_is_lengthened_and_reported(
    rank: Callable[..., Slots],
    receiver: Receiver,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def warned() -> bool:
        return any(r.message.startswith("profiling_interval=1 is less than a rank can") for r in caplog.records)

    monkeypatch.setattr(f"{__name__}.STEP", 0.0)  # on a busy machine a longer step would not be too fast
    with caplog.at_level(logging.WARNING, "rankwatch"):
        rank(PROFILING_INTERVAL="1")
        for rounds in range(100):
            train_until(receiver, has(semconv.STEP_PART), len(receiver.reports))
            closed = [r for r in receiver.reports if semconv.WINDOW_ITERATION.name in r.points]
            sampled = [r for r in closed[-4:] if semconv.STEP_PART.name in r.points]
            if rounds >= 4 and len(sampled) >= 3 and warned():
                break
    assert warned()
    assert len(sampled) >= 3, "nearly each window is sampled in the end, and so are those of the other ranks"
    assert recorder().dropped.get("windows", 0) <= 8, "only in the beginning, while steps were not known"


def test_a_source_that_cannot_be_had_is_reported_once_and_training_goes_on(
    rank: Callable[..., Slots], receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "rankwatch"):
        rank(KERNEL_TIMINGS="cupti")
        reports = [train_until(receiver, source_is("none"))]
        reports.append(train_until(receiver, source_is("none"), len(receiver.reports)))
    ((_, reason),) = reports[-1].points[semconv.KERNEL_SOURCE.name]
    assert "cupti needs a GPU" in reason
    assert len([record for record in caplog.records if "cupti needs a GPU" in record.message]) == 1


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
    ((_, reason),) = report.points[semconv.KERNEL_SOURCE.name]
    assert reason == "3 consecutive windows failed: torch has changed its mind"
    assert [record.levelname for record in caplog.records if "switched off" in record.message] == ["WARNING"]
    assert recorder().dropped[DROP_WINDOW] == 3
    assert torch.autograd.profiler._prepare_profiler is torch._C._autograd._prepare_profiler


def test_why_there_is_no_trace_is_reported(
    rank: Callable[..., Slots], receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "rankwatch"):
        rank(KERNEL_TIMINGS="off").write_settings({"profiling": {"trace": {"rank": 0, "id": "incident-7"}}})
        train_until(receiver, lambda _: any("trace" in record.message for record in caplog.records))
    printed = [record.message for record in caplog.records if "trace" in record.message]
    assert printed == ["the requested trace of rank 0 cannot be made: kernel_timings is off"]


def test_what_all_ranks_of_a_node_would_state_one_of_them_states(
    rank: Callable[..., Slots], receiver: Receiver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "1")
    with caplog.at_level(logging.WARNING, "rankwatch"):
        rankwatch.init(monitor=receiver.url, job_id="j", rank=1, local_rank=1, export_interval=0.05)
        recorder().slots.write_settings({"profiling": {"source": "cupti", "stride": 8}})
        ((_, reason),) = train_until(
            receiver, lambda r: any("cupti" in key[1] for key in r.points.get(semconv.KERNEL_SOURCE.name, {}))
        ).points[semconv.KERNEL_SOURCE.name]
    assert "cupti needs a GPU" in reason, "each rank reports it to the monitor"
    assert [record.message for record in caplog.records if "cupti" in record.message] == []


class Clock:
    """Notes by how many steps it was asked to divide."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def per_step(self, steps: int) -> tuple[float, float]:
        self.asked.append(steps)
        return 1.0, 0.0


def test_cpu_time_is_divided_by_the_steps_made_while_it_was_used(recorder_only: Recorder) -> None:
    variables = {"RANKWATCH_PROFILING_INTERVAL": "8", "RANKWATCH_KERNEL_TIMINGS": "off"}
    settings, _ = load({"rank": 0}, {"RANKWATCH_JOB_ID": "j", **variables})
    profiling = Profiling(recorder_only, settings)
    clock = profiling._cpu = Clock()  # type: ignore[assignment]
    now = 0.0

    def report(steps: int) -> tuple[float, float] | None:
        nonlocal now
        now += 10.0
        runs = []
        for _ in range(steps):
            iteration = recorder_only.iteration
            with rankwatch.step():
                pass
            end = round((now + iteration) * 1e9)
            runs.append(SectionRun("step", end - 10**9, end, iteration, False))
        profiling.take(profiling.mark(), runs, now)
        return profiling.next(now).cpu

    assert report(3) is None, "these warm up"
    assert report(10) == (1.0, 0.0), "8 closed a window"
    assert report(2) is None
    assert report(5) == (1.0, 0.0), "16 closed one: read at step 19, not at 16"
    assert clock.asked == [1, 10, 7]


def test_the_trace_of_a_suspect_is_written_once(
    rank: Callable[..., Slots], receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "traces"
    slots = rank(TRACE_DIR=str(folder))
    with caplog.at_level(logging.WARNING, "rankwatch"):
        slots.write_settings({"profiling": {"trace": {"rank": 0, "id": "incident-7"}}})
        train_until(receiver, lambda _: (folder / "j-rank0-incident-7.json").exists())
        seen = len(receiver.reports)
        (folder / "j-rank0-incident-7.json").rename(folder / "mine.json")
        for _ in range(2):
            train_until(receiver, has(semconv.STEP_PART), seen)
            seen = len(receiver.reports)
    assert [path.name for path in folder.iterdir()] == ["mine.json"]
    events = json.loads((folder / "mine.json").read_text())["traceEvents"]
    assert {"step", "forward"} <= {event["name"] for event in events}
    assert any(event["name"].startswith("aten::addmm") for event in events), "operators have names, with shapes or not"
    assert len([record for record in caplog.records if str(folder) in record.message]) == 1


@pytest.mark.long
def test_a_child_that_is_forked_in_a_sampled_step_is_not_profiled(
    rank: Callable[..., Slots], receiver: Receiver
) -> None:
    rank()
    train_until(receiver, has(semconv.STEP_PART))
    for _ in range(100_000):
        with rankwatch.step():
            profiled = torch._C._autograd._profiler_enabled()
            time.sleep(STEP)
            if profiled:
                child = os.fork()
                if child == 0:
                    os._exit(3 if torch._C._autograd._profiler_enabled() else 7)
        if profiled:
            break
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert recorder().dropped[DROP_WINDOW] == 1
    train_until(receiver, has(semconv.STEP_PART), len(receiver.reports))


def test_shutdown_in_a_sampled_step_leaves_no_profiler_behind(rank: Callable[..., Slots], receiver: Receiver) -> None:
    rank()
    train_until(receiver, has(semconv.STEP_PART))
    for _ in range(100_000):
        with rankwatch.step():
            if torch._C._autograd._profiler_enabled():
                rankwatch.shutdown()
                break
    assert not torch._C._autograd._profiler_enabled()
    wait_for(torch_is_as_it_was, "the last report gives torch its names back")


def test_a_rank_without_steps_reports_windows_without_a_number(
    rank: Callable[..., Slots], receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankwatch.contract.intervals.WINDOW_SECONDS", 0.2)
    rank()

    def train() -> Report | None:
        with rankwatch.section("epoch"):
            pass
        return next((r for r in receiver.reports if semconv.WINDOW_SECTION_CALLS.name in r.points), None)

    report = None
    while report is None:
        report = train()
    assert report.value(semconv.WINDOW_SECTION_CALLS.name, "epoch") > 0
    assert semconv.WINDOW_ITERATION.name not in report.points
    assert report.value(semconv.WINDOW_STEPS.name) == 0


def test_settings_that_were_handed_down_before_the_session_began_count(
    rank: Callable[..., Slots], receiver: Receiver, tmp_path: Path
) -> None:
    folder = tmp_path / "slots"
    folder.mkdir()
    Slots.create(folder / env.slots_file(0)).write_settings({"profiling": {"source": "off"}})
    rank()
    ((_, reason),) = train_until(receiver, has(semconv.KERNEL_SOURCE)).points[semconv.KERNEL_SOURCE.name]
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
    receiver.wait_for(lambda: any(has(semconv.SESSION_ENDED)(report) for report in receiver.reports))
    assert torch_is_as_it_was()
