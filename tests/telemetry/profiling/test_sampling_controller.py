from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import pytest

import rankwatch
from rankwatch.contract.enums import KernelSource, Part
from rankwatch.contract.policy import parse_ranks
from rankwatch.profiling import sampler as module
from rankwatch.profiling.plan import ProfilingPlan
from rankwatch.profiling.sampler import (
    MAX_MULTIPLE,
    SAMPLES_REPORTED,
    SamplingController,
    SourceChoice,
    StepPace,
    choose_source,
)
from rankwatch.profiling.source import NO_SOURCE, Kernel, Trace
from rankwatch.recording.recorder import Recorder
from rankwatch.settings import load

torch = pytest.importorskip("torch")
STRIDE = 2


class Clock:
    """The clocks that the sampler reads: they go on by what a source costs, whatever else the machine does."""

    def __init__(self) -> None:
        self.at = time.time_ns()

    def __getattr__(self, name: str) -> Any:
        return {
            "monotonic": lambda: self.at / 1e9,
            **dict.fromkeys(("monotonic_ns", "thread_time_ns", "time_ns"), lambda: self.at),
        }[name]


class Source:
    """One kernel of half a second in each step; takes the thread so long to stop as instructed."""

    name = "test"

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.costs = 0.0
        self.keys = ("k",)
        self.truncated = 0
        self.closed = 0

    def start(self) -> None:
        pass

    def stop(self) -> Any:
        self.clock.at += round(self.costs * 1e9)

    def read(self, raw: Any, limit: int) -> Trace:
        return Trace([Kernel(key, 0, 500_000_000, 500_000_000) for key in self.keys], truncated=self.truncated)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    clock = Clock()
    source = Source(clock)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "choose_source", lambda *_: SourceChoice(source, "why"))
    return source


@pytest.fixture
def sampling(recorder: Recorder) -> SamplingController:
    settings, _ = load({"rank": 0}, {"RANKWATCH_JOB_ID": "j"})
    return SamplingController(recorder, settings, lambda *_, **__: None)


def run(
    sampling: SamplingController, windows: int, *, plan: ProfilingPlan | None = None, window_seconds: float = 10.0
) -> int:
    """Make steps over so many windows, one look of the exporter after each; return how many were sampled."""
    pace = StepPace(STRIDE, window_seconds / STRIDE, True)
    plan, sampled = plan or ProfilingPlan(), 0
    for _ in range(windows * STRIDE):
        sampling.update(plan, pace)
        with rankwatch.step():
            pass
        recording = sampling.sampler.collect() if sampling.sampler is not None else None
        if recording is not None:
            sampling.read(recording, [], plan, pace)
            sampled += 1
    return sampled


def test_nothing_is_made_before_the_warm_up_is_over(sampling: SamplingController, source: Source) -> None:
    sampling.update(ProfilingPlan(), StepPace(8, 1.0, False))
    sampling.update(ProfilingPlan(), StepPace(0, 0.0, True))
    assert sampling.source_and_reason[0] == NO_SOURCE
    assert sampling.sampler is None
    sampling.update(ProfilingPlan(), StepPace(8, 1.0, True))
    assert sampling.source_and_reason == ("test", "why")


def test_what_costs_too_much_is_done_less_often_and_more_often_again_when_it_does_not(
    sampling: SamplingController, source: Source
) -> None:
    assert run(sampling, 16) == 16, "a cheap source samples every window"
    source.costs = 0.015
    # 15 ms of a window of 1 s are 1.5 %, which is within 0.3 % at every eighth window.
    run(sampling, 100, window_seconds=1.0)
    assert run(sampling, 64, window_seconds=1.0) == 64 // 8
    source.costs = 0.0
    run(sampling, 300, window_seconds=1.0)
    assert run(sampling, 16, window_seconds=1.0) == 16


def test_however_much_it_costs_it_is_not_given_up(sampling: SamplingController, source: Source) -> None:
    source.costs = 0.005
    run(sampling, 3 * MAX_MULTIPLE, window_seconds=0.0001)
    assert run(sampling, 2 * MAX_MULTIPLE, window_seconds=0.0001) == 2


def test_kernels_are_reported_early_then_regularly_and_at_the_end(sampling: SamplingController, source: Source) -> None:
    run(sampling, SAMPLES_REPORTED - 1)
    assert sampling.report(100.0, 300.0, ending=False) == {}
    run(sampling, 2)
    assert sampling.report(100.0, 300.0, ending=False)["k"].median == 0.5
    run(sampling, 3)
    assert sampling.report(249.0, 300.0, ending=False) == {}
    assert sampling.report(250.0, 300.0, ending=False)["k"].calls == 3, "those since the last one"
    run(sampling, 3)
    assert sampling.report(549.0, 300.0, ending=False) == {}
    assert sampling.report(550.0, 300.0, ending=False)
    source.keys = ("",)
    run(sampling, 3)
    assert sampling.report(860.0, 300.0, ending=False) == {}, "no shapes in these: nothing to report yet"
    source.keys = ("k",)
    run(sampling, 2)
    assert sampling.report(861.0, 300.0, ending=False), "so it is reported as soon as there is something"
    run(sampling, 2)
    assert sampling.report(862.0, 300.0, ending=True)


def test_the_kernels_of_many_ranks_come_one_after_the_other(recorder: Recorder, source: Source) -> None:
    seconds: dict[int, list[float]] = {}
    for rank in range(64):
        sampling = SamplingController(
            recorder, load({"rank": rank}, {"RANKWATCH_JOB_ID": "j"})[0], lambda *_, **__: None
        )
        for now in range(0, 1200, 10):
            run(sampling, 1)
            if sampling.report(float(now), 300.0, ending=False):
                seconds.setdefault(now, []).append(rank)
    first = min(seconds)
    assert len(seconds[first]) == 64, "the first one comes early, on all ranks"
    later = {now: ranks for now, ranks in seconds.items() if now > first}
    assert min(later) >= first + 150
    assert max(len(ranks) for ranks in later.values()) <= 4, later
    reported = [now for now, ranks in seconds.items() if 3 in ranks]
    assert [after - before for before, after in pairwise(reported)][1:] == [300] * (len(reported) - 2)


def test_a_truncated_step_has_no_parts_for_they_would_be_wrong(
    sampling: SamplingController, source: Source, recorder: Recorder
) -> None:
    run(sampling, 1)
    with rankwatch.step():
        pass
    found = sampling.result(0)
    assert found is not None
    assert found.parts.keys() == set(Part)
    assert sampling.result(0) is None
    source.truncated = 5
    run(sampling, 8)
    assert recorder.dropped["kernel_events"] % 5 == 0
    assert all(sampling.result(iteration) is None for iteration in range(4, 20))


def test_another_plan_closes_the_old_source_and_off_frees_all(sampling: SamplingController, source: Source) -> None:
    run(sampling, 4)
    run(sampling, 2, plan=ProfilingPlan(KernelSource.KINETO))
    assert source.closed == 1
    run(sampling, 2, plan=ProfilingPlan(KernelSource.OFF))
    assert source.closed == 2
    assert sampling.source_and_reason == (NO_SOURCE, "kernel_timings is off")
    run(sampling, 2, plan=ProfilingPlan(ranks=parse_ranks("3")))
    assert sampling.source_and_reason == (NO_SOURCE, "profiled_ranks is 3, which leaves this rank out")
    run(sampling, 2)
    assert sampling.source_and_reason == ("test", "why")


@pytest.mark.parametrize(
    ("wanted", "name", "reason"),
    [
        (KernelSource.AUTO, "kineto-cpu", "this process uses no GPU"),
        (KernelSource.KINETO, "kineto-cpu", "this process uses no GPU"),
        (KernelSource.CUPTI, None, "cupti needs a GPU, and this process uses none; set kernel_timings=auto"),
    ],
)
def test_the_source_is_chosen_by_what_the_process_uses(wanted: KernelSource, name: str | None, reason: str) -> None:
    source, why = choose_source(wanted, torch, lambda: None)
    try:
        assert (source.name if source is not None else None, why) == (name, reason)
    finally:
        if source is not None:
            source.close()
