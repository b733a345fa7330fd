"""Blame: which ranks caused a hang, and why.

How this works
--------------
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
11. Otherwise all ranks are stuck in the same place, and none is blamed.

Missing evidence never makes a culprit: a rank whose stack could not be taken is only mentioned.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankwatch.contract import semconv
from rankwatch.contract.enums import CulpritClass, LimitSource, ProcessState, VerdictKind
from rankwatch.contract.exits import LEFT_EARLY, is_consequence
from rankwatch.contract.messages import Frame
from rankwatch.contract.peers import waiting_call
from rankwatch_monitor.core.hang.collectives import Mismatch, WaitingRanks, mismatch, place, waiting_ranks
from rankwatch_monitor.core.hang.messages import (
    ITS_PROCESS,
    OTHER_ORDER,
    exit_words,
    file_and_line,
    in_a_circle,
    other_call,
    other_site,
    several_calls,
    signal_number,
    waits_instead,
)
from rankwatch_monitor.core.hang.stacks import GroupProgress, StackGroup, call_site
from rankwatch_monitor.core.hang.verdict import Blame, Culprit, Verdict, Verdicts, culprit_of
from rankwatch_monitor.core.ranks import (
    EXITED,
    STOPPED,
    UNINTERRUPTIBLE,
    Bools,
    Ints,
    RankColumns,
    leaving_ranks,
    left_ranks,
    live_ranks,
)

WITHIN_STEP = "behind within the same step"
ABORTED = "its process was killed by SIGABRT"
TICK_LOST = 3.0
"""Seconds without a tick of the liveness thread (four a second) after which the GIL counts as held."""


def blame(
    columns: RankColumns,
    verdicts: Verdicts,
    groups: Sequence[StackGroup],
    *,
    progress: Sequence[GroupProgress] = (),
    without_stacks: Sequence[str] = (),
    capturing: bool = False,
    shed: bool = False,
) -> Blame:
    """Name the culprits among the ranks of an attempt.

    Args:
        columns: the ranks.
        verdicts: ranks over limits.
        groups: stacks of the ranks, as far as known.
        progress: how far the ranks are in each process group, as far as known.
        without_stacks: hosts whose launchers did not send stacks in time.
        capturing: stacks will follow, so without a culprit nothing is concluded yet.
        shed: reports of the job were refused under load, so that any of them may be late.
    """
    for rule in (_lost_node, _process, _device, _gil, _silent):
        if culprits := rule(columns, verdicts, groups):
            return Blame(culprits, _joined(culprits))
    stalled = (
        bool(verdicts) and verdicts[0].kind is VerdictKind.STALLED
    )  # these ranks move, so their counts mean nothing
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
    culprits = culprits or _left(columns, groups)
    if culprits:
        return Blame(culprits, _joined(culprits))
    if capturing:
        return Blame((), "by their progress alone no rank is to blame")
    if differing is not None:
        return Blame((), f"{several_calls(differing.group, differing.number, differing.calls)}, so no rank is named")
    return Blame((), _explain_no_culprit(columns, groups, waiting, without_stacks))


def _lost_node(columns: RankColumns, verdicts: Verdicts, groups: Sequence[StackGroup]) -> tuple[Culprit, ...]:
    del groups
    return tuple(
        culprit_of(columns, v.rank, CulpritClass.HOST_SILENT, v.node_loss)
        for v in verdicts.of_kinds(VerdictKind.NODE_LOST)
        if v.node_loss
    )


def follows_from_another(columns: RankColumns, rank: int) -> bool:
    """Whether the exception of a rank that crashed is about its connection to others, which one of them ended."""
    raised = columns.exit_code_R[rank] > 0 or columns.exit_code_R[rank] == -signal_number("SIGABRT")
    return bool(raised) and is_consequence(columns.exit_messages.get(rank, ""))


def _process(columns: RankColumns, verdicts: Verdicts, groups: Sequence[StackGroup]) -> tuple[Culprit, ...]:
    del groups
    exits = sorted(verdicts.of_kinds(VerdictKind.PROCESS_EXITED), key=lambda v: v.since)
    causes = [v for v in exits if not follows_from_another(columns, v.rank)]
    left = left_ranks(columns).tolist() if exits and not causes else []
    culprits = [
        culprit_of(columns, rank, CulpritClass.DEAD, f"{ITS_PROCESS}{exit_words(columns, rank)}{LEFT_EARLY}")
        for rank in left
    ] or [
        culprit_of(columns, v.rank, CulpritClass.DEAD, f"{ITS_PROCESS}{exit_words(columns, v.rank)}")
        for v in causes or exits
    ]
    if not culprits:
        for rank in np.flatnonzero(columns.process_R == STOPPED):
            text = "its process is stopped by a signal (state T), so it cannot run"
            culprits.append(culprit_of(columns, int(rank), CulpritClass.STOPPED, text))
    if not culprits:
        for rank in np.flatnonzero(leaving_ranks(columns)):
            elapsed = columns.last_heard_R[rank] - columns.leaving_since_R[rank]
            text = f"{ITS_PROCESS}began to end {elapsed:.0f} s ago and is still there"
            culprits.append(culprit_of(columns, int(rank), CulpritClass.BEHIND, text))
    if not culprits:
        for verdict in verdicts.of_kinds(VerdictKind.NEVER_STARTED):
            text = "it never reported, while other ranks did"
            culprits.append(culprit_of(columns, verdict.rank, CulpritClass.NEVER_STARTED, text))
    return tuple(culprits)


def _device(columns: RankColumns, verdicts: Verdicts, groups: Sequence[StackGroup]) -> tuple[Culprit, ...]:
    # Every process is in that state briefly when it reads a file: it means something only over a limit.
    stuck = _in_kernel(columns, groups)
    ranks = sorted(stuck.intersection(verdicts.rank_V.tolist()) if stuck else ())
    live = len(_live(columns))
    if len(ranks) == live > 1 or (2 * len(ranks) > live and len({columns.hosts[r] for r in ranks}) > 1):
        return ()  # all, or most of several nodes: what they share is stuck, and no rank or node is to blame
    return tuple(
        culprit_of(
            columns,
            rank,
            CulpritClass.DEVICE_OR_NETWORK,
            "its process is stuck in the kernel (state D): a device, a file system or the network of "
            f"{columns.hosts[rank] or 'its node'} does not answer",
        )
        for rank in ranks
    )


def _in_kernel(columns: RankColumns, groups: Sequence[StackGroup]) -> set[int]:
    """Ranks in uninterruptible sleep at the last observation, or when their stacks were taken."""
    seen = set(np.flatnonzero(columns.process_R == UNINTERRUPTIBLE).tolist())
    return seen.union(*(g.ranks for g in groups if g.process_state == ProcessState.UNINTERRUPTIBLE))


def _gil(columns: RankColumns, verdicts: Verdicts, groups: Sequence[StackGroup]) -> tuple[Culprit, ...]:
    del verdicts, groups
    lost_R = columns.last_heard_R - columns.liveness_tick_R  # as its launcher last observed
    runs_R = (columns.process_R != EXITED) & (columns.process_R != UNINTERRUPTIBLE)
    ranks = np.flatnonzero((lost_R > TICK_LOST) & runs_R)
    if len(ranks) == len(_live(columns)) > 1:
        return ()  # all at once: they were suspended together with their launchers, as by a scheduler
    return tuple(
        culprit_of(
            columns,
            int(r),
            CulpritClass.GIL_HELD,
            f"its process runs, but no Python thread of it has for {lost_R[r]:.1f} s: something holds its GIL",
        )
        for r in ranks
    )


def _silent(columns: RankColumns, verdicts: Verdicts, groups: Sequence[StackGroup]) -> tuple[Culprit, ...]:
    del groups
    lost: dict[str, list[Verdict]] = {}
    for verdict in verdicts.of_kinds(VerdictKind.NODE_LOST):
        lost.setdefault(columns.hosts[verdict.rank], []).append(verdict)
    reasons: dict[int, str] = {}
    for host, of_host in lost.items():
        ranks = "the rank" if len(of_host) == 1 else f"the {len(of_host)} ranks"
        longest = max(v.elapsed for v in of_host)
        silence = f"neither the launcher nor {ranks} of {host or 'its node'} reported for {longest:.1f} s"
        reasons.update((v.rank, silence) for v in of_host)
    for verdict in verdicts.of_kinds(VerdictKind.SILENT):
        reasons[verdict.rank] = f"it has sent no report for {verdict.elapsed:.1f} s"
    return tuple(culprit_of(columns, rank, CulpritClass.HOST_SILENT, reasons[rank]) for rank in sorted(reasons))


def _live(columns: RankColumns) -> Ints:
    return np.flatnonzero(live_ranks(columns))


def behind_abort(
    columns: RankColumns, groups: Sequence[StackGroup], progress: Sequence[GroupProgress]
) -> tuple[Culprit, ...]:
    """The ranks whose collective differed from that of most survivors of an abort; empty if none did.

    Args:
        columns: the ranks; their hosts are used, since a new attempt may have begun.
        groups: stacks of the survivors.
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
    return tuple(
        culprit_of(
            columns,
            rank,
            CulpritClass.BEHIND,
            other_call(
                (call, sites.get(rank), rank in differing.waiting),
                (usual, site, not differing.waiting.isdisjoint(majority)),
                ranks=len(majority),
                group=differing.group,
                number=differing.number,
            ),
        )
        for call, ranks in others
        for rank in ranks
        if rank < len(candidate_R) and candidate_R[rank]
    )


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
        culprit_of(columns, rank, CulpritClass.BEHIND, other_site(place(front), site, usual, len(ranks_at[usual])))
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
    return tuple(
        culprit_of(
            columns,
            rank,
            CulpritClass.BEHIND,
            late[rank].sentence
            + (
                waits_instead(place(other), None if other.beside else sites.get(rank))
                if (other := late[rank].instead) and rank in waits
                else ""
            )
            + (OTHER_ORDER if late[rank].reordered else ""),
        )
        for rank in named
    )


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
    gap = f"is {steps} {'step' if steps == 1 else 'steps'} behind" if steps else f"is {WITHIN_STEP}"
    if not steps and _between_steps(columns, ranks, behind):
        gap = "has not begun the step that the others are in"
    wait = "the other rank waits" if others == 1 else f"the {others} other ranks wait"
    text = f"it {gap}, and {wait} for it"
    return tuple(culprit_of(columns, int(r), CulpritClass.BEHIND, text) for r in behind)


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
    return tuple(
        culprit_of(
            columns,
            rank,
            CulpritClass.BEHIND,
            f"it is {_where(innermost[rank])}, while the others wait for their peers",
        )
        for rank in sorted(odd)
    )


def _where(frame: Frame | None) -> str:
    if frame is None:
        return "outside every call that waits for peers"
    return f"in {frame.function} ({file_and_line(frame)})"


def _explain_no_culprit(
    columns: RankColumns, groups: Sequence[StackGroup], waiting: WaitingRanks, without_stacks: Sequence[str]
) -> str:
    ranks = _live(columns)
    apart = any(np.ptp(column[ranks]) for column in (columns.iteration_R, columns.progress_R)) if len(ranks) else False
    lead = asleep = ""  # a host that does not answer comes first: it is where to look
    if without_stacks:
        few = ", ".join(sorted(without_stacks)[:3]) + (
            f" and {len(without_stacks) - 3} more" if len(without_stacks) > 3 else ""
        )
        lead = f"node{'' if len(without_stacks) == 1 else 's'} {few} did not answer in time, and "
    if number := len(_in_kernel(columns, groups)):
        asleep = f"; {number} of {len(ranks)} ranks are stuck in the kernel (state D)"
    if waiting.cycle:
        circle = in_a_circle(waiting.cycle, [(place(front), front.ranks) for front in waiting.circle])
        return f"{lead}{circle}, so no rank is named{asleep}"
    if without_stacks and groups:
        where = _place_of_all(groups, waiting)
        return f"{lead}the ranks that could be asked all wait for their peers{where}, so no rank is named{asleep}"
    if apart and not groups:
        return (
            f"{lead}the ranks are at different points, and without stacks it is unknown which waits for which, so no "
            f"rank is named{asleep}"
        )
    if apart and not any(g.waits for g in groups):
        return f"{lead}the ranks are in different places and none waits for another, so no rank is named{asleep}"
    return f"{lead}all ranks are stuck in the same place{_place_of_all(groups, waiting)}, so no rank is named{asleep}"


def _place_of_all(groups: Sequence[StackGroup], waiting: WaitingRanks) -> str:
    """Where all ranks are, in parentheses: the collective that all have entered, else the function."""
    if waiting.everywhere:
        front = max(waiting.everywhere, key=lambda each: len(each.ranks))
        return f" ({place(front)})"
    calls = {call.function for g in groups if (call := waiting_call(g.frames)) is not None}
    return f" ('{calls.pop()}')" if len(calls) == 1 and all(g.waits for g in groups) else ""


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
    alone = "it is the only rank" if len(columns) == 1 else "it is the only rank still running"
    text = "it is past its limit, and the other ranks are not" if live > 1 else alone
    return tuple(culprit_of(columns, rank, CulpritClass.BEHIND, text) for rank in offenders.tolist())


def _left(columns: RankColumns, groups: Sequence[StackGroup]) -> tuple[Culprit, ...]:
    """Ranks that exited with code 0 while all others wait: not every backend ends the call that waits for them."""
    if not groups or not all(g.waits for g in groups):
        return ()
    text = f"{ITS_PROCESS}exited with code 0{LEFT_EARLY}"
    return tuple(culprit_of(columns, rank, CulpritClass.DEAD, text) for rank in left_ranks(columns).tolist())


def _odd_by_stack(groups: Sequence[StackGroup]) -> set[int]:
    """Ranks whose stacks are outside every call that waits for peers, if other stacks are in one."""
    if not any(g.waits for g in groups):
        return set()
    return {rank for g in groups if not g.waits for rank in g.ranks}


def _joined(culprits: Sequence[Culprit]) -> str:
    return "; ".join(f"rank {c.rank}: {c.reason}" for c in culprits[:3])
