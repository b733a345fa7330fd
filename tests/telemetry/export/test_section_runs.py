from __future__ import annotations

from rankwatch.export.section_runs import MAX_RUNS, Runs, middle, tail


def test_the_middle_of_an_even_number_is_between_the_two() -> None:
    assert middle([1, 2, 9]) == 2
    assert middle([1, 2, 4, 9]) == 3


def test_the_tail_of_one_run_is_that_run() -> None:
    assert tail([7]) == 7
    assert tail([1, 2, 3]) == 2.5, "the middle one counts"
    assert tail([1, 2, 3, 10]) == 6.5


def test_count_mean_and_maximum_are_of_all_runs_also_of_those_not_kept() -> None:
    runs = Runs()
    for _ in range(MAX_RUNS):
        runs.add(10**9)
    runs.add(10**9 * (MAX_RUNS + 2))
    told = runs.statistics()
    assert (told.calls, told.max, told.mean, told.median, told.tail) == (MAX_RUNS + 1, MAX_RUNS + 2, 2.0, 1.0, 1.0)
