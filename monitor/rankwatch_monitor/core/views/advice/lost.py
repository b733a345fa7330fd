"""What to do about a job of which nothing is received: see whether it still runs, and what keeps its reports away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from rankwatch.cli.formatting import count
from rankwatch_monitor.core import liveness
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.ranks import live_ranks
from rankwatch_monitor.core.views import host_commands
from rankwatch_monitor.core.views.advice.record import Advice, Step
from rankwatch_monitor.core.views.advice.situation import Situation
from rankwatch_monitor.core.views.ended import whole

RUNBOOK: Final = "runbook.html#rankwatchjoblost"
HOSTS: Final = 4
"""Hosts that are named, and asked by a command."""


def advise(situation: Situation) -> Advice:
    """The steps; hosts that other jobs are heard from are up."""
    job = situation.job
    by_host = {node.registration.host: node.registration for node in job.nodes.values()}
    asked = (host_commands.still_runs(each.facts, host, each.launcher_pid) for host, each in by_host.items())
    commands = list(dict.fromkeys(asked))[:HOSTS]
    shown = (
        ". The command shows its launchers"
        if any(each.facts.get("scheduler") not in host_commands.SCHEDULERS for each in by_host.values())
        else ""
    )
    first = next(iter(by_host), "")
    reach = host_commands.reaches_monitor(by_host[first].facts) if first else ""
    reached = f". The command shows whether {first} reaches it" if reach else ""
    hosts = list(by_host) or list(dict.fromkeys(filter(None, job.columns.hosts)))
    steps = (
        Step("Check whether the job still runs", f"{_up(situation, hosts)}{shown}", "; ".join(commands)),
        Step(
            "If it does, look for what keeps its reports from the monitor",
            f"{_fell_silent(job)}{reached}",
            reach,
            first if reach else "",
        ),
        Step("If it does not, launch it again"),
    )
    return Advice(steps=steps, runbook=RUNBOOK)


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
        return f": its {senders} fell silent one after another, over {whole(spread)}"
    return f": its {senders} fell silent within {whole(max(1.0, spread))} of one another, which suggests one cause"


def _up(situation: Situation, hosts: Sequence[str]) -> str:
    """Which hosts are up, since other jobs are heard from them, as a clause; empty: not known of any."""
    activity = situation.activity
    others = {host: activity.other_jobs(situation.job, host, situation.now) for host in hosts} if activity else {}
    up = [host for host, number in others.items() if number]
    if not up:
        return ""
    if len(up) > HOSTS:
        return f": {len(up)} of its {len(hosts)} nodes report in other jobs, so they are up"
    found = " and ".join(f"{host} reports in {others[host]} other job{'' if others[host] == 1 else 's'}" for host in up)
    return f": {found}, so {'the node is' if len(up) == 1 else 'these nodes are'} up; look at this job and its network"
