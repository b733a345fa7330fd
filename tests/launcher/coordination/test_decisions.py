"""The limits on restarts and what counts as progress: pure functions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankwatch.contract.enums import NoRestart
from rankwatch_launcher.coordination.decisions import (
    FAIL,
    RESTART,
    STOP,
    AttemptDecision,
    JobProgress,
    RestartBudget,
    StepRange,
    within_limits,
)
from rankwatch_launcher.outcome import CODE_DO_NOT_REQUEUE, CODE_FAILED

CRASH = AttemptDecision(RESTART, "rank 3 crashed")


def progress(*attempts: tuple[int, int] | None, ended: AttemptDecision = CRASH) -> JobProgress:
    found = JobProgress()
    for steps in attempts:
        found = found.including(None if steps is None else StepRange(*steps), ended)
    return found


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        ([(0, 30)], (30, 0)),
        ([(0, 30), (20, 30)], (30, 1)),
        ([(0, 30), (20, 29)], (30, 1)),
        ([(0, 30), (20, 31)], (31, 0)),
        ([(0, 30), (20, 30), (20, 30)], (30, 2)),
        ([(0, 30), (20, 30), (20, 40)], (40, 0)),
        # An attempt that counts from 0 may count since its checkpoint: only the same step again is no progress.
        ([(0, 30), (0, 20)], (30, 0)),
        ([(0, 30), (0, 20), (0, 20)], (30, 1)),
        ([(0, 30), (0, 30)], (30, 1)),
        # Attempts of which no step is known neither count nor reset.
        ([(0, 30), (20, 30), None, (20, 30)], (30, 2)),
        ([None, None], (-1, 0)),
    ],
)
def test_what_counts_as_progress(attempts: list[tuple[int, int] | None], expected: tuple[int, int]) -> None:
    found = progress(*attempts)
    assert (found.furthest, found.stalled) == expected


@pytest.mark.parametrize(("used", "verdict", "then"), [(0, RESTART, 1), (2, RESTART, 3), (3, FAIL, 3), (4, FAIL, 4)])
def test_a_counted_restart_is_taken_from_the_budget(used: int, verdict: str, then: int) -> None:
    decision = within_limits(CRASH, RestartBudget(3), used, JobProgress())
    assert (decision.verdict, decision.used, decision.max_restarts) == (verdict, then, 3)
    assert decision.code == CODE_FAILED
    assert decision.reason.startswith(CRASH.reason)


def test_a_restart_that_regroups_nodes_costs_nothing_and_is_always_allowed() -> None:
    regroup = AttemptDecision(RESTART, "node b has joined", counted=False, fault=False)
    decision = within_limits(regroup, RestartBudget(0, 1), 5, progress((0, 3), (0, 3)))
    assert (decision.verdict, decision.used, decision.reason) == (RESTART, 5, "node b has joined")


@pytest.mark.parametrize("verdict", [FAIL, STOP])
def test_other_verdicts_are_only_completed(verdict: str) -> None:
    decision = within_limits(AttemptDecision(verdict, "ordered"), RestartBudget(0, 1), 2, progress((0, 3), (0, 3)))
    assert (decision.verdict, decision.reason, decision.used) == (verdict, "ordered", 2)


@pytest.mark.parametrize(("limit", "verdict"), [(0, RESTART), (1, FAIL), (2, FAIL), (3, RESTART)])
def test_attempts_without_progress_end_the_job_with_budget_left(limit: int, verdict: str) -> None:
    stalled = progress((0, 30), (20, 30), (20, 30))
    decision = within_limits(CRASH, RestartBudget(10, limit), 1, stalled)
    assert decision.verdict == verdict
    assert decision.code == (CODE_DO_NOT_REQUEUE if verdict == FAIL else CODE_FAILED)
    assert decision.used == (1 if verdict == FAIL else 2)


BROKEN_SAMPLE = AttemptDecision(RESTART, "rank 1 raised", place="1: ValueError: sample 50")
STUCK = AttemptDecision(RESTART, "rank 1 is stuck", place="ranks 1 in step, decode (t.py:5)", given_back=True)


@pytest.mark.parametrize(
    ("attempts", "alike"),
    [
        ([(0, 49)], 1),
        ([(0, 49), (40, 49), (40, 49)], 3),
        ([(0, 49), (0, 49), (0, 49)], 3),
        ([(0, 49), (40, 49), (40, 52)], 1),
        # Steps that count from 0 since the checkpoint are fewer once.
        ([(0, 49), (0, 9), (0, 9)], 3),
        ([(0, 49), (0, 9), (0, 7)], 1),
        ([(0, 49), (0, 60), (0, 9)], 2),
        ([(0, 49), None, (0, 49)], 1),
    ],
)
@pytest.mark.parametrize("ended", [BROKEN_SAMPLE, STUCK], ids=["crash", "hang"])
def test_attempts_that_end_alike_are_counted(
    attempts: list[tuple[int, int] | None], alike: int, ended: AttemptDecision
) -> None:
    assert progress(*attempts, ended=ended).alike == alike


def test_the_third_attempt_that_ends_alike_is_the_last() -> None:
    for number, verdict in ((1, RESTART), (2, RESTART), (3, FAIL)):
        alike = progress(*[(0, 49)] * number, ended=BROKEN_SAMPLE)
        decision = within_limits(BROKEN_SAMPLE, RestartBudget(10, 5), number - 1, alike)
        assert decision.verdict == verdict
    assert (decision.no_restart, decision.code) == (NoRestart.DETERMINISTIC, CODE_DO_NOT_REQUEUE)


def test_other_errors_at_the_same_step_are_not_alike() -> None:
    other = replace(BROKEN_SAMPLE, place="2: RuntimeError: connection reset")
    found = progress((0, 49), (40, 49), ended=BROKEN_SAMPLE).including(StepRange(40, 49), other)
    assert found.alike == 1


def test_a_hang_that_nothing_proves_is_never_deterministic() -> None:
    waits = replace(STUCK, proven=False)
    assert progress((0, 49), (40, 49), (40, 49), (40, 49), ended=waits).alike == 1


def test_restarts_are_given_back_once_training_gets_past_the_place() -> None:
    stuck = progress((0, 49), ended=STUCK)
    assert stuck.given_back() == stuck
    assert stuck.including(StepRange(40, 49), CRASH).given_back().to_give_back == (49,)
    assert stuck.including(StepRange(40, 50), CRASH).given_back().to_give_back == ()
    assert progress((0, 49), ended=CRASH).to_give_back == ()


def test_what_was_proposed_is_kept() -> None:
    proposed = AttemptDecision(RESTART, "ECC errors", incident="i1", exclude={"b": "ECC"}, avoid="b")
    for used in (0, 9):
        decision = within_limits(proposed, RestartBudget(3), used, JobProgress())
        assert (decision.incident, decision.exclude, decision.avoid) == ("i1", {"b": "ECC"}, "b")
