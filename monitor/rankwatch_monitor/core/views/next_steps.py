"""What a person should do about a job that failed or is lost, step by step, each with a command where one is known.

Derived when it is read, like :func:`.ended.next_step`, which is the same in one sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from rankwatch.cli.formatting import count
from rankwatch.contract.enums import JobState
from rankwatch_monitor.core import liveness
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.ranks import live_ranks
from rankwatch_monitor.core.views import ended, host_commands, rank_logs
from rankwatch_monitor.core.views.crash_advice import ErrorClass, SameStep
from rankwatch_monitor.core.views.ended import Repeated
from rankwatch_monitor.core.views.host_activity import HostActivity, history_of

HOSTS: Final = 4
"""Hosts that are named, and asked by a command."""


class Step(NamedTuple):
    """One step. ``command`` is run on ``host``; without a host anywhere in the cluster."""

    text: str
    command: str = ""
    host: str = ""

    def to_json(self) -> dict[str, Any]:
        """For the API."""
        return self._asdict()


def next_steps(job: Job, state: JobState, now: float, activity: HostActivity | None = None) -> Sequence[Step]:
    """The steps, in their order; empty: nothing has to be done.

    Args:
        job: the job.
        state: as of ``now``.
        now: unix seconds.
        activity: from which hosts all jobs are heard; None: not known.
    """
    if state is JobState.LOST:
        return _of_lost(job, now, activity)
    if state is not JobState.FAILED or job.ended is None:
        return ()
    crash = ended.repeated(job)
    if crash is not None and ended.cause_is_open(job):
        return _of_repeated(job, crash, now, activity)
    crashes = ended.crashed(job, job.ended)
    if not crashes:
        return [Step(ended.next_step(job, state))]
    first, host = crashes[0].rank, crashes[0].host
    look = _look(job) if ended.cause_is_open(job) else ()
    return [_read_log(job, first, host), *look, Step(ended.next_step(job, state))]


def _of_lost(job: Job, now: float, activity: HostActivity | None) -> Sequence[Step]:
    by_host = {node.registration.host: node.registration for node in job.nodes.values()}
    asked = (host_commands.still_runs(each.facts, host, each.launcher_pid) for host, each in by_host.items())
    commands = list(dict.fromkeys(asked))[:HOSTS]
    shown = " The command shows its launchers." if any(each.startswith("ssh ") for each in commands) else ""
    first = next(iter(by_host), "")
    reach = host_commands.reaches_monitor(by_host[first].facts) if first else ""
    reached = f" The command shows whether {first} reaches it." if reach else ""
    hosts = list(by_host) or list(dict.fromkeys(filter(None, job.columns.hosts)))
    return (
        Step(f"Check whether the job still runs{_up(job, hosts, now, activity)}.{shown}", "; ".join(commands)),
        Step(
            f"If it does, look for what keeps its reports from the monitor{_fell_silent(job)}.{reached}",
            reach,
            first if reach else "",
        ),
        Step("If it does not, launch it again."),
    )


def _fell_silent(job: Job) -> str:
    """Whether all senders of a lost job fell silent at one moment, as a clause; empty: it is not known of several."""
    heard_R = job.columns.last_heard_R[live_ranks(job.columns)]
    ranks = heard_R[~np.isnan(heard_R)].tolist()
    launchers = [node.seen for node in job.nodes.values() if node.ended is None]
    last = [*ranks, *launchers]
    if len(last) < 2:
        return ""
    senders = " and ".join(count(len(each), name) for each, name in ((ranks, "rank"), (launchers, "launcher")) if each)
    spread = max(last) - min(last)
    if spread > liveness.QUIET_AFTER:
        return f": its {senders} fell silent one after another, over {ended.whole(spread)}"
    return (
        f": its {senders} fell silent within {ended.whole(max(1.0, spread))} of one another, which suggests one cause"
    )


def _up(job: Job, hosts: Sequence[str], now: float, activity: HostActivity | None) -> str:
    """Which hosts are up, since other jobs are heard from them, as a clause; empty: not known of any."""
    others = {} if activity is None else {host: activity.other_jobs(job, host, now) for host in hosts}
    up = [host for host, number in others.items() if number]
    if not up:
        return ""
    if len(up) > HOSTS:
        return f": {len(up)} of its {len(hosts)} nodes report in other jobs, so they are up"
    found = " and ".join(f"{host} reports in {others[host]} other job{'' if others[host] == 1 else 's'}" for host in up)
    return f": {found}, so {'the node is' if len(up) == 1 else 'these nodes are'} up; look at this job and its network"


def _of_repeated(job: Job, crash: Repeated, now: float, activity: HostActivity | None) -> Sequence[Step]:
    """How to find out whether the rank or its node is the cause of a crash that came again and again."""
    read = _read_log(job, crash.rank, crash.host, crash.step)
    if not crash.host:
        again = "Remove the cause, then launch the job again: another restart would end in the same way."
        return (read, *_look(job, crash.same_step), Step(again))
    check, launch = _check_gpu(job, crash.host, now, activity), Step(ended.relaunch(job, crash.rank, crash.host))
    if (found := ended.crash_advice(job)) is not None and found.host_first:
        return (*check, read, launch)
    return (read, *check, *_look(job, crash.same_step, launches=True), launch)


def _check_gpu(job: Job, host: str, now: float, activity: HostActivity | None) -> Iterator[Step]:
    """The GPU of the last crash, where crashes of all jobs point to it first."""
    history = history_of(job, host, now, activity)
    if history.finding is not None and history.finding.check and history.concerns(job.incidents[-1]):
        yield Step(f"{history.finding.check}.", "; ".join(history.finding.commands), host)


def _look(job: Job, same: SameStep | None = None, *, launches: bool = False) -> Iterator[Step]:
    """What the error of the last crash points to, besides the log; ``same``: data or code first.

    ``launches``: a launch follows.
    """
    found = ended.crash_advice(job)
    if found is None:
        return
    if same is not None and same.passed is None and found.points_to is not ErrorClass.KERNEL:
        yield Step(f"Look at the batch after step {same.step:,}: {same.text}, which points to data or code.")
    if found.points_to is not ErrorClass.OTHER:
        yield Step(
            f"{found.before_launch if launches else found.text}.",
            "; ".join(found.commands),
            found.host if found.commands else "",
        )


def _read_log(job: Job, rank: int, host: str, step: int | None = None) -> Step:
    where = "" if step is None else f" around step {step}"
    place = rank_logs.place_of(job, rank, host)
    if not place.command:
        where += f", in the output of the launcher{f' on {host}' if host else ''}"
    return Step(f"Read what rank {rank} logged{where}. {place.note}".rstrip(), place.command, place.host)
