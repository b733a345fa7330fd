"""What needs both sides' jobs to run at once and take turns: the cost of calls, and a monitor that stops or dies."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import _service
import _table
import job
from _recovery_run import Arm
from job import Job

SETTLE_SECONDS = 1.0
WATCHED_AGAIN = 30.0
"""Seconds after which a monitor that was killed is not coming back."""

Figures = dict[str, dict[str, dict[str, Any]]]
"""By what was measured, then by side."""


@contextlib.contextmanager
def both(arms: Sequence[Arm], ranks: int, folder: Path) -> Iterator[list[Job]]:
    """A job of each side, all of them training."""
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(job.running(arm, ranks, folder / arm.name)) for arm in arms]
        for each in jobs:
            each.do("steps 0.5")
        for each in jobs:
            if each.arm.name == job.RANKWATCH:  # the exporter's imports happen once in a job's life
                _service.wait_for("all ranks to report", lambda each=each: each.monitor_answers() == ranks or None)
        yield jobs


def measure(arms: Sequence[Arm], ranks: int, rounds: int, batches: int, seconds: float, folder: Path) -> Figures:
    """Calls in turns; then each side's monitor stopped for so many seconds, and killed."""
    found: Figures = {"calls": {}, "stopped": {}, "killed": {}}
    with both(arms, ranks, folder) as jobs:
        answers: dict[str, list[dict[str, Any]]] = {each.arm.name: [] for each in jobs}
        for number in range(rounds):
            print(f"calls {number + 1}/{rounds}", file=sys.stderr, flush=True)
            for each in jobs:
                answers[each.arm.name] += each.do(f"calls {batches}")
        found["calls"] = {name: calls(reported) for name, reported in answers.items()}
        for each in jobs:
            print(f"{each.arm.name}: its monitor is stopped, then killed", file=sys.stderr, flush=True)
            found["stopped"][each.arm.name] = stop(each, seconds)
        for each in jobs:  # the last thing, since a side may not get over it
            found["killed"][each.arm.name] = kill(each, seconds)
    return found


def calls(answers: list[dict[str, Any]]) -> dict[str, float]:
    """Microseconds of a call, less the empty one, over all ranks and rounds."""
    figures: dict[str, float] = {}
    walls = {
        kind: [ns for reported in answers for ns in reported["wall"][kind]]
        for kind in ("empty", "section", "heartbeat")
    }
    cpus = {kind: median([reported["cpu"][kind] for reported in answers]) for kind in walls}
    empty = median(walls["empty"])
    for kind in ("section", "heartbeat"):
        figures[f"{kind} p50, us"] = (median(walls[kind]) - empty) / 1e3
        figures[f"{kind} p99, us"] = (_table.percentile(walls[kind], 0.99) - empty) / 1e3
        figures[f"{kind} CPU of the rank, us"] = (cpus[kind] - cpus["empty"]) / 1e3
    return figures


def stop(each: Job, seconds: float) -> dict[str, Any]:
    """What steps suffer while all that watches is stopped, and in as long before."""
    before = each.do(f"steps {seconds}")
    each.order(f"steps {seconds + SETTLE_SECONDS}")
    with job.stopped(watching := each.monitors()):
        time.sleep(seconds)
    during = each.answers()
    return {"processes": len(watching), **suffered(during), "longest before, s": suffered(before)["longest, s"]}


def kill(each: Job, seconds: float) -> dict[str, Any]:
    """The same when all that watches is killed; and whether it watches again within 30 s."""
    each.order(f"steps {seconds}")
    watching = each.monitors()
    for pid in watching:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    during = each.answers()
    return {"processes": len(watching), **suffered(during), "watched again": watched_again(each, set(watching))}


def suffered(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """The longest time that the calls of a step took on any rank, and what they raised."""
    errors, steps = (sum(reported[what] for reported in answers) for what in ("errors", "steps"))
    printed = next((reported["said"] for reported in answers if reported["said"]), "")
    longest = max(reported["longest"] for reported in answers)
    return {"longest, s": longest, "steps": steps, "calls that raised": errors, "said": printed}


def watched_again(each: Job, killed: set[int]) -> bool:
    """Whether another process watches all ranks again: of the other side, whether no call raises any more."""
    if each.arm.name == job.RANKWATCH:

        def receives() -> bool | None:
            return (each.monitor_answers() == each.ranks and not killed & set(each.monitors())) or None

        with contextlib.suppress(TimeoutError):
            return bool(_service.wait_for("the ranks to report again", receives, WATCHED_AGAIN))
        return False

    def fine() -> bool | None:
        return not suffered(each.do("steps 0.2"))["calls that raised"] or None

    with contextlib.suppress(TimeoutError):
        return bool(_service.wait_for("calls that do not raise", fine, WATCHED_AGAIN))
    return False
