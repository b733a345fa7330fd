"""What a person should do about ranks, stages or links that slow a job. Derived when it is read.

=============  ======================================================================================================
worker         look at the host and device of the slow ranks, at what the cause points to, or at the GPU that is known
               to be throttled; where launchers can restart the job without that host and the nodes that remain do
               clearly more than all do now, that follows if it stays slow
many workers   look for what they share: no single one is to blame
stage          move work between the stages
workload       even out the work
link           look at the network of the group's nodes
unexplained    look into the steps
=============  ======================================================================================================

Nothing while an incident is open, whose own next action counts, or the job is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from rankwatch.cli.formatting import capital, percent_points, uncapital, whole_percent
from rankwatch.contract.enums import Action, Cause, StragglerVerdict
from rankwatch_monitor.core import nodes
from rankwatch_monitor.core.incident import exclusion, straggler_actions
from rankwatch_monitor.core.incident.exclusion import Remaining
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.straggler.findings import Straggler
from rankwatch_monitor.core.views import host_commands
from rankwatch_monitor.core.views.throttling import Throttle, throttle_of

RUNBOOK: Final = "runbook.html#rankwatchstraggler"
LINK_RUNBOOK: Final = "runbook.html#rankwatchlinkslow"
STAYS_SLOW: Final = "if it stays slow"
_ALIKE: Final = 2
"""Percent points by which two stated shares of full speed differ at most to count as about as much."""
_LOOK: Final[Mapping[Cause, str]] = {
    Cause.DATA: "Look at what feeds {ranks} on {host}: the data loader's workers, the storage, the CPUs",
    Cause.HOST: "Look at the CPUs of {host}: other processes there, and what {ranks} runs in Python",
    Cause.COMPUTE: "Look at the GPU of {ranks} on {host}: clock, temperature, throttling, errors",
}
_LOOK_INSIDE: Final = "Read the stacks of {ranks} on {host}: nothing that was measured explains most of it"
_ELSEWHERE: Final[Mapping[StragglerVerdict, str]] = {
    StragglerVerdict.STAGE: "Move layers from the slow pipeline stage to the others: no node is at fault.",
    StragglerVerdict.WORKLOAD: "Even out the work of the ranks, such as the lengths of samples: no node is at fault.",
    StragglerVerdict.LINK: "Look at the network between the nodes of this process group: links, switches, adapters.",
    StragglerVerdict.UNEXPLAINED: "Compare the ranks in the section timeline: no measurement shows what it is.",
}


class SlowAction(NamedTuple):
    """What a person should do. ``action`` is None when there is nothing to order."""

    text: str
    action: Action | None = None
    ranks: tuple[int, ...] = ()
    """Of the order: the nodes that run them are left out."""
    condition: str = ""
    """When the order is to be given: the look comes first."""
    command: str = ""
    """To be run on ``host``; empty: none."""
    host: str = ""
    runbook: str = RUNBOOK
    then: str = ""
    """What follows the look, as in the text, as a sentence; empty: nothing."""
    throttled: Throttle | None = None
    """The GPU of the slow rank, where its throttling is the cause."""

    def to_json(self) -> dict[str, Any]:
        """For the API."""
        action = str(self.action) if self.action else None
        throttled = None if self.throttled is None else self.throttled.to_json()
        return {**self._asdict(), "action": action, "ranks": list(self.ranks), "throttled": throttled}


def slow_action(job: Job) -> SlowAction | None:
    """What to do about what slows the job now; None: nothing."""
    if job.ended is not None or job.open_incident is not None:
        return None
    stragglers = job.performance.open_stragglers
    if not stragglers:
        text = _ELSEWHERE.get(job.performance.finding.verdict)
        link = job.performance.finding.verdict is StragglerVerdict.LINK
        return None if text is None else SlowAction(text, runbook=LINK_RUNBOOK if link else RUNBOOK)
    if (many := straggler_actions.too_many(job)) is not None:
        return SlowAction(f"Look for what the slow ranks share, such as a switch or a file system: {many}.")
    first = stragglers[0]
    alike = [each for each in stragglers if each.host == first.host and each.cause is first.cause]
    host = first.host or "its node"
    text = _LOOK.get(first.cause, _LOOK_INSIDE).format(ranks=_ranks(alike), host=host)
    command, throttled = _command(job, first), throttle_of(job, first)
    if throttled is not None:
        at = f", at {throttled.readings}" if throttled.readings else ""
        text = f"Check the {throttled.remedy} of {throttled.gpu} on {host}: it is throttled"
        text += f" ({throttled.words}){at}"
    found = SlowAction(f"{text}.", command=command, host=first.host, throttled=throttled)
    if not first.host or (left := left_without(job, first.rank)) is None:
        return found
    advised, clause = _without_node(job, first, left)
    found = found._replace(text=f"{text}; {STAYS_SLOW}, {clause}.", then=f"{capital(STAYS_SLOW)}, {clause}.")
    if not advised:
        return found
    return found._replace(action=Action.RESTART_EXCLUDING_NODE, ranks=(first.rank,), condition=STAYS_SLOW)


def left_without(job: Job, rank: int) -> Remaining | None:
    """What a restart without a rank's node leaves; None: the policy does not permit it, or launchers cannot."""
    if job.policy.observe_only or job.restarts >= job.restart_budget:
        return None
    try:
        return exclusion.without(job, exclusion.chosen(job, [rank], ()))
    except ValueError:
        return None


def can_exclude(job: Job, rank: int) -> bool:
    """Whether a restart without a rank's node is permitted, can be carried out, and need not wait for another node."""
    return (left := left_without(job, rank)) is not None and not left.too_few


def _without_node(job: Job, straggler: Straggler, left: Remaining) -> tuple[bool, str]:
    """Whether a restart without the straggler's node is advised, and what to do instead or what it gains, as a clause.

    It is where it gains as much as the slowdown from which a rank is a straggler, or a spare takes the place. The
    full speed is that of the job without stragglers, on all nodes that run now. Fewer nodes are taken to do as much
    work less as they are fewer: nodes alike, data-parallel ranks, and a batch per rank that stays the same.
    """
    host = straggler.host
    if left.too_few:
        return False, uncapital(left.obstacle(host)).rstrip(".")
    order, running = f"restart without {host}", len(nodes.acting(job))
    if (now := straggler.throughput) is None or left.usable >= running:
        return True, order
    others = (each.stated_share or 0.0 for each in job.performance.open_stragglers if each.host != host)
    after = left.usable / running * (1.0 - max(others, default=0.0))
    alike = abs(percent_points(after) - percent_points(now)) <= _ALIKE
    verb = "gives" if left.usable == 1 else "give"
    gives = (
        f"{left.usable} of {running} nodes with the same batch per rank {verb} {whole_percent(after)} of full speed, "
        f"the slow job {'about as much' if alike else whole_percent(now)}"
    )
    if after - now >= job.policy.straggler_slowdown and not alike:
        return True, f"{order}: {gives}"
    return False, f"do not {order}: {gives}; mend {host} or add a spare first"


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
