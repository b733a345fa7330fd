"""The speed of the last hours in 48 bytes."""

from __future__ import annotations

import base64

from monitor.core.regression.test_trends import START, Store, add, filled
from rankwatch_monitor.core.regression.sparkline import POINTS, SECONDS, UNKNOWN, Sparkline

NOW = START + 10 * SECONDS


def drawn(line: Sparkline, now: float = NOW) -> tuple[float, list[int]]:
    shape = line.shape(now)
    assert shape is not None
    return shape.peak, list(base64.b64decode(shape.points))


def test_points_are_means_as_shares_of_the_largest() -> None:
    line = Sparkline()
    for at, value in ((NOW - 2 * SECONDS, 4.0), (NOW - 2 * SECONDS + 60, 2.0), (NOW - SECONDS, 0.0), (NOW, 1.5)):
        line.add(at, value)
    peak, points = drawn(line)
    assert (peak, points) == (3.0, [UNKNOWN] * (POINTS - 3) + [254, 0, 127])


def test_a_job_that_stands_still_is_a_line_at_zero_and_one_without_speed_is_left_out() -> None:
    line = Sparkline()
    assert line.shape(NOW) is None
    line.add(NOW, 0.0)
    assert drawn(line) == (0.0, [UNKNOWN] * (POINTS - 1) + [0])
    assert line.shape(NOW + POINTS * SECONDS) is None


def test_it_moves_on_with_the_time_and_skips_what_was_not_measured() -> None:
    line = Sparkline()
    for i in range(3 * POINTS):
        if i % 10 != 9:
            line.add(START + SECONDS * i, 1.0 + i % 2)
    line.add(START, 99.0)  # too old by now
    means = line.means(START + SECONDS * (3 * POINTS + 1))
    expected = [None if i % 10 == 9 else 1.0 + i % 2 for i in range(2 * POINTS + 2, 3 * POINTS)]
    assert means == [*expected, None, None]


def test_a_jump_of_days_leaves_nothing_old() -> None:
    line = Sparkline()
    line.add(START, 5.0)
    line.add(START + 7 * 86_400, 1.0)
    assert drawn(line, START + 7 * 86_400) == (1.0, [UNKNOWN] * (POINTS - 1) + [254])


def test_it_is_the_same_after_the_store() -> None:
    store, history = Store(), filled(5, speed=2.5)
    add(history, 1, history.latest_at + 15, speed=1.0)
    store.save(history)
    again = store.load()
    assert again.sparkline.means(history.latest_at) == history.sparkline.means(history.latest_at)
    past, now = filled(1, speed=2.0), filled(1, begin=START + 3600, speed=1.0)
    now.merge_stored(past)
    known = [mean for mean in now.sparkline.means(now.latest_at) if mean is not None]
    assert (known[0], known[-1]) == (2.0, 1.0)
