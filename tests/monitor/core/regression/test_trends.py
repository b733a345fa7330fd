"""Figures over time: fine for hours, by the minute for a week, the same after the store, and bounded."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from rankwatch_monitor.core.regression.trends import COARSE, FINE, MAX_VALUES, Point, TrendHistory, neighbours

START = 1_700_002_800.0 // 3600 * 3600
DAY = 86_400


def filled(hours: float, begin: float = START, **values: float) -> TrendHistory:
    history = TrendHistory()
    add(history, hours, begin, **values)
    return history


def add(history: TrendHistory, hours: float, begin: float, **values: float) -> None:
    for i in range(int(hours * 240)):
        history.add(Point(begin + 15 * i, 1, i, {"goodput": 0.9, **values}))


class Store:
    """Rows by slot, as the database keeps them."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, Any]] = {}

    def save(self, history: TrendHistory) -> int:
        unsaved = history.take_unsaved()
        self.rows |= {slot: json.loads(json.dumps(body())) for slot, body in unsaved}
        return len(unsaved)

    def load(self) -> TrendHistory:
        history = TrendHistory()
        history.restore(self.rows.items())
        return history


def test_the_last_two_hours_are_fine_and_a_week_is_by_the_minute() -> None:
    history = filled(8 * 24)
    now = history.latest_at
    assert len(history.window(now - 7200, now)) == 481
    assert len(history.window(now - DAY, now - DAY + 3600)) == 61
    week = history.window(now - 7 * DAY, now)
    assert [point.at for point in week] == sorted({point.at for point in week})
    assert week[0].at <= now - 7 * DAY + 60
    assert history.window(0, now)[0].at > START + 20 * 3600, "older ones are dropped"


def test_a_minute_is_the_mean_of_its_points_and_keeps_the_extremes() -> None:
    history = TrendHistory()
    for i in range(4 * 60 * 4):
        values = {
            "speed": float(i % 4),
            "gpu_robust.min": float(i % 4),
            "gpu_robust.max": float(i % 4),
            "log.a.max": i % 4,
        }
        history.add(Point(START + 15 * i, 1, i, values))
    first = history.window(START, START + 600)[0]
    assert first.values == {"speed": 1.5, "gpu_robust.min": 0.0, "gpu_robust.max": 3.0, "log.a.max": 1.5}
    assert (first.at, first.iteration) == (START + 45, 3)


def test_rows_of_two_attempts_are_never_merged() -> None:
    rows = [Point(float(i), 1 + i // 5, i, {}) for i in range(8)]
    found = [[row.iteration for row in some] for some in neighbours(rows, 3)]
    assert found == [[0, 1, 2], [3, 4], [5, 6, 7]]
    assert list(neighbours(rows[:0], 3)) == []


def test_a_least_score_keeps_its_rank_and_a_logged_value_of_such_a_name_is_a_mean() -> None:
    history = TrendHistory()
    for i, (score, rank) in enumerate([(0.9, 3), (0.7, 21), (0.8, 5), (0.9, 3)] * 240):
        values = {"gpu_robust.min": score, "gpu_robust.rank": float(rank), "log.lora.rank": float(i % 4)}
        history.add(Point(START + 15 * i, 1, i, values))
    minute = history.window(START, START + 600)[0].values
    assert minute == {"gpu_robust.min": pytest.approx(0.7), "gpu_robust.rank": 21, "log.lora.rank": 1.5}


def test_it_comes_back_from_the_store_and_goes_on() -> None:
    store, history = Store(), filled(5, speed=2.5)
    store.save(history)
    again = store.load()
    now = history.latest_at
    assert again.window(0, now) == history.window(0, now)
    assert again.latest_at == now
    add(again, 1, now + 900, speed=1.0)
    assert again.window(now + 1, now + 7200)[0].values["speed"] == 1.0
    assert now in {point.at for point in again.window(0, now + 7200)}


def test_only_what_has_changed_is_written_and_rows_are_bounded() -> None:
    store, history = Store(), filled(1)
    store.save(history)
    assert not history.unsaved
    add(history, 0.1, history.latest_at + 15)
    assert store.save(history) <= 4
    for day in range(20):
        add(history, 24, START + (day + 1) * DAY)
        store.save(history)
    assert len(store.rows) <= FINE.hours + COARSE.hours
    again = store.load()
    now = history.latest_at
    assert again.window(now - 7 * DAY, now) == history.window(now - 7 * DAY, now)
    assert again.window(0, now)[0].at > now - 8 * DAY


def test_hours_without_points_leave_no_older_week_behind() -> None:
    store, history = Store(), filled(24)
    store.save(history)
    add(history, 1, START + 30 * DAY)
    store.save(history)
    assert store.load().window(0, math.inf)[0].at >= START + 30 * DAY


def test_a_stored_past_goes_before_what_was_measured_meanwhile() -> None:
    past, now = filled(1.5), filled(1, begin=START + 5400 + 60)
    now.merge_stored(past)
    points = now.window(0, math.inf)
    assert [point.at for point in points] == sorted(point.at for point in points)
    assert (points[0].at, len(points)) == (START, 600)
    store = Store()
    store.save(now)
    assert len(store.load().window(START + 5400, math.inf)) == 240, "the merged hour is written again"


def test_a_week_of_a_job_with_many_values_stays_small() -> None:
    history = TrendHistory()
    for i in range(8 * 24 * 60):
        noise = {f"log.value{k}": math.sin(i * (k + 1)) for k in range(32)}
        scores = {f"gpu.{k}": 1 - abs(math.cos(i * k)) / 9 for k in range(9)}
        history.add(Point(START + 60 * i, 1, i, {**noise, **scores, "goodput": 0.9, "speed": 1.3}))
    store = Store()
    store.save(history)
    assert sum(len(json.dumps(row)) for row in store.rows.values()) < 4_000_000
    assert len(json.dumps(store.rows[FINE.hours])) < 30_000


def test_values_beyond_the_bound_and_beyond_32_bits_are_left_out() -> None:
    history = TrendHistory()
    history.add(Point(START, 1, 0, {f"v{i}": 1.0 for i in range(2 * MAX_VALUES)}))
    history.add(Point(START + 15, 1, 1, {"v0": 1e300, "v1": 2.0}))
    first, second = history.window(0, math.inf)
    assert len(first.values) == MAX_VALUES
    assert second.values == {"v1": 2.0}


@pytest.mark.parametrize("body", [{}, {"hour": 1, "names": [], "rows": "AAAA"}, {"hour": "x", "names": [], "rows": ""}])
def test_an_unreadable_row_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        TrendHistory().restore([(0, body)])


def test_a_snapshot_does_not_change_afterwards() -> None:
    history = filled(1)
    copy = history.copy()
    (_, encode), *_ = history.take_unsaved()
    before = (copy.window(0, math.inf), encode())
    add(history, 0.5, history.latest_at + 15)
    assert (copy.window(0, math.inf), encode()) == before


def test_an_attempt_and_a_step_of_any_size_that_a_report_may_have_are_kept() -> None:
    largest = 2**63 - 1
    history, store = TrendHistory(), Store()
    history.add(Point(START, largest, largest, {"goodput": 0.5}))
    store.save(history)
    for each in (history, store.load()):
        assert [(p.attempt, p.iteration) for p in each.window(START - 1, START + 1)] == [(largest, largest)]
