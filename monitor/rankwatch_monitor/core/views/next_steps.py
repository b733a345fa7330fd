"""What a person should do about a job that failed or is lost, step by step, each with a command where one is known.

Derived when it is read, like :func:`.ended.next_step`, which is the same in one sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rankwatch.contract.enums import JobState
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views import ended, host_commands
from rankwatch_monitor.core.views.crash_advice import ErrorClass, SameStep, separating
from rankwatch_monitor.core.views.ended import Repeated


class Step(NamedTuple):
    """One step. ``command`` is run on ``host``; without a host anywhere in the cluster."""

    text: str
    command: str = ""
    host: str = ""

    def to_json(self) -> dict[str, Any]:
        """For the API."""
        return self._asdict()


def next_steps(job: Job, state: JobState) -> Sequence[Step]:
    """The steps, in their order; empty: nothing has to be done."""
    if state is JobState.LOST:
        return _of_lost(job)
    if state is not JobState.FAILED or job.ended is None:
        return ()
    crash = ended.repeated(job)
    if crash is not None and ended.cause_is_open(job):
        return _of_repeated(job, crash)
    crashes = ended.crashed(job, job.ended)
    if not crashes:
        return [Step(ended.next_step(job, state))]
    first, host = crashes[0].rank, crashes[0].host
    look = _look(job) if ended.cause_is_open(job) else ()
    return [_read_log(job, first, host), *look, Step(ended.next_step(job, state))]


def _of_lost(job: Job) -> Sequence[Step]:
    name = next(iter(job.nodes), None)
    command = ""
    if name is not None:
        registration = job.nodes[name].registration
        command = host_commands.still_runs(registration.facts, registration.host, registration.launcher_pid)
    return (
        Step("Check whether the job still runs.", command),
        Step("If it does, look for what keeps its reports from the monitor: training goes on without them."),
        Step("If it does not, launch it again."),
    )


def _of_repeated(job: Job, crash: Repeated) -> Sequence[Step]:
    """How to find out whether the rank or its node is the cause of a crash that came again and again."""
    read = _read_log(job, crash.rank, crash.host, crash.step)
    if not crash.host:
        again = "Remove the cause, then launch the job again: another restart would end in the same way."
        return (read, *_look(job, crash.same_step), Step(again))
    other = ended.other_node(job, crash.host)
    return (
        read,
        *_look(job, crash.same_step),
        Step(f"Launch the job again {other}: {separating(crash.rank, crash.host)}."),
    )


def _look(job: Job, same: SameStep | None = None) -> Iterator[Step]:
    """What the error of the last crash points to, besides the log; ``same``: data or code first."""
    found = ended.crash_advice(job)
    if found is None:
        return
    if same is not None and found.points_to is not ErrorClass.KERNEL:
        yield Step(f"Look at the batch after step {same.step:,}: {same.text}, which points to data or code.")
    if found.points_to is not ErrorClass.OTHER:
        yield Step(f"{found.text}.", "; ".join(found.commands), found.host if found.commands else "")


def _read_log(job: Job, rank: int, host: str, step: int | None = None) -> Step:
    where = "" if step is None else f" around step {step}"
    facts = next((node.registration.facts for node in job.nodes.values() if node.registration.host == host), {})
    return Step(f"Read what rank {rank} logged{where}.", host_commands.log(facts))
