"""What a person should do about a job that failed or is lost, step by step, each with a command where one is known.

Derived when it is read, like :func:`.ended.next_step`, which is the same in one sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rankwatch.contract.enums import JobState
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views import ended, host_commands, rank_logs
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
    read = [_read_log(job, crashes[0].rank, crashes[0].host)] if crashes else []
    return [*read, Step(ended.next_step(job, state))]


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
        return (read, Step("Remove the cause, then launch the job again: another restart would end in the same way."))
    local_rank = int(job.columns.local_rank_R[crash.rank])
    other = f"without {crash.host}" if len(set(job.columns.hosts) - {""}) > 1 else "on another node"
    return (
        read,
        Step(
            f"Look for errors of its GPU on {crash.host}.",
            host_commands.gpu(str(local_rank) if local_rank >= 0 else ""),
            crash.host,
        ),
        Step(
            f"Launch the job again {other}: a crash that stays with rank {crash.rank} comes from data or code, "
            f"one that does not came from {crash.host}."
        ),
    )


def _read_log(job: Job, rank: int, host: str, step: int | None = None) -> Step:
    where = "" if step is None else f" around step {step}"
    place = rank_logs.place_of(job, rank, host)
    if not place.command:
        where += f", in the output of the launcher{f' on {host}' if host else ''}"
    return Step(f"Read what rank {rank} logged{where}.", *place)
