"""How a job trains now: a step and its parts, what the script logged last, the range of its GPUs. Derived when read."""

from __future__ import annotations

from collections.abc import Iterable

from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views import responses


def vitals(job: Job) -> responses.Vitals:
    """The figures as ``GET /jobs/{id}`` shows them; None: not known.

    The step is that of the newest window of this attempt, medians over the ranks. Of an ended job no device is read.
    """
    sample = job.performance.history.latest
    step: responses.StepParts | None = None
    if sample is not None and sample.attempt == job.attempt:
        step = {"seconds": sample.step, "parts": dict(sample.parts), "waiting": sample.waiting}
    readings = [] if job.ended is not None else list(job.performance.readings.values())
    return {
        "step": step,
        "logged": {name: each.value for name, each in sorted(job.logged.latest.items())},
        "gpu_temperature": _range(each.temperature for each in readings),
        "gpu_clock": _range(each.clock for each in readings),
    }


def _range(values: Iterable[float | None]) -> tuple[float, float] | None:
    """The smallest and the largest of what is known; None: nothing is."""
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known else None
