"""The accounts themselves: the window, the way through the store, the counters, the size."""

from __future__ import annotations

import json

import pytest

from monitor.core.accounted import Accounted, checkpoints
from rankwatch_monitor.core import goodput_accounting
from rankwatch_monitor.core.goodput import intervals
from rankwatch_monitor.core.goodput.intervals import Bucket
from rankwatch_monitor.core.goodput.ledger import MARKS, WINDOW_MINUTES, Checkpoint, Ledger


def test_the_window_forgets_what_was_long_ago() -> None:
    scene = Accounted(on_hang="log", checkpoint=10_000).run(60).hang(2).run(1000).resume().run(60)
    ratio, (seconds, lately) = goodput_accounting.ratio(scene.job), goodput_accounting.last_hour(scene.job)
    assert seconds == pytest.approx(scene.lived)
    assert lately == pytest.approx(ratio)
    scene.run(3600)
    seconds, lately = goodput_accounting.last_hour(scene.job)
    assert 59 * 60 <= seconds <= 60 * 60
    assert lately == 1.0
    assert goodput_accounting.ratio(scene.job) < 0.9
    assert len(scene.job.ledger.minutes) <= WINDOW_MINUTES


def test_checkpoint_after_checkpoint_without_a_step_stays_small() -> None:
    scene = Accounted(heartbeat_timeout=None).run(10)
    for _ in range(200):
        checkpoints(scene, 2)
        scene.busy = True
        scene.run(2)
    assert len(scene.job.ledger.pending) <= 257
    assert scene.spent["checkpointing"] == pytest.approx(400.0, rel=0.1)


def test_a_ledger_survives_the_store() -> None:
    scene = Accounted().run(60).hang(2).run(5)
    ledger = scene.job.ledger
    row = json.loads(json.dumps(ledger.to_json()))
    again = Ledger.of_json(row)
    assert again.to_json() == ledger.to_json()
    assert again.counted == ledger.totals


def test_what_a_restart_threw_away_survives_the_store() -> None:
    scene = Accounted(checkpoint=50).run(92).hang(2)
    ledger = scene.until(lambda: scene.closings).job.ledger
    assert ledger.owed[Bucket.PRODUCTIVE] > 30
    again = Ledger.of_json(json.loads(json.dumps(ledger.to_json())))
    assert again.to_json() == ledger.to_json()
    assert again.lost_by(scene.incident.timeline.first_step) == ledger.settled[Bucket.LOST_STEPS]


def test_steps_are_thrown_away_at_the_pace_at_which_they_were_done_however_long_ago() -> None:
    ledger = Ledger(0.0)
    at = 0.0
    for step in range(10_000):
        seconds = 1.0 if step < 9_000 else 2.0
        ledger.settle(intervals.one(at, at + seconds, Bucket.PRODUCTIVE))
        ledger.mark(step)
        at += seconds
    assert len(ledger.marks) <= MARKS
    ledger.resume(at, 9_899)
    assert ledger.settled[Bucket.LOST_STEPS] == pytest.approx(200.0, rel=0.02)
    ledger.resume(at, 4_999)
    assert ledger.settled[Bucket.PRODUCTIVE] == pytest.approx(5_000.0, rel=0.1)
    assert sum(ledger.settled.values()) == pytest.approx(at)
    ledger.resume(at, 0)
    assert ledger.settled[Bucket.PRODUCTIVE] == pytest.approx(1.0)


def test_the_last_checkpoint_is_known_also_after_a_restart_and_in_the_next_monitor() -> None:
    scene = Accounted(checkpoint=20, saves=True).run(15)
    assert scene.job.ledger.checkpoint is None
    scene.run(40)
    known = scene.job.ledger.checkpoint
    assert known is not None
    assert known.iteration in (39, 40), "the lower step of the two reports around it"
    assert 10 < scene.now - known.at < 20
    scene.hang(2).run(20)
    assert scene.job.attempt == 2
    resumed = int(scene.job.columns.first_iteration_R.min())
    loaded = scene.job.ledger.checkpoint
    assert loaded == (known.at, resumed - 1, True, resumed - 1), "the attempt that loaded it shows its step"
    assert Ledger.of_json(json.loads(json.dumps(scene.job.ledger.to_json()))).checkpoint == loaded


def test_an_attempt_shows_the_step_of_a_checkpoint_only_if_it_loaded_it() -> None:
    ledger = Ledger(0.0)
    ledger.resume(1.0, 601)
    assert ledger.checkpoint is None, "when it was saved is not known"
    ledger.save(599, 100.0)
    for step in (0, 501):
        ledger.resume(110.0, step)
        assert ledger.checkpoint == (100.0, 599, False, 599), "none, or an earlier one"
    ledger.resume(110.0, 601)
    assert ledger.checkpoint == (100.0, 600, True, 600)
    ledger.save(649, 150.0)
    assert ledger.checkpoint == (150.0, 649, False, 649)


def test_all_ranks_report_one_checkpoint() -> None:
    ledger = Ledger(0.0)
    for at, latest in ((100.0, 42), (100.4, 43), (102.0, 42)):
        ledger.save(40, at, latest)
    assert ledger.checkpoint == (100.0, 40, False, 43)
    ledger.save(80, 140.0)
    assert ledger.checkpoint == (140.0, 80, False, 80)


def test_the_counters_of_a_killed_monitor_never_lie_above_those_of_the_next() -> None:
    scene = Accounted().run(100)
    stored = scene.job.ledger.to_json()
    scene.run(10)
    before = scene.job.ledger.counted
    after = Ledger.of_json(json.loads(json.dumps(stored))).counted
    assert all(after[bucket] >= before[bucket] for bucket in Bucket)
    assert before[Bucket.PRODUCTIVE] > 0


def test_a_look_without_news_changes_nothing() -> None:
    scene = Accounted().run(60)
    before = scene.job.ledger.to_json()
    goodput_accounting.account(scene.job, scene.now + 0.3)
    goodput_accounting.account(scene.job, scene.now)
    assert scene.job.ledger.to_json() == before


def test_of_two_saves_that_follow_each_other_closely_the_newer_counts() -> None:
    ledger = Ledger(0.0)
    ledger.mark(104)
    ledger.save(58, 100.0, 60)
    ledger.save(59, 100.5, 61)  # another rank, of the same checkpoint
    assert (ledger.checkpoint, ledger.at_risk) == (Checkpoint(100.0, 59, latest=61), 45)
    ledger.save(103, 103.0, 104)
    assert (ledger.checkpoint, ledger.at_risk) == (Checkpoint(103.0, 103, latest=104), 1)


def test_a_save_after_many_fast_steps_is_at_least_as_late_as_any_rank_states() -> None:
    ledger = Ledger(0.0)
    ledger.mark(104)
    ledger.save(16, 100.0, 60)
    ledger.save(60, 101.0, 104)
    assert ledger.at_risk == 44
    ledger.save(100, 101.5, 104)
    assert ledger.at_risk == 4
