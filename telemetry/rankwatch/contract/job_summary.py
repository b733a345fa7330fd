"""What a job's summary (``GET /api/v1/jobs``) states about its speed; shared by the terminal and W&B."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rankwatch.contract.enums import JobState, StragglerVerdict

NO_PROGRESS: Final = frozenset(
    (JobState.HUNG, JobState.RECOVERING, JobState.LOST, JobState.FAILED, JobState.STOPPED, JobState.FINISHED)
)
"""States in which no step completes."""


def steps_per_second(summary: Mapping[str, Any]) -> float | None:
    """Steps per second; 0 while no step completes, None while unknown."""
    if "steps_per_second" in summary:
        known: float | None = summary["steps_per_second"]
        return known
    if summary["state"] in NO_PROGRESS:
        return 0.0
    # A monitor without that field: its rate is one over recent reports, so it is used for a running job only.
    rate: float | None = summary.get("iterations_per_second") if summary["state"] == JobState.RUNNING else None
    return rate


def verdict(summary: Mapping[str, Any]) -> str:
    """The verdict on the job's speed; ``no_step`` instead of ``healthy`` while the job makes no progress."""
    found: str = summary["verdict"]
    if found != StragglerVerdict.HEALTHY or summary["state"] == JobState.FINISHED:
        return found
    stands = summary["state"] in NO_PROGRESS or steps_per_second(summary) == 0
    suspected = str(summary.get("reason") or "").startswith("suspected")
    return str(StragglerVerdict.NO_STEP) if stands or suspected else found
