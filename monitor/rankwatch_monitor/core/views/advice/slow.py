"""What to do about ranks, stages or links that slow a job.

Where to look depends on the cause, or is the GPU that is known to be throttled. Where launchers can restart the job
without the slow host, and the nodes that remain do clearly more than all do now, that follows if it stays slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from rankwatch.cli.formatting import percent_points, whole_percent
from rankwatch.contract.enums import Action, Cause, StragglerVerdict
from rankwatch_monitor.core import nodes
from rankwatch_monitor.core.incident import exclusion, straggler_actions
from rankwatch_monitor.core.incident.exclusion import Remaining
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.straggler.findings import Straggler
from rankwatch_monitor.core.views import host_commands
from rankwatch_monitor.core.views.advice.record import Advice, Step
from rankwatch_monitor.core.views.advice.situation import Situation
from rankwatch_monitor.core.views.responses import Order
from rankwatch_monitor.core.views.throttling import throttle_of

RUNBOOK: Final = "runbook.html#rankwatchstraggler"
LINK_RUNBOOK: Final = "runbook.html#rankwatchlinkslow"
STAYS_SLOW: Final = "if it stays slow"
_ALIKE: Final = 2
"""Percent points by which two stated shares of full speed differ at most to count as about as much."""
_LOOK: Final[Mapping[Cause, tuple[str, str]]] = {
    Cause.DATA: ("Look at what feeds {ranks} on {host}", ": the data loader's workers, the storage, the CPUs"),
    Cause.HOST: ("Look at the CPUs of {host}", ": other processes there, and what {ranks} runs in Python"),
    Cause.COMPUTE: ("Look at the GPU of {ranks} on {host}", ": clock, temperature, throttling, errors"),
}
_LOOK_INSIDE: Final = ("Read the stacks of {ranks} on {host}", ": nothing that was measured explains most of it")
_ELSEWHERE: Final[Mapping[StragglerVerdict, tuple[str, str]]] = {
    StragglerVerdict.STAGE: (
        "Move layers from the slow pipeline stage to the others",
        ": no node is at fault",
    ),
    StragglerVerdict.WORKLOAD: (
        "Even out the work of the ranks, such as the lengths of samples",
        ": no node is at fault",
    ),
    StragglerVerdict.LINK: (
        "Look at the network between the nodes of this process group",
        ": links, switches, adapters",
    ),
    StragglerVerdict.UNEXPLAINED: (
        "Compare the ranks in the section timeline",
        ": no measurement shows what it is",
    ),
}


def too_many(s: Situation) -> bool:
    """Whether so many ranks are slow that no single one is at fault."""
    return bool(s.job.performance.open_stragglers) and straggler_actions.too_many(s.job) is not None


def elsewhere(s: Situation) -> bool:
    """Whether something else than a rank is slow."""
    return s.job.performance.finding.verdict in _ELSEWHERE


def ranks(s: Situation) -> Advice:
    """Look for what the slow ranks share."""
    why = f", such as a switch or a file system: {straggler_actions.too_many(s.job)}"
    return Advice(steps=(Step("Look for what the slow ranks share", why),), runbook=RUNBOOK)


def job(s: Situation) -> Advice:
    """What the finding points to."""
    verdict = s.job.performance.finding.verdict
    link = verdict is StragglerVerdict.LINK
    if link and (host := s.job.performance.finding.host):
        look = Step(f"Look at the network of {host}", ": its adapter, cable and port")
        return Advice(steps=(look,), runbook=LINK_RUNBOOK)
    return Advice(steps=(Step(*_ELSEWHERE[verdict]),), runbook=LINK_RUNBOOK if link else RUNBOOK)


def rank(s: Situation) -> Advice:
    """Look at the costliest slow rank, and restart without its node if that gains something."""
    found = s.job.performance.open_stragglers
    first = found[0]
    step = _look(s.job, first, [each for each in found if each.host == first.host and each.cause is first.cause])
    left = exclusion.permitted(s.job, first.rank) if first.host else None
    if left is None:
        return Advice(steps=(step,), runbook=RUNBOOK)
    advised, then = _without_node(s.job, first, left)
    weighed = Advice(steps=(step, then), weighs_restart=True, runbook=RUNBOOK)
    if not advised:
        return weighed
    order = Order(Action.RESTART_EXCLUDING_NODE, f"Restart without {first.host}", (first.rank,), (first.host,))
    return replace(weighed, orders=(order,), proposed=True, condition=STAYS_SLOW)


def _look(job: Job, first: Straggler, alike: Sequence[Straggler]) -> Step:
    host, command = first.host or "its node", _command(job, first)
    if (throttle := throttle_of(job, first)) is not None:
        at = f", at {throttle.readings}" if throttle.readings else ""
        brief = f"Check the {throttle.remedy} of {throttle.gpu} on {host}"
        return Step(brief, f": it is throttled ({throttle.words}){at}", command, first.host)
    brief, why = (part.format(ranks=_ranks(alike), host=host) for part in _LOOK.get(first.cause, _LOOK_INSIDE))
    return Step(brief, why, command, first.host)


def _without_node(job: Job, straggler: Straggler, left: Remaining) -> tuple[bool, Step]:
    """Whether a restart without the straggler's node is advised, and what to do instead or what it gains.

    It is where it gains as much as the slowdown from which a rank is a straggler, or a spare takes the place. The
    full speed is that of the job without stragglers, on all nodes that run now. Fewer nodes are taken to do as much
    work less as they are fewer: nodes alike, data-parallel ranks, and a batch per rank that stays the same.
    """
    host = straggler.host
    if left.too_few:
        return False, Step(f"If it stays slow, {exclusion.REMEDY}", left.too_few_without(host))
    order, running = f"If it stays slow, restart without {host}", len(nodes.acting(job))
    if (now := straggler.throughput) is None or left.usable >= running:
        return True, Step(order)
    others = (each.stated_share or 0.0 for each in job.performance.open_stragglers if each.host != host)
    after = left.usable / running * (1.0 - max(others, default=0.0))
    alike = abs(percent_points(after) - percent_points(now)) <= _ALIKE
    verb = "gives" if left.usable == 1 else "give"
    gives = (
        f": {left.usable} of {running} nodes with the same batch per rank {verb} {whole_percent(after)} of full speed, "
        f"the slow job {'about as much' if alike else whole_percent(now)}"
    )
    if after - now >= job.policy.straggler_slowdown and not alike:
        return True, Step(order, gives)
    mend = f"{gives}; mend {host} or add a spare first"
    return False, Step(f"If it stays slow, do not restart without {host}", mend)


def _ranks(alike: Sequence[Straggler]) -> str:
    if len(alike) == 1:
        return f"rank {alike[0].rank}"
    *most, last = sorted(each.rank for each in alike)
    return f"ranks {', '.join(map(str, most))} and {last}"


def _command(job: Job, straggler: Straggler) -> str:
    """What shows more of the cause, on the straggler's host; empty: its process or device is not known."""
    rank, columns = straggler.rank, job.columns
    if rank >= len(columns):
        return ""
    pid, local_rank = int(columns.pid_R[rank]), int(columns.local_rank_R[rank])
    if straggler.cause is Cause.COMPUTE:
        return host_commands.gpu(str(local_rank) if local_rank >= 0 else "")
    if straggler.cause is Cause.HOST:
        return "top -b -n 1 -o %CPU | head -20"
    return host_commands.stack(pid) if pid > 0 else ""
