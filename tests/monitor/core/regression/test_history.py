"""An hour and a week of windows: what is kept, in how little room, and the same after it was stored."""

from __future__ import annotations

import json
import tracemalloc
from itertools import pairwise

import pytest

from monitor.core.steps import PERIOD, START, Steps
from rankwatch_monitor.core.regression.history import (
    BLOCK,
    HOST_SETS,
    KEPT_LONG,
    KEPT_SHORT,
    OPEN,
    History,
)
from rankwatch_monitor.core.regression.sample import PolicyChange, Sample

WEEK = 7 * 86_400


def plain(at: float, step: float = 0.4, **more: object) -> Sample:
    return Sample(at, 10.0, 0, 1, 8, ("node-a",), step, step)._replace(**more)


def filled(windows: int) -> History:
    history = History()
    for window in range(windows):
        history.add(plain(START + window * PERIOD, 0.4 + window % 7 / 100))
    return history


def test_windows_of_the_same_ten_seconds_are_one_sample() -> None:
    history = History()
    for window in range(25):
        history.add(plain(START + window, 0.1 * (1 + window // 10)))
    assert [(sample.at, sample.step) for sample in history.window()] == [
        (START + 9, 0.1),
        (START + 19, 0.2),
        (START + 24, 0.3),
    ]
    assert history.window()[0].seconds == 100.0


def test_very_many_windows_at_once_take_no_room() -> None:
    history = History()
    for window in range(10_000):
        history.add(plain(START + window / 2000))
    assert len(history._window) < 40
    (sample,) = history.window()
    assert sample.seconds == 100_000


@pytest.mark.parametrize("change", [{"attempt": 1}, {"ranks": 4}, {"hosts": ("node-b",)}])
def test_samples_are_not_merged_across_another_world(change: dict[str, object]) -> None:
    history = History()
    history.add(plain(START))
    history.add(plain(START + 1, **change))
    assert len(history.window()) == 2


def test_an_hour_is_kept_finely_and_what_is_older_by_minutes() -> None:
    history = filled(1000)
    samples = history.window()
    fine = [sample for sample in samples if sample.at > samples[-1].at - 3600]
    assert len(fine) == KEPT_SHORT
    assert {sample.seconds for sample in fine} == {10.0}
    older = [later.at - sample.at for sample, later in pairwise(samples) if later.at < fine[0].at]
    assert older.count(60.0) > 0.8 * len([gap for gap in older if gap > 10])
    assert samples[0].at < START + 60
    assert [sample.at for sample in samples] == sorted(sample.at for sample in samples)


def test_no_moment_is_in_both_rows() -> None:
    history, minutes = History(), [START + 60 * minute for minute in range(2 * KEPT_SHORT)]
    for minute in minutes:
        history.add(plain(minute))
    assert [sample.at for sample in history.window()] == minutes


def test_a_window_of_time() -> None:
    history = filled(1000)
    since, until = START + 8000, START + 8100
    assert [s.at for s in history.window(since, until)] == [since + 10 * i for i in range(11)]
    assert history.window(START - 100, START - 50) == []
    assert history.latest == plain(START + 9990, 0.4 + 999 % 7 / 100)


def test_of_seven_days_the_oldest_minutes_go_first() -> None:
    history = History()
    for minute in range(KEPT_LONG + 500):
        history.add(plain(START + 60 * minute))
    samples = history.window()
    assert KEPT_LONG <= len(history._long) < KEPT_LONG + BLOCK
    assert samples[-1].at - samples[0].at >= WEEK
    assert history.first_at is not None
    assert samples[0].at - samples[0].seconds == history.first_at > START


def test_marks_survive_merging() -> None:
    history, steps = History(), Steps()
    mark = PolicyChange("profiling_interval", 0, 64)
    history.add(steps.sample([mark]))
    steps.go(history, 600)
    assert [sample.changes for sample in history.window() if sample.changes] == [(mark,)]


def test_time_never_goes_back() -> None:
    history = History()
    history.add(plain(START))
    history.add(plain(START - 500))
    assert [sample.at for sample in history.window()] == [START]


@pytest.mark.parametrize("windows", [0, 1, 7, 60, 361, 1000])
def test_stored_and_read_again_it_is_the_same_and_goes_on_the_same(windows: int) -> None:
    steps = Steps()
    steps.throttled = {"hw_slowdown": 2}
    history = History()
    steps.go(history, windows)
    again = History.of_json(json.loads(json.dumps(history.to_json())))
    assert again.window() == history.window()
    assert again.first_at == history.first_at
    assert (again.latest is None) == (history.latest is None)
    for _ in range(130):
        sample = steps.sample()
        history.add(sample)
        again.add(sample)
    assert [s.at for s in again.window()] == [s.at for s in history.window()]
    assert [s.step for s in again.window()][-100:] == [s.step for s in history.window()][-100:]


def test_another_form_is_not_read() -> None:
    assert History.of_json({"format": 99}).window() == []
    assert History.of_json({}).latest is None


def test_blocks_that_are_full_are_stored_as_the_same_text_each_time() -> None:
    steps, history = Steps(), History()
    steps.go(history, 200)
    before = history.to_json()["short"]
    steps.go(history, 10)
    assert history.to_json()["short"][:3] == before[:3]


def test_sets_of_hosts_are_forgotten_before_they_fill_the_memory() -> None:
    history = History()
    for number in range(40 * BLOCK):
        history.add(plain(START + 10 * number, hosts=(f"node-{number}",)))
    assert len(history._hosts) <= HOST_SETS
    assert history.window()[-1].hosts == (f"node-{40 * BLOCK - 1}",)
    assert history.window()[0].hosts == ()


def test_a_copy_stays_as_it_was() -> None:
    history = filled(100)
    copy, before = history.copy(), history.window()
    history.add(plain(START + 5000))
    assert copy.window() == before


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("windows", [1, 5, BLOCK + 7, 3 * BLOCK])
def test_a_compacted_history_reads_and_continues_the_same(windows: int) -> None:
    awake, rested = filled(windows), filled(windows)
    rested.compact()
    rested.compact()
    assert not rested._short.open
    assert not rested._long.open
    assert rested.window() == awake.window()
    assert History.of_json(rested.to_json()).window() == awake.window()
    for window in range(windows + 60, windows + 60 + 2 * BLOCK):
        for history in (awake, rested):
            history.add(plain(START + window * PERIOD))
    assert rested.window() == awake.window()
    again = History.of_json(rested.to_json())
    assert again.window() == awake.window()


def test_a_compacted_history_takes_less_memory() -> None:
    history = filled(OPEN - 1)
    before = sum(map(len, (history._short.open, history._window, history._minute)))
    history.compact()
    assert before > 15
    assert sum(len(block.data) for block in history._short.blocks) < 4_096


@pytest.mark.long
def test_a_full_week_takes_a_few_megabytes() -> None:
    steps = Steps()
    samples = [steps.sample() for _ in range(60)]
    history = History()
    for window in range(WEEK // 10):
        history.add(samples[window % 60]._replace(at=START + window * PERIOD, step=0.4 + window % 997 / 1e4))
    stored = history.to_json()
    tracemalloc.start()
    try:
        again = History.of_json(stored)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(again._long) >= KEPT_LONG - 2
    assert len(history._long) >= KEPT_LONG - 2
    assert taken < 8e6
    assert len(json.dumps(stored)) < 8e6
