"""The limits on restarts and what counts as progress: pure functions."""

from __future__ import annotations

import pytest

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


def progress(*attempts: tuple[int, int] | None) -> JobProgress:
    found = JobProgress()
    for steps in attempts:
        found = found.including(None if steps is None else StepRange(*steps))
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


def test_what_was_proposed_is_kept() -> None:
    proposed = AttemptDecision(RESTART, "ECC errors", incident="i1", exclude={"b": "ECC"}, avoid="b")
    for used in (0, 9):
        decision = within_limits(proposed, RestartBudget(3), used, JobProgress())
        assert (decision.incident, decision.exclude, decision.avoid) == ("i1", {"b": "ECC"}, "b")
