from __future__ import annotations

import pytest

from rankwatch.contract.intervals import WINDOW_SECONDS, histogram_seconds, window_spread
from rankwatch.export.section_runs import MAX_RUNS, Run
from rankwatch.export.windows import LONG_STEPS, STEPS_BEFORE_STRIDE, Window, Windows


class Process:
    """Makes steps on a clock of its own, and shows the windows what the exporter would."""

    def __init__(self, told: int = 0, first: int = 0, shortest: float = 0.0) -> None:
        self.windows = Windows(told, shortest)
        self.first, self.next, self.now = first, first, 0

    def steps(self, count: int, seconds: float = 1.0, forward: tuple[float, ...] = ()) -> list[Window]:
        runs = [run for _ in range(count) for run in self.step(seconds, forward)]
        return self.take(runs)

    def step(self, seconds: float, forward: tuple[float, ...] = ()) -> list[Run]:
        self.now += round(seconds * 1e9)
        runs = [Run("forward", self.now, round(each * 1e9), self.next, False) for each in forward]
        runs.append(Run("step", self.now, round(seconds * 1e9), self.next, False))
        self.next += 1
        return runs

    def take(self, runs: list[Run]) -> list[Window]:
        return self.windows.take(runs, completed=self.next - 1, first=self.first, counts_steps=True, now=self.now / 1e9)


def test_a_window_ends_with_the_step_that_the_stride_divides() -> None:
    process = Process(told=4)
    assert process.steps(4) == []
    (first,) = process.steps(1)
    assert (first.iteration, first.steps) == (4, 3), "steps 0 and 1 warm up"
    (second,) = process.steps(4)
    assert (second.iteration, second.steps) == (8, 4)


def test_a_rank_that_resumed_closes_the_same_windows_as_the_others() -> None:
    resumed = Process(told=4, first=101)
    closed = resumed.steps(12)
    assert [(w.iteration, w.steps) for w in closed] == [(104, 2), (108, 4), (112, 4)]


def test_statistics_are_exact() -> None:
    process = Process(told=4)
    process.steps(2, forward=(9.0,))
    (window,) = process.steps(3, forward=(0.5, 0.125))
    forward = window.sections["forward"]
    assert forward == (6, 0.3125, 0.5, 0.5, 0.3125)
    process.take([Run("forward", process.now, round(t * 1e9), 5, False) for t in (1, 3, 2)])
    (window,) = process.steps(4)
    assert window.sections["forward"] == (3, 2.0, 2.5, 3.0, 2.0), "of an odd number the middle one is in the tail"
    assert window.sections["step"].calls == 4


def test_half_of_the_calls_cannot_hide_behind_the_median() -> None:
    process = Process(told=8)
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


def test_the_stride_stays_until_it_is_off_by_more_than_a_factor_of_two() -> None:
    process = Process()
    process.steps(33, 0.3)
    assert process.windows.stride == 32
    process.steps(320, 0.55)
    assert process.windows.stride == 32
    process.steps(320, 0.7)
    assert process.windows.stride == 16
    closed = process.steps(32, 0.7)
    assert [window.steps for window in closed] == [16, 16]


def test_a_stride_that_is_told_beats_the_one_that_was_found() -> None:
    process = Process()
    process.steps(40, 0.3)
    process.windows.tell(10)
    assert [w.iteration for w in process.steps(20, 0.3)] == [40, 50]
    process.windows.tell(0)
    assert process.windows.stride == 32


def test_steps_of_minutes_are_told_after_four_of_them() -> None:
    process = Process()
    assert process.steps(LONG_STEPS, 300.0) == []
    assert [(w.iteration, w.steps) for w in process.steps(3, 300.0)] == [(4, 3), (5, 1), (6, 1)]


def test_one_long_first_step_does_not_make_steps_long() -> None:
    process = Process()
    process.steps(1, 600.0)
    process.steps(LONG_STEPS, 0.3)
    assert process.windows.stride == 0


def test_a_told_stride_is_doubled_until_its_windows_can_be_told_one_by_one() -> None:
    process = Process(told=6, shortest=1.5)
    process.steps(STEPS_BEFORE_STRIDE, 0.01)
    assert process.windows.stride == 6 * 32
    assert [w.iteration for w in process.steps(600, 0.01)] == [192, 384, 576]
    process.steps(6 * 64, 0.02)
    assert process.windows.stride == 6 * 32, "a factor of two is no reason to leave the other ranks"
    process.steps(6 * 64, 0.05)
    assert process.windows.stride == 6 * 8
    process.windows.tell(2048)
    assert process.windows.stride == 2048


def test_numbers_that_go_back_open_a_window_anew() -> None:
    process = Process(told=4)
    process.steps(11)
    process.next = 5
    assert [(w.iteration, w.steps) for w in process.steps(8)] == [(8, 4), (12, 4)]


def test_a_window_whose_last_step_was_leapt_over_or_lost_holds_the_others() -> None:
    process = Process(told=4)
    process.steps(11)
    process.next = 102
    (window,) = process.steps(2, forward=(1.0,))
    assert (window.iteration, window.steps) == (12, 2)
    assert "forward" not in window.sections
    (window,) = process.steps(1)
    assert (window.iteration, window.steps) == (104, 3)


def test_micro_batches_that_are_steps_of_one_number_close_its_window_once() -> None:
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


def test_a_run_that_was_noted_late_does_not_forget_the_window() -> None:
    process = Process(told=4)
    process.steps(6)
    process.take([Run("save", process.now, 10**9, 4, False)])
    (window,) = process.steps(3)
    assert (window.iteration, window.steps) == (8, 4)
    assert window.sections["save"].calls == 1


def test_several_windows_may_close_between_two_reports() -> None:
    assert [w.iteration for w in Process(told=2).steps(9)] == [2, 4, 6, 8]


def test_a_window_closes_only_when_its_last_step_is_known_to_be_completed() -> None:
    process = Process(told=4)
    process.steps(4)
    runs = process.step(1.0)
    failed = process.windows.take(runs, completed=3, first=0, counts_steps=True, now=5.0)
    assert failed == [], "it was left by an exception, and may be made again"
    process.next = 4
    assert [w.iteration for w in process.steps(1)] == [4]


def test_memory_is_bounded_and_what_is_not_kept_is_counted() -> None:
    process = Process(told=4)
    process.steps(3)
    runs = [Run("micro", process.now, 1000 + n, 3, False) for n in range(MAX_RUNS + 50)]
    process.take(runs)
    (window,) = process.steps(2)
    assert window.beyond == 50
    micro = window.sections["micro"]
    assert micro.calls == MAX_RUNS + 50
    assert micro.max == (1000 + MAX_RUNS + 49) / 1e9


def test_a_process_without_steps_closes_windows_by_the_clock() -> None:
    windows = Windows()

    def take(now: float, *runs: Run) -> list[Window]:
        return windows.take(runs, completed=None, first=None, counts_steps=False, now=now)

    assert take(100.0, Run("epoch", 0, 10**9, 0, True)) == []
    assert take(105.0, Run("epoch", 0, 2 * 10**9, 0, False)) == []
    (window,) = take(110.0, Run("epoch", 0, 4 * 10**9, 0, False))
    assert (window.iteration, window.steps) == (None, 0)
    assert window.sections["epoch"] == (2, 3.0, 4.0, 4.0, 3.0)
    assert take(120.0) == [], "nothing was finished"


def test_a_process_that_begins_to_step_leaves_the_clock() -> None:
    process = Process(told=2)
    process.windows.take([Run("setup", 0, 10**9, 0, False)], completed=None, first=None, counts_steps=False, now=0.0)
    closed = process.steps(5)
    assert [w.iteration for w in closed] == [2, 4]
    assert all("setup" not in w.sections for w in closed)


def test_windows_of_a_very_large_job_last_longer() -> None:
    assert [Windows(world_size=ranks).seconds for ranks in (1, 16_000, 32_000, 100_000)] == [10.0, 10.0, 20.0, 62.5]
    assert [window_spread(ranks) for ranks in (1, 16_000, 32_000, 100_000)] == [0.0, 0.0, 10.0, 52.5]
    assert [histogram_seconds(ranks) for ranks in (1, 4_096, 8_192, 100_000)] == [0.0, 0.0, 10.0, 62.5]
