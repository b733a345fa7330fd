"""How a job trains now: a step and its parts, and what the script logged last. Derived when read."""

from __future__ import annotations

from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views import responses


def vitals(job: Job) -> responses.Vitals:
    """The figures as ``GET /jobs/{id}`` shows them; None: not known.

    The step is that of the newest window of this attempt, medians over the ranks.
    """
    sample = job.performance.history.latest
    step: responses.StepParts | None = None
    if sample is not None and sample.attempt == job.attempt:
        step = {"seconds": sample.step, "parts": dict(sample.parts), "waiting": sample.waiting}
    return {"step": step, "logged": {name: each.value for name, each in sorted(job.logged.latest.items())}}
