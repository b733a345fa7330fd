"""Speed and verdict of a job's summary: none that a job in trouble does not have."""

from __future__ import annotations

from typing import Any

import pytest

from rankwatch.contract.job_summary import steps_per_second, verdict

RUNNING: dict[str, Any] = {"state": "running", "reason": "", "verdict": "healthy", "iterations_per_second": 64.7}


@pytest.mark.parametrize("known", [2.5, 0.0, None])
def test_the_monitors_own_speed_is_used(known: float | None) -> None:
    assert steps_per_second({**RUNNING, "steps_per_second": known}) == known


@pytest.mark.parametrize("state", ["hung", "recovering", "lost", "failed", "stopped", "finished"])
def test_a_job_without_progress_has_no_speed(state: str) -> None:
    assert steps_per_second({**RUNNING, "state": state}) == 0.0


def test_the_speed_of_a_job_that_starts_is_not_known() -> None:
    assert steps_per_second({**RUNNING, "state": "starting"}) is None


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        ({}, "healthy"),
        ({"state": "finished"}, "healthy"),
        ({"state": "hung"}, "no_step"),
        ({"state": "lost"}, "no_step"),
        ({"state": "failed"}, "no_step"),
        ({"state": "recovering"}, "no_step"),
        ({"state": "hung", "verdict": "worker"}, "worker"),
        ({"steps_per_second": 0.0}, "no_step"),
        ({"steps_per_second": None}, "healthy"),
        ({"reason": "suspected: Rank 1 is behind."}, "no_step"),
    ],
)
def test_healthy_needs_progress(more: dict[str, Any], shown: str) -> None:
    assert verdict({**RUNNING, **more}) == shown
