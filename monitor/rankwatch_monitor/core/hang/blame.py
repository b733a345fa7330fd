"""Blame: which ranks caused a hang, and why.

Rules are tried from the strongest evidence to the weakest; the first that yields culprits ends the search.

0.  A node that the launchers declared lost. Crashes after the loss are its consequence.
1.  A process that exited, is stopped, began to end and does not, or never started: the others wait for it. Of processes
    that exited, those whose exception is about the connection to another rank are blamed only if all are such, and no
    rank exited with code 0 before. Backends abort a process whose peer calls another collective (gloo at once, NCCL's
    watchdog later), so the cause of an abort is looked for once more by rule 5 when the survivors' flight recorders
    have arrived (``behind_abort``).
2.  A rank over a limit whose process is in uninterruptible sleep: a device or the network of its node is stuck.
3.  A rank whose liveness thread cannot run although its process does: something holds the GIL.
4.  A rank, or a whole node, that is silent while others report: the host or its network.
5.  A rank that called another collective than most ranks of its process group under the same sequence number (another
    operation, another size): those that wait in either wait for ever.
6.  A rank that has not entered a collective in which others of its process group wait, by the sequence numbers of
    torch's flight recorder. A rank that waits in another group is not blamed, unless most ranks wait for it, and one
    whose stack is outside every waiting call is blamed before one whose stack is in such a call.
    Where ranks wait for each other in a circle, one that entered the groups in another order than before is blamed,
    else one that waits elsewhere than most of those that call in both groups, else none.
7.  A rank that entered the collective in which all wait from another line than most ranks.
8.  A rank whose progress (step, progress within the step) is behind the furthest one. If the ranks behind are not in
    the minority, counts alone prove nothing (ranks may count differently) and the stacks must agree. While reports are
    refused under load, the last one of a rank may show where it was a minute ago; then it is not compared.
9.  A rank whose stack is outside every waiting call, while the stacks of the others are in one.
10. A rank that exited with code 0, if all others wait for their peers.
11. A rank that stands in another collective of all ranks than most, by the arguments of their calls (``of_all``).
12. A rank that NCCL itself accuses (``nccl``), where nothing before names one.
13. Otherwise all ranks are stuck in the same place, and none is blamed.

Where rules 5 to 11 name ranks and NCCL accuses others, none is blamed. What the kernel and the launchers know of
processes and nodes (rules 0 to 4) stands, whatever NCCL answers.

Missing evidence never makes a culprit: a rank whose stack could not be taken is only mentioned.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from rankwatch.contract import semconv
from rankwatch.contract.enums import LimitSource, ProcessState, VerdictKind
from rankwatch.contract.exits import is_consequence
from rankwatch.contract.messages import Frame
from rankwatch.contract.peers import COLLECTIVES, NONE_LEAVES_FIRST, waiting_call
from rankwatch_monitor.core.cause import (
    SIGABRT,
    AllAlike,
    Apart,
    Behind,
    Circle,
    Detection,
    DifferentCalls,
    Disagreed,
    Exited,
    Followed,
    GilHeld,
    InKernel,
    Leaving,
    Made,
    NeverStarted,
    NodeSilent,
    NotEntered,
    OtherCall,
    OtherSite,
    Outside,
    PastLimit,
    Silent,
    Some,
    StacksFollow,
    Stopped,
    Unnamed,
)
from rankwatch_monitor.core.hang.collectives import (
    Mismatch,
    WaitingRanks,
    call_of,
    may_miss_one,
    mismatch,
    waiting_ranks,
)
from rankwatch_monitor.core.hang.stacks import GroupProgress, StackGroup, Stacks, call_site, site_of
from rankwatch_monitor.core.hang.verdict import Blame, Culprit, Verdict, Verdicts, culprit_of
from rankwatch_monitor.core.ranks import (
    EXITED,
    STOPPED,
    UNINTERRUPTIBLE,
    Bools,
    Ints,
    RankColumns,
    failed_ranks,
    leaving_ranks,
    left_ranks,
    live_ranks,
)
from rankwatch_monitor.core.words.sentence import sentence

TICK_LOST = 3.0
"""Seconds without a tick of the liveness thread (four a second) after which the GIL counts as held."""

_CallsOfAll = tuple[tuple[Made, tuple[int, ...]], ...]


def blame(
    columns: RankColumns,
    verdicts: Verdicts,
    stacks: Stacks,
    *,
    without_stacks: Sequence[str] = (),
    capturing: bool = False,
    shed: bool = False,
    nccl: tuple[Culprit, ...] = (),
) -> Blame:
    """Name the culprits among the ranks of an attempt.

    Args:
        without_stacks: hosts whose launchers did not send stacks in time.
        capturing: stacks will follow, so without a culprit nothing is concluded yet.
        shed: reports of the job were refused under load, so that any of them may be late.
        nccl: ranks that NCCL's own answers accuse, see :mod:`.nccl`.
    """
    groups, progress = stacks.groups(), stacks.group_progress()
    for rule in (_lost_node, _process, _device, _gil, _silent):
        if culprits := rule(columns, verdicts, groups):
            return Blame(culprits)
    # Ranks of a stalled job move, so their counts mean nothing.
    stalled = bool(verdicts) and verdicts[0].kind is VerdictKind.STALLED
    odd, waiting, differing = _odd_by_stack(groups), waiting_ranks(progress), mismatch(progress)
    culprits = _by_mismatch(columns, differing, groups, live_ranks(columns)) or _by_collectives(
        columns, waiting, odd, groups
    )
    if not culprits and waiting.cycle:
        culprits = _by_stack(columns, odd, groups)  # of those that wait for each other none is behind
    elif not culprits and differing is None:
        culprits = (
            _by_call_site(columns, waiting, groups)
            or (() if stalled else _by_progress(columns, odd, shed=shed))
            or _by_stack(columns, odd, groups)
            or (() if stalled and len(_live(columns)) > 1 else _alone(columns, verdicts, shed=shed))
        )
    apart = () if progress else _in_calls_of_all(columns, groups, stacks.of_all)
    left = _left(columns, groups) if may_miss_one(progress) else ()
    culprits = culprits or left or _by_calls_of_all(columns, apart)
    if culprits and nccl and {c.rank for c in culprits}.isdisjoint(c.rank for c in nccl):
        ours, theirs = (Some.of(sorted(c.rank for c in named)) for named in (culprits, nccl))
        return Blame((), Unnamed(Disagreed(ours, theirs)))
    if differing is None and not waiting.cycle:
        culprits = culprits or nccl
    if culprits:
        return Blame(culprits)
    if capturing:
        return Blame((), Unnamed(StacksFollow()))
    if (calls := _different_calls(differing, apart)) is not None:
        return Blame((), Unnamed(calls))
    return Blame((), _why_none(columns, groups, waiting, without_stacks))


def _lost_node(columns: RankColumns, verdicts: Verdicts, groups: Sequence[StackGroup]) -> tuple[Culprit, ...]:
    del groups
    return tuple(
        culprit_of(columns, v.rank, v.node_loss)
        for v in verdicts.of_kinds(VerdictKind.NODE_LOST)
        if v.node_loss is not None
    )


def detection_of(columns: RankColumns, first: Verdict, others: int, blamed: Blame) -> Detection:
    """What was detected: a rank over its limit, ``others`` more, and what the logs show first if it only followed."""
    causes = [culprit.cause for culprit in blamed.culprits[:1]]
    after = first.node_loss is not None or any(isinstance(cause, Exited) and cause.early for cause in causes)
    failed = np.flatnonzero(failed_ranks(columns)).tolist() if after else []
    crash = (
        Followed(failed[0], columns.hosts[failed[0]], exit_of(columns, failed[0]), len(failed) - 1) if failed else None
    )
    has_beaten = bool(columns.heartbeats_R[first.rank] > 0)
    kind, rank, section, limit, elapsed, _, source, _ = first
    return Detection(kind, rank, columns.hosts[rank], section, limit, elapsed, source, others, has_beaten, crash)


def described(found: Detection, blamed: Blame) -> str:
    """The detection and its cause as the reason of an incident."""
    return sentence(found, [culprit[:3] for culprit in blamed.culprits], blamed.why_none)


def follows_from_another(columns: RankColumns, rank: int) -> bool:
    """Whether the exception of a rank that crashed is about its connection to others, which one of them ended."""
    raised = columns.exit_code_R[rank] > 0 or columns.exit_code_R[rank] == -SIGABRT
    return bool(raised) and is_consequence(columns.exit_messages.get(rank, ""))


def _process(columns: RankColumns, verdicts: Verdicts, groups: Sequence[StackGroup]) -> tuple[Culprit, ...]:
    del groups
    exits = sorted(verdicts.of_kinds(VerdictKind.PROCESS_EXITED), key=lambda v: v.since)
    causes = [v for v in exits if not follows_from_another(columns, v.rank)]
    left = left_ranks(columns).tolist() if exits and not causes else []
    if left:
        return tuple(culprit_of(columns, rank, exit_of(columns, rank, early=True)) for rank in left)
    if exits:
        return tuple(culprit_of(columns, v.rank, exit_of(columns, v.rank)) for v in causes or exits)
    if stopped := np.flatnonzero(columns.process_R == STOPPED).tolist():
        return tuple(culprit_of(columns, rank, Stopped()) for rank in stopped)
    if leaving := np.flatnonzero(leaving_ranks(columns)).tolist():
        begun_R = columns.last_heard_R - columns.leaving_since_R
        return tuple(culprit_of(columns, rank, Leaving(float(begun_R[rank]))) for rank in leaving)
    return tuple(culprit_of(columns, v.rank, NeverStarted()) for v in verdicts.of_kinds(VerdictKind.NEVER_STARTED))


def exit_of(columns: RankColumns, rank: int, *, early: bool = False) -> Exited:
    """How the process of a rank ended; ``early``: while other ranks still needed it."""
    return Exited(int(columns.exit_code_R[rank]), columns.exit_messages.get(rank, ""), early)


def _device(columns: RankColumns, verdicts: Verdicts, groups: Sequence[StackGroup]) -> tuple[Culprit, ...]:
    # Every process is in that state briefly when it reads a file: it means something only over a limit.
    stuck = _in_kernel(columns, groups)
    ranks = sorted(stuck.intersection(verdicts.rank_V.tolist()) if stuck else ())
    live = len(_live(columns))
    if len(ranks) == live > 1 or (2 * len(ranks) > live and len({columns.hosts[r] for r in ranks}) > 1):
        return ()  # all, or most of several nodes: what they share is stuck, and no rank or node is to blame
    return tuple(culprit_of(columns, rank, InKernel(columns.hosts[rank])) for rank in ranks)


def _in_kernel(columns: RankColumns, groups: Sequence[StackGroup]) -> set[int]:
    """Ranks in uninterruptible sleep at the last observation, or when their stacks were taken."""
    seen = set(np.flatnonzero(columns.process_R == UNINTERRUPTIBLE).tolist())
    return seen.union(*(g.ranks for g in groups if g.process_state == ProcessState.UNINTERRUPTIBLE))


def _gil(columns: RankColumns, verdicts: Verdicts, groups: Sequence[StackGroup]) -> tuple[Culprit, ...]:
    del verdicts, groups
    lost_R = columns.last_heard_R - columns.liveness_tick_R  # as its launcher last observed
    runs_R = (columns.process_R != EXITED) & (columns.process_R != UNINTERRUPTIBLE)
    ranks = np.flatnonzero((lost_R > TICK_LOST) & runs_R)
    if 2 * len(ranks) > len(_live(columns)) > 1:
        return ()  # suspended together with their launchers; or the call in which they wait for another one holds it
    return tuple(culprit_of(columns, rank, GilHeld(float(lost_R[rank]))) for rank in ranks.tolist())


def _silent(columns: RankColumns, verdicts: Verdicts, groups: Sequence[StackGroup]) -> tuple[Culprit, ...]:
    del groups
    lost: dict[str, list[Verdict]] = {}
    for verdict in verdicts.of_kinds(VerdictKind.NODE_LOST):
        lost.setdefault(columns.hosts[verdict.rank], []).append(verdict)
    causes: dict[int, NodeSilent | Silent] = {}
    for host, of_host in lost.items():
        silence = NodeSilent(host, len(of_host), max(v.elapsed for v in of_host))
        causes.update((v.rank, silence) for v in of_host)
    for verdict in verdicts.of_kinds(VerdictKind.SILENT):
        causes[verdict.rank] = Silent(verdict.elapsed)
    return tuple(culprit_of(columns, rank, causes[rank]) for rank in sorted(causes))


def _live(columns: RankColumns) -> Ints:
    return np.flatnonzero(live_ranks(columns))


def behind_abort(
    columns: RankColumns, groups: Sequence[StackGroup], progress: Sequence[GroupProgress]
) -> tuple[Culprit, ...]:
    """The ranks whose collective differed from that of most survivors of an abort; empty if none did.

    Args:
        columns: the ranks; their hosts are used, since a new attempt may have begun.
        progress: how far the survivors are in each process group.
    """
    differing = mismatch(progress)
    if differing is not None and not differing.has_majority:
        earlier = {
            call for each in progress if each.group == differing.group for call in _calls_before(each, differing)
        }
        differing = differing.by_its_past(earlier)
    return _by_mismatch(columns, differing, groups, np.ones(len(columns), dtype=np.bool_))


def _calls_before(progress: GroupProgress, differing: Mismatch) -> Sequence[str]:
    return progress.calls[: max(0, differing.number - progress.calls_from)]


def _by_mismatch(
    columns: RankColumns, differing: Mismatch | None, groups: Sequence[StackGroup], candidate_R: Bools
) -> tuple[Culprit, ...]:
    if differing is None or not differing.has_majority:
        return ()
    sites = {rank: site for rank, site in _call_sites(groups).items() if rank not in differing.beside}
    (usual, majority), *others = differing.calls
    site = next((sites[r] for r in majority if r in sites and r in differing.waiting), None)
    most = _made(usual, site, waits=not differing.waiting.isdisjoint(majority))

    def other(call: str, rank: int) -> OtherCall:
        waits = rank in differing.waiting
        made = _made(call, sites.get(rank) if waits else None, waits=waits)
        return OtherCall(made, most, len(majority), differing.group, differing.number)

    return tuple(
        culprit_of(columns, rank, other(call, rank))
        for call, ranks in others
        for rank in ranks
        if rank < len(candidate_R) and candidate_R[rank]
    )


def _made(call: str, site: Frame | None = None, *, waits: bool = False) -> Made:
    operation, _, size = call.partition(" of ")  # as torch's flight recorder gives it
    return Made(operation, size, site_of(site) if waits else None, waits)


def _by_call_site(columns: RankColumns, waiting: WaitingRanks, groups: Sequence[StackGroup]) -> tuple[Culprit, ...]:
    live = _live(columns).tolist()
    front = next((f for f in waiting.everywhere if len(f.ranks) >= len(live) and set(live) <= set(f.ranks)), None)
    if front is None or waiting.late or front.beside:
        return ()
    sites = _call_sites(groups)
    if any(rank not in sites for rank in live):
        return ()
    ranks_at: dict[Frame, list[int]] = {}
    for rank in live:
        ranks_at.setdefault(sites[rank], []).append(rank)
    usual = max(ranks_at, key=lambda site: len(ranks_at[site]))
    if 2 * len(ranks_at[usual]) <= len(live):
        return ()
    return tuple(
        culprit_of(columns, rank, OtherSite(call_of(front), site_of(site), site_of(usual), len(ranks_at[usual])))
        for site, ranks in ranks_at.items()
        if site != usual
        for rank in ranks
    )


def _call_sites(groups: Sequence[StackGroup]) -> dict[int, Frame]:
    """The place that called the function in which a rank waits, by rank."""
    return {rank: site for g in groups if (site := call_site(g.frames)) is not None for rank in g.ranks}


def _by_collectives(
    columns: RankColumns, waiting: WaitingRanks, odd: set[int], groups: Sequence[StackGroup]
) -> tuple[Culprit, ...]:
    live_R = live_ranks(columns)
    late = {rank: each for rank, each in waiting.late.items() if rank < len(live_R) and live_R[rank]}
    if not late:
        return ()
    outside = late.keys() & odd
    waits = {rank for g in groups if g.waits for rank in late.keys() & g.ranks}
    if not outside and any(live_R[rank] for rank in odd if rank < len(live_R)) and set(late) <= waits:
        return ()  # they wait for one that makes no collectives with them: point to point, or by a store
    named = sorted(outside or set(late) - waits or late)
    sites = {rank: call_site(g.frames) for g in groups for rank in set(named).intersection(g.ranks)}

    def not_entered(rank: int) -> NotEntered:
        each = late[rank]
        cause = NotEntered(call_of(each.missed), each.waiting, each.newest, reordered=each.reordered)
        if each.instead is None or rank not in waits:
            return cause
        return replace(
            cause, instead=call_of(each.instead), site=site_of(None if each.instead.beside else sites.get(rank))
        )

    return tuple(culprit_of(columns, rank, not_entered(rank)) for rank in named)


def _by_progress(columns: RankColumns, odd: set[int], *, shed: bool) -> tuple[Culprit, ...]:
    ranks = _live(columns)
    if shed:
        ranks = _current(columns, ranks)
    if len(ranks) < 2:
        return ()
    iteration_R, progress_R = columns.iteration_R[ranks], columns.progress_R[ranks]
    order = np.lexsort((progress_R, iteration_R))
    first, last = order[0], order[-1]
    behind_R = (iteration_R == iteration_R[first]) & (progress_R == progress_R[first])
    behind, others = ranks[behind_R], len(ranks) - int(np.sum(behind_R))
    named = set(behind.tolist())
    if not others or (odd and not named & odd) or (len(behind) >= others and not (odd and named <= odd)):
        return ()
    if odd:
        behind = ranks[behind_R & np.isin(ranks, list(odd))]  # the others are behind because they wait themselves
        others = len(ranks) - len(behind)
    steps = int(iteration_R[last] - iteration_R[first])
    between = not steps and _between_steps(columns, ranks, behind)
    cause = Behind(steps, others, between)
    return tuple(culprit_of(columns, rank, cause) for rank in behind.tolist())


def _current(columns: RankColumns, ranks: Ints) -> Ints:
    """Those of ``ranks`` whose last report is newer than the last known movement of the furthest one."""
    if not len(ranks):
        return ranks
    furthest = ranks[np.lexsort((columns.progress_R[ranks], columns.iteration_R[ranks]))[-1]]
    moved = np.nanmax([columns.last_progress_R[furthest], *columns.open_since_RS[furthest]], initial=-np.inf)
    current: Ints = ranks[columns.last_update_R[ranks] >= moved]
    return current


def _between_steps(columns: RankColumns, ranks: Ints, behind: Ints) -> bool:
    """Whether the ranks ``behind`` are in no section at all while all others of ``ranks`` are in the step."""
    if semconv.STEP_SECTION not in columns.sections:
        return False
    in_step_R = ~np.isnan(columns.open_since_RS[:, columns.sections.index(semconv.STEP_SECTION)])
    outside_R = columns.uses_sections_R & columns.outside_sections()
    return bool(outside_R[behind].all() and in_step_R[np.setdiff1d(ranks, behind)].all())


def _by_stack(columns: RankColumns, odd: set[int], groups: Sequence[StackGroup]) -> tuple[Culprit, ...]:
    if not odd or 2 * len(odd) > len(_live(columns)):
        return ()
    innermost = {rank: g.frames[0] if g.frames else None for g in groups for rank in g.ranks}
    return tuple(culprit_of(columns, rank, Outside(site_of(innermost[rank]))) for rank in sorted(odd))


def _why_none(
    columns: RankColumns, groups: Sequence[StackGroup], waiting: WaitingRanks, without_stacks: Sequence[str]
) -> Unnamed:
    ranks = _live(columns)
    apart = any(np.ptp(column[ranks]) for column in (columns.iteration_R, columns.progress_R)) if len(ranks) else False
    asleep, unanswered = len(_in_kernel(columns, groups)), tuple(sorted(without_stacks))
    why: Circle | AllAlike | Apart
    if waiting.cycle:
        why = Circle(
            Some.of(waiting.cycle), tuple((call_of(front), Some.of(front.ranks)) for front in waiting.circle[:5])
        )
    elif unanswered and groups:
        why = replace(_all_alike(groups, waiting), answered=True)
    elif apart and not any(g.waits for g in groups):
        why = Apart(seen=bool(groups))
    else:
        why = _all_alike(groups, waiting)
    return Unnamed(why, unanswered, asleep, len(ranks))


def _all_alike(groups: Sequence[StackGroup], waiting: WaitingRanks) -> AllAlike:
    """Where all ranks are: the collective that all have entered, else the function."""
    if waiting.everywhere:
        return AllAlike(call_of(max(waiting.everywhere, key=lambda each: len(each.ranks))))
    calls = {call.function for g in groups if (call := waiting_call(g.frames)) is not None}
    return AllAlike(function=calls.pop() if len(calls) == 1 and all(g.waits for g in groups) else "")


def _alone(columns: RankColumns, verdicts: Verdicts, *, shed: bool) -> tuple[Culprit, ...]:
    """Ranks over a limit, if the others make progress or are in the majority, or if there are no others.

    While reports are refused, the others may be over it, too, and not have been heard: then only progress counts.
    """
    offenders, ranks = verdicts.ranks, _live(columns)
    live, others = len(ranks), np.setdiff1d(ranks, offenders, assume_unique=True)
    progress_R, heartbeat_R = columns.last_progress_R[others], columns.last_heartbeat_R[others]
    sign_R = np.where(np.isnan(progress_R), heartbeat_R, progress_R)  # some only send heartbeats
    # Ranks leave a collective within milliseconds of each other: to go on is more than to have left it a moment later.
    go_on = len(others) > 0 and bool(np.all(sign_R > np.max(verdicts.since_V + verdicts.elapsed_V / 2)))
    # Ranks do not know when they are looked at in a first-time section: their next reports show who passes it, too.
    unaware = all(common.source is LimitSource.FIRST_TIME for common in verdicts.occurring())
    if live > 1 and (shed or unaware or 2 * len(offenders) >= live) and not go_on:
        return ()
    cause = PastLimit("within" if live > 1 else "none" if len(columns) == 1 else "ended")
    return tuple(culprit_of(columns, rank, cause) for rank in offenders.tolist())


def _left(columns: RankColumns, groups: Sequence[StackGroup]) -> tuple[Culprit, ...]:
    """Ranks that exited with code 0 while all others wait: not every backend ends the call that waits for them."""
    if not groups or not all(g.waits for g in groups):
        return ()
    return tuple(culprit_of(columns, rank, Exited(0, early=True)) for rank in left_ranks(columns).tolist())


def _in_calls_of_all(columns: RankColumns, groups: Sequence[StackGroup], of_all: Collection[int]) -> _CallsOfAll:
    """The different collectives of all ranks in which these stand, that of most first; empty: not all do, or alike.

    A collective that none leaves before all have entered it cannot complete while a rank stands in another one.
    """
    found: dict[str, list[StackGroup]] = {}
    for group in groups:
        call = waiting_call(group.frames)
        name = "" if call is None else call.function.rpartition(".")[2]
        if name not in COLLECTIVES or not set(group.ranks) <= set(of_all):
            return ()
        found.setdefault(name, []).append(group)
    standing = sorted(rank for each in found.values() for group in each for rank in group.ranks)
    if len(found) < 2 or standing != list(range(len(columns))):
        return ()
    made = (
        (
            Made(name, "", site_of(call_site(each[0].frames)), waits=True),
            tuple(sorted(r for g in each for r in g.ranks)),
        )
        for name, each in found.items()
    )
    return tuple(sorted(made, key=lambda one: (-len(one[1]), one[1])))


def _different_calls(differing: Mismatch | None, apart: _CallsOfAll) -> DifferentCalls | None:
    """The calls that cannot complete together, where none of those who made them is to blame more than another."""
    if differing is not None:
        calls = tuple((_made(call), Some.of(ranks)) for call, ranks in differing.calls[:3])
        return DifferentCalls(differing.group, differing.number, calls)
    if apart and all(made.operation in NONE_LEAVES_FIRST for made, _ in apart):
        return DifferentCalls("", 0, tuple((made, Some.of(ranks)) for made, ranks in apart[:3]))
    return None


def _by_calls_of_all(columns: RankColumns, apart: _CallsOfAll) -> tuple[Culprit, ...]:
    if not apart or 2 * len(apart[0][1]) <= len(columns) or apart[0][0].operation not in NONE_LEAVES_FIRST:
        return ()
    (usual, most), *others = apart
    return tuple(
        culprit_of(columns, rank, OtherCall(made, usual, len(most), "", 0)) for made, ranks in others for rank in ranks
    )


def _odd_by_stack(groups: Sequence[StackGroup]) -> set[int]:
    """Ranks whose stacks are outside every call that waits for peers, if other stacks are in one."""
    if not any(g.waits for g in groups):
        return set()
    return {rank for g in groups if not g.waits for rank in g.ranks}
