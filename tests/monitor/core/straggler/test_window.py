"""When a window is complete, and which ranks' reports are evaluated together."""

from __future__ import annotations

import numpy as np

from rankwatch.contract.statistics import CollectiveWindow
from rankwatch_monitor.core.events import WindowReport
from rankwatch_monitor.core.straggler.window import ABSENT, MAX_GROUPS, WindowAssembly


def assembled(*reports: tuple[int, int | None], now: float = 5.0) -> WindowAssembly:
    """Reports of (rank, step), one second after the other."""
    assembly = WindowAssembly()
    for number, (rank, step) in enumerate(reports):
        assembly.take(rank, WindowReport(step, 64), now + number)
    return assembly


def reported(assembly: WindowAssembly) -> dict[int, int]:
    """The steps of the ranks that have reported, by rank."""
    return {rank: step for rank, step in enumerate(assembly.step_R.tolist()) if step != ABSENT}


def test_a_window_is_ready_when_all_have_reported_or_after_a_while() -> None:
    assert assembled().ready_at(2, 1.0) == np.inf
    assert assembled((0, 64)).ready_at(2, 1.0) == 8.0
    assert assembled((0, 64)).ready_at(2, 4.0) == 15.0  # ranks that export every 4 s are waited for longer
    assert assembled((0, 64), (1, 64)).ready_at(2, 1.0) == 5.0


def test_a_window_is_ready_when_the_next_one_begins_and_most_have_reported() -> None:
    """One of four never reports a window: the next windows of the others must not be taken for this one."""
    overtaken = assembled((0, 64), (1, 64), (2, 64), (0, 128))
    assert overtaken.ready_at(4, 4.0) == 5.0
    rank_i, step, later = overtaken.closed(9.0)
    assert (rank_i.tolist(), step, reported(later)) == ([1, 2], 64, {0: 128})
    assert (later.reported, later.since) == (1, 9.0), "the next window gathers from now on"
    assert assembled((0, 64), (0, 128)).ready_at(4, 4.0) == 15.0


def test_a_rank_that_lags_behind_is_left_out() -> None:
    rank_i, step, later = assembled((0, 128), (1, 64), (2, 128)).closed(9.0)
    assert (rank_i.tolist(), step, reported(later)) == ([0, 2], 128, {})
    assert (later.reported, later.since) == (0, None)


def test_windows_shorter_than_an_export_are_evaluated_as_they_come() -> None:
    rank_i, step, later = assembled((0, 8), (1, 16), (2, 24), (3, 32)).closed(9.0)
    assert (rank_i.tolist(), step, reported(later)) == ([0, 1, 2, 3], 32, {})


def test_without_steps_all_count() -> None:
    rank_i, step, later = assembled((0, None), (1, None)).closed(9.0)
    assert (rank_i.tolist(), step, reported(later)) == ([0, 1], None, {})


def test_process_groups_are_bounded() -> None:
    assembly = WindowAssembly()
    for number in range(MAX_GROUPS + 5):
        window = WindowReport(64, 64, collectives={f"pg{number}": CollectiveWindow(1, 1.0, 1.0)})
        assembly.take(0, window, 0.0)
    assert len(assembly.transfers) == MAX_GROUPS
