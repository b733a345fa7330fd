"""Statistics of section runs: maxima, windows of steps, median and tail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwatch.contract.intervals import WINDOW_SECONDS
from rankwatch.recording.recorder import SectionRun
from rankwatch.recording.section_statistics import (
    LONG_STEPS,
    MAX_RUNS,
    REPEAT_SECONDS,
    STEPS_BEFORE_STRIDE,
    DurationMaxima,
    MaximaUpdate,
    SectionDurations,
    StepWindows,
    Window,
    median,
    tail,
)

# Maxima, in seconds ---------------------------------------------------------------------------------------------------

FIRST_STEP = 1.0
"""When the process completed its first step, where nothing else is stated."""


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def run(start: float, end: float, section: str = "step", *, first: bool = False) -> SectionRun:
    return SectionRun(section, _ns(start), _ns(end), 0, first)


def add(
    maxima: DurationMaxima,
    *runs: SectionRun,
    now: float = 1e6,
    open_since: float | None = None,
    first_step_at: float | None = FIRST_STEP,
    lost: bool = False,
    ended: bool = False,
) -> None:
    maxima.add(
        runs,
        now=_ns(now),
        open_since=None if open_since is None else _ns(open_since),
        first_step_at=None if first_step_at is None else _ns(first_step_at),
        lost=lost,
        ended=ended,
    )


def idle_longest(*batches: Sequence[SectionRun], first_step_at: float | None = FIRST_STEP) -> float | None:
    maxima = DurationMaxima()
    for runs in batches:
        add(maxima, *runs, first_step_at=first_step_at)
    return maxima.update(0).idle_longest


def test_the_gap_from_the_last_section_to_the_end_counts() -> None:
    """A model is written out after the last step, maybe for an hour: the next run must be given that time."""
    maxima = DurationMaxima()
    add(maxima, run(0, 2), run(3, 5), now=60)
    assert maxima.update(0).idle_longest == 1.0, "it may be a hang, as long as it lasts"
    add(maxima, now=605, ended=True)
    assert maxima.update(1, everything=True).idle_longest == 600.0
    add(maxima, open_since=605, now=2000, ended=True)
    assert maxima.update(2, everything=True).idle_longest == 600.0


def test_first_runs_and_the_longest_of_the_others_are_separate() -> None:
    maxima = DurationMaxima()
    add(maxima, run(0, 50, first=True), run(50, 52), run(52, 57), run(57, 58), run(58, 61, "save", first=True))
    update = maxima.update(0)
    assert update.longest == {"step": 5.0}
    assert update.first == {"step": 50.0, "save": 3.0}


def test_runs_entered_at_the_same_time_on_two_threads_are_both_first() -> None:
    maxima = DurationMaxima()
    add(maxima, run(0, 5, first=True), run(1, 40, first=True), run(40, 42))
    assert maxima.update(0) == MaximaUpdate({"step": 2.0}, {"step": 39.0})


def test_only_grown_maxima_are_reported_and_all_of_them_once_a_minute() -> None:
    maxima = DurationMaxima()
    add(maxima, run(0, 4, first=True), run(4, 6), run(7, 9, "save"))
    assert maxima.update(100.0) == MaximaUpdate({"step": 2.0, "save": 2.0}, {"step": 4.0}, 1.0)
    assert maxima.update(101.0) == MaximaUpdate()
    add(maxima, run(9, 11), run(11, 14, "save"))
    assert maxima.update(102.0) == MaximaUpdate({"save": 3.0}), "a run as long as the longest is no news"
    assert maxima.update(100.0 + REPEAT_SECONDS - 0.001) == MaximaUpdate()
    everything = MaximaUpdate({"step": 2.0, "save": 3.0}, {"step": 4.0}, 1.0)
    assert maxima.update(100.0 + REPEAT_SECONDS) == everything
    assert maxima.update(161.0) == MaximaUpdate()
    assert maxima.update(162.0, everything=True) == everything


def test_without_runs_nothing_is_reported() -> None:
    assert DurationMaxima().update(0.0, everything=True) == MaximaUpdate()


def longest(*runs: SectionRun) -> Mapping[str, float]:
    maxima = DurationMaxima()
    for each in runs:
        add(maxima, each)
    return maxima.update(0).longest


def test_a_section_that_holds_others_counts_the_stretches_between_them() -> None:
    """A step of 50 s that holds a checkpoint of 45 s."""
    inner, step = [run(1, 46, "checkpointing"), run(48, 49, "log")], run(0, 50)
    assert longest(*inner, step) == {"checkpointing": 45.0, "log": 1.0, "step": 2.0}
    assert longest(run(0, 50)) == {"step": 50.0}


def test_stretches_are_those_of_the_innermost_section() -> None:
    runs = [run(2, 9, "load"), run(1, 10, "data"), run(13, 14, "load"), run(0, 20)]
    assert longest(*runs) == {"load": 7.0, "data": 1.0, "step": 6.0}


def test_an_outer_section_with_many_runs_inside_keeps_its_longest_stretch() -> None:
    steps = [run(n, n + 0.75) for n in (*range(500), *range(510, 1000))]
    assert longest(*steps, run(-1, 1001, "epoch")) == {"step": 0.75, "epoch": 10.25}


def test_runs_that_overlap_on_two_threads_make_no_stretch_shorter() -> None:
    assert longest(run(5, 6, "load"), run(0, 10), run(7, 12, "save")) == {"load": 1.0, "step": 5.0, "save": 5.0}


def test_the_longest_gap_between_two_sections() -> None:
    assert idle_longest([run(1, 2), run(5, 6), run(7, 8)]) == 3.0
    assert idle_longest([run(1, 2)], [], [run(5, 6), run(7, 8)]) == 3.0, "over several reports"


def test_time_covered_by_any_section_is_no_gap() -> None:
    step, inner = run(1, 10), [run(2, 3, "forward"), run(8, 9, "backward")]
    assert idle_longest([*inner, step, run(10.5, 12)]) == 0.5, "nested"
    assert idle_longest([run(1, 4), run(3, 7, "load"), run(7.5, 9)]) == 0.5, "overlapping, on two threads"


def test_an_open_section_covers_the_time_since_it_was_entered() -> None:
    maxima = DurationMaxima()
    add(maxima, run(1, 2), run(5, 6, "inner"), run(30, 31, "inner"), open_since=3.0, now=40.0)
    assert maxima.update(0).idle_longest == 1.0
    add(maxima, run(50, 51, "inner"), open_since=3.0, now=60.0)
    add(maxima, run(3, 70, "outer"), run(70.5, 71))
    assert maxima.update(0, everything=True).idle_longest == 1.0


def test_a_section_entered_after_the_open_ones_were_read_makes_no_gap() -> None:
    maxima = DurationMaxima()
    add(maxima, run(1, 2), run(9, 9.5, "inner"), open_since=2.0, now=5.0)
    assert maxima.update(0).idle_longest is None


def test_gaps_before_the_first_completed_step_do_not_count() -> None:
    before = [run(0, 1, "setup", first=True), run(100, 110, first=True)]
    assert idle_longest(before, first_step_at=None) is None
    assert idle_longest([*before, run(112, 113)], first_step_at=110.0) == 2.0
    assert idle_longest(before, [run(118, 119)], first_step_at=110.5) == 7.5, "counted from the step on"


def test_the_gap_before_lost_runs_does_not_count() -> None:
    maxima = DurationMaxima()
    add(maxima, run(1, 2))
    add(maxima, run(19, 20), run(21, 22), lost=True)
    assert maxima.update(0).idle_longest == 1.0


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=25), st.integers(1, 5), st.integers(0, 40))
def test_gaps_do_not_depend_on_how_runs_are_split_over_reports(
    raw: list[tuple[int, int]], reports: int, first_step_at: int
) -> None:
    """Sections as they lie in time, in several reports that each see open what is open then."""
    spans = sorted(((start, start + length) for start, length in raw), key=lambda span: span[1])
    maxima = DurationMaxima()
    reported_until = -1
    for now in [70 * i // reports for i in range(1, reports + 1)]:
        batch = [run(start, end) for start, end in spans if reported_until < end <= now]
        still = [start for start, end in spans if start <= now < end]
        add(maxima, *batch, now=now, open_since=min(still, default=None), first_step_at=first_step_at)
        reported_until = now
    gaps, since = [0], first_step_at
    for start, end in sorted(spans):
        gaps.append(start - since)
        since = max(since, end)
    assert (maxima.update(0).idle_longest or 0) == max(gaps)


# Windows of steps -----------------------------------------------------------------------------------------------------


def run_ending_at(section: str, end_ns: int, duration_ns: int, iteration: int, first: bool) -> SectionRun:
    return SectionRun(section, end_ns - duration_ns, end_ns, iteration, first)


class Process:
    """Makes steps on a simulated clock and passes them to the windows, as the exporter does."""

    def __init__(self, configured: int = 0, first: int = 0, shortest: float = 0.0) -> None:
        self.windows = StepWindows(configured, shortest)
        self.first, self.next, self.now = first, first, 0

    def steps(self, count: int, seconds: float = 1.0, forward: tuple[float, ...] = ()) -> list[Window]:
        runs = [run for _ in range(count) for run in self.step(seconds, forward)]
        return self.take(runs)

    def step(self, seconds: float, forward: tuple[float, ...] = ()) -> list[SectionRun]:
        self.now += round(seconds * 1e9)
        runs = [run_ending_at("forward", self.now, round(each * 1e9), self.next, False) for each in forward]
        runs.append(run_ending_at("step", self.now, round(seconds * 1e9), self.next, False))
        self.next += 1
        return runs

    def take(self, runs: list[SectionRun]) -> list[Window]:
        return self.windows.add(runs, completed=self.next - 1, first=self.first, counts_steps=True, now=self.now / 1e9)


def test_a_window_closes_at_a_step_that_the_stride_divides() -> None:
    process = Process(configured=4)
    assert process.steps(4) == []
    (first,) = process.steps(1)
    assert (first.iteration, first.steps) == (4, 3), "steps 0 and 1 warm up"
    (second,) = process.steps(4)
    assert (second.iteration, second.steps) == (8, 4)


def test_a_resumed_rank_closes_the_same_windows_as_the_others() -> None:
    resumed = Process(configured=4, first=101)
    closed = resumed.steps(12)
    assert [(w.iteration, w.steps) for w in closed] == [(104, 2), (108, 4), (112, 4)]


def test_statistics_are_exact() -> None:
    process = Process(configured=4)
    process.steps(2, forward=(9.0,))
    (window,) = process.steps(3, forward=(0.5, 0.125))
    forward = window.sections["forward"]
    assert forward == (6, 0.3125, 0.5, 0.5, 0.3125)
    process.take([run_ending_at("forward", process.now, round(t * 1e9), 5, False) for t in (1, 3, 2)])
    (window,) = process.steps(4)
    assert window.sections["forward"] == (3, 2.0, 2.5, 3.0, 2.0), "of an odd number the middle one is in the tail"
    assert window.sections["step"].calls == 4


def test_half_of_the_calls_cannot_hide_behind_the_median() -> None:
    process = Process(configured=8)
    process.steps(2)
    (window,) = process.steps(7, forward=(0.1, 0.1, 0.1, 0.3, 0.3))
    assert window.sections["forward"].median == pytest.approx(0.1)
    assert window.sections["forward"].tail > 0.25


@pytest.mark.parametrize(("seconds", "stride"), [(0.0005, 16384), (0.01, 1024), (0.3, 32), (2.5, 4)])
def test_the_stride_makes_about_ten_seconds(seconds: float, stride: int) -> None:
    process = Process()
    process.steps(STEPS_BEFORE_STRIDE - 1, seconds)
    assert process.windows.stride == 0
    process.steps(2, seconds)
    assert process.windows.stride == stride
    assert WINDOW_SECONDS / 1.5 < stride * seconds < WINDOW_SECONDS * 1.5


def test_the_stride_stays_while_windows_take_from_half_to_one_and_a_half_times_as_long() -> None:
    process = Process()
    process.steps(33, 0.3)
    assert process.windows.stride == 32
    process.steps(320, 0.45)
    assert process.windows.stride == 32
    process.steps(320, 0.5)
    assert process.windows.stride == 16
    process.steps(320, 0.35)
    assert process.windows.stride == 16
    process.steps(320, 0.7)
    assert process.windows.stride == 16
    closed = process.steps(32, 0.7)
    assert [window.steps for window in closed] == [16, 16]


def test_a_configured_stride_replaces_the_found_one() -> None:
    process = Process()
    process.steps(40, 0.3)
    process.windows.configure(10)
    assert [w.iteration for w in process.steps(20, 0.3)] == [40, 50]
    process.windows.configure(0)
    assert process.windows.stride == 32


def test_windows_of_very_long_steps_close_after_four_steps() -> None:
    process = Process()
    assert process.steps(LONG_STEPS, 300.0) == []
    assert [(w.iteration, w.steps) for w in process.steps(3, 300.0)] == [(4, 3), (5, 1), (6, 1)]


def test_one_long_first_step_does_not_make_steps_long() -> None:
    process = Process()
    process.steps(1, 600.0)
    process.steps(LONG_STEPS, 0.3)
    assert process.windows.stride == 0


def test_a_configured_stride_is_doubled_until_its_windows_last_long_enough() -> None:
    process = Process(configured=6, shortest=1.5)
    process.steps(STEPS_BEFORE_STRIDE, 0.01)
    assert process.windows.stride == 6 * 32
    assert [w.iteration for w in process.steps(600, 0.01)] == [192, 384, 576]
    process.steps(6 * 64, 0.02)
    assert process.windows.stride == 6 * 32, "a factor of two is no reason to leave the other ranks"
    process.steps(6 * 64, 0.05)
    assert process.windows.stride == 6 * 8
    process.windows.configure(2048)
    assert process.windows.stride == 2048


def test_step_numbers_going_back_reopen_a_window() -> None:
    process = Process(configured=4)
    process.steps(11)
    process.next = 5
    assert [(w.iteration, w.steps) for w in process.steps(8)] == [(8, 4), (12, 4)]


def test_a_window_whose_closing_step_is_missing_holds_the_others() -> None:
    process = Process(configured=4)
    process.steps(11)
    process.next = 102
    (window,) = process.steps(2, forward=(1.0,))
    assert (window.iteration, window.steps) == (12, 2)
    assert "forward" not in window.sections
    (window,) = process.steps(1)
    assert (window.iteration, window.steps) == (104, 3)


def test_repeated_step_numbers_close_a_window_once() -> None:
    process = Process()

    def accumulate(steps: int) -> list[Window]:
        closed = []
        for _ in range(4 * steps):
            closed += process.steps(1, 0.1)
            if process.now // 10**8 % 4:
                process.next -= 1
        return closed

    closed = accumulate(100)
    assert process.windows.stride == 32, "32 steps of 4 x 0.1 s"
    numbers = [window.iteration for window in closed]
    assert numbers == [32, 64, 96]


def test_a_late_run_of_another_section_keeps_the_window_open() -> None:
    process = Process(configured=4)
    process.steps(6)
    process.take([run_ending_at("save", process.now, 10**9, 4, False)])
    (window,) = process.steps(3)
    assert (window.iteration, window.steps) == (8, 4)
    assert window.sections["save"].calls == 1


def test_several_windows_may_close_between_two_reports() -> None:
    assert [w.iteration for w in Process(configured=2).steps(9)] == [2, 4, 6, 8]


def test_a_window_closes_only_when_its_last_step_is_completed() -> None:
    process = Process(configured=4)
    process.steps(4)
    runs = process.step(1.0)
    failed = process.windows.add(runs, completed=3, first=0, counts_steps=True, now=5.0)
    assert failed == [], "it was left by an exception, and may be made again"
    process.next = 4
    assert [w.iteration for w in process.steps(1)] == [4]


def test_runs_beyond_the_limit_are_counted_but_not_kept() -> None:
    process = Process(configured=4)
    process.steps(3)
    runs = [run_ending_at("micro", process.now, 1000 + n, 3, False) for n in range(MAX_RUNS + 50)]
    process.take(runs)
    (window,) = process.steps(2)
    assert window.runs_not_kept == 50
    micro = window.sections["micro"]
    assert micro.calls == MAX_RUNS + 50
    assert micro.max == (1000 + MAX_RUNS + 49) / 1e9


def test_a_process_without_steps_closes_windows_by_the_clock() -> None:
    windows = StepWindows()

    def take(now: float, *runs: SectionRun) -> list[Window]:
        return windows.add(runs, completed=None, first=None, counts_steps=False, now=now)

    assert take(100.0, run_ending_at("epoch", 0, 10**9, 0, True)) == []
    assert take(105.0, run_ending_at("epoch", 0, 2 * 10**9, 0, False)) == []
    (window,) = take(110.0, run_ending_at("epoch", 0, 4 * 10**9, 0, False))
    assert (window.iteration, window.steps) == (None, 0)
    assert window.sections["epoch"] == (2, 3.0, 4.0, 4.0, 3.0)
    assert take(120.0) == [], "nothing was finished"


def test_a_process_that_begins_to_step_changes_to_windows_of_steps() -> None:
    process = Process(configured=2)
    process.windows.add(
        [run_ending_at("setup", 0, 10**9, 0, False)], completed=None, first=None, counts_steps=False, now=0.0
    )
    closed = process.steps(5)
    assert [w.iteration for w in closed] == [2, 4]
    assert all("setup" not in w.sections for w in closed)


# Median and tail ------------------------------------------------------------------------------------------------------


def test_median() -> None:
    assert median([1, 2, 9]) == 2
    assert median([1, 2, 4, 9]) == 3


def test_tail_is_the_mean_of_the_slower_half() -> None:
    assert tail([7]) == 7
    assert tail([1, 2, 3]) == 2.5, "the middle one counts"
    assert tail([1, 2, 3, 10]) == 6.5


def test_count_mean_and_maximum_include_runs_that_are_not_kept() -> None:
    runs = SectionDurations()
    for _ in range(MAX_RUNS):
        runs.add(10**9)
    runs.add(10**9 * (MAX_RUNS + 2))
    assert runs.statistics() == (MAX_RUNS + 1, 1.0, 1.0, MAX_RUNS + 2, 2.0)
