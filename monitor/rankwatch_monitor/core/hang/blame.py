"""Who is to blame for a hang, and in which words.

How this works
--------------
Evidence is asked in the order of how hard it is; the first that names somebody ends the search.

0.  A node that the launchers have given up: what crashed after it was lost, crashed for want of it.
1.  A process that ended, is stopped, or was never there is to blame: the others wait for it.
2.  A rank past a limit whose process is stuck in the kernel: a device or the network of its node does not answer.
3.  A rank whose pulse thread cannot run although its process does: something holds its GIL.
4.  A rank, or a whole node, of which nothing is heard while others speak: the host or its network.
5.  A rank that has not entered a collective in which others of its process group wait, by the sequence numbers of
    torch's flight recorder, be they many or few; not one that waits in another group itself, and one whose stack
    stands outside every call that waits for peers before one whose stack stands in such a call.
6.  A rank whose progress vector (step, progress within the step) is behind the furthest one. When the ranks behind
    are not fewer than the others, counts alone prove nothing (ranks may count differently): the stacks must agree.
7.  A rank whose stack stands outside every call that waits for peers, while the others' stacks stand in one.
8.  Else everybody is stuck in the same place, and nobody is named.

Nobody is accused for lack of evidence: a rank that could not be asked is only mentioned.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankwatch.contract.enums import CulpritClass, ProcessState, VerdictKind
from rankwatch.contract.messages import Frame
from rankwatch_monitor.core.hang.collectives import Standing, place, standing
from rankwatch_monitor.core.hang.messages import exit_words
from rankwatch_monitor.core.hang.stacks import Front, StackGroup, waiting_call
from rankwatch_monitor.core.hang.verdict import Blame, Culprit, Verdict
from rankwatch_monitor.core.liveness import live_ranks
from rankwatch_monitor.core.ranks import EXITED, STOPPED, UNINTERRUPTIBLE, Ints, RankColumns

PULSE_LOST = 3.0
"""Seconds without a pulse (which comes four times a second) after which a running process is said to hold its GIL."""


def blame(
    columns: RankColumns,
    verdicts: Sequence[Verdict],
    groups: Sequence[StackGroup],
    *,
    fronts: Sequence[Front] = (),
    unasked: Sequence[str] = (),
) -> Blame:
    """Name the culprits among the ranks of an attempt.

    Args:
        columns: the ranks.
        verdicts: who is past which limit.
        groups: the ranks' stacks, as far as they are known.
        fronts: how far the process groups have come, as far as that is known.
        unasked: hosts that were asked for stacks and did not answer in time.
    """
    for rule in (_given_up, _process, _device, _gil, _silent):
        if culprits := rule(columns, verdicts, groups):
            return Blame(culprits, _joined(culprits))
    odd, told = _odd_by_stack(groups), standing(fronts)
    culprits = (
        _by_collectives(columns, told, odd, groups)
        or _by_progress(columns, odd)
        or _by_stack(columns, odd, groups)
        or _alone(columns, verdicts)
    )
    if culprits:
        return Blame(culprits, _joined(culprits))
    return Blame((), _nobody(columns, groups, told, unasked))


def _given_up(columns: RankColumns, verdicts: Sequence[Verdict], groups: Sequence[StackGroup]) -> tuple[Culprit, ...]:
    del groups
    return tuple(_culprit(columns, v.rank, CulpritClass.HOST_SILENT, v.node_loss) for v in verdicts if v.node_loss)


def _process(columns: RankColumns, verdicts: Sequence[Verdict], groups: Sequence[StackGroup]) -> tuple[Culprit, ...]:
    del groups
    culprits = []
    for verdict in sorted(verdicts, key=lambda v: v.since):
        if verdict.kind is VerdictKind.PROCESS_EXITED:
            text = f"its process {exit_words(columns, verdict.rank)}"
            culprits.append(_culprit(columns, verdict.rank, CulpritClass.DEAD, text))
    if not culprits:
        for rank in np.flatnonzero(columns.process_R == STOPPED):
            text = "its process is stopped by a signal (state T), so it cannot run"
            culprits.append(_culprit(columns, int(rank), CulpritClass.STOPPED, text))
    if not culprits:
        for verdict in verdicts:
            if verdict.kind is VerdictKind.NEVER_STARTED:
                text = "it never reported, while other ranks did"
                culprits.append(_culprit(columns, verdict.rank, CulpritClass.NEVER_STARTED, text))
    return tuple(culprits)


def _device(columns: RankColumns, verdicts: Sequence[Verdict], groups: Sequence[StackGroup]) -> tuple[Culprit, ...]:
    # Everybody is in that state for a moment, whenever it reads a file: only past a limit it means something.
    ranks = sorted({v.rank for v in verdicts} & _in_kernel(columns, groups))
    if 2 * len(ranks) > len(_live(columns)) and len({columns.hosts[r] for r in ranks}) > 1:
        return ()  # most ranks of several nodes at once: what they share is stuck, and no node is to blame
    return tuple(
        _culprit(
            columns,
            rank,
            CulpritClass.DEVICE_OR_NETWORK,
            "its process is stuck in the kernel (state D): a device, a file system or the network of "
            f"{columns.hosts[rank] or 'its node'} does not answer",
        )
        for rank in ranks
    )


def _in_kernel(columns: RankColumns, groups: Sequence[StackGroup]) -> set[int]:
    """Ranks in uninterruptible sleep when they were last looked at, or when their stacks were taken."""
    seen = set(np.flatnonzero(columns.process_R == UNINTERRUPTIBLE).tolist())
    return seen.union(*(g.ranks for g in groups if g.process_state == ProcessState.UNINTERRUPTIBLE))


def _gil(columns: RankColumns, verdicts: Sequence[Verdict], groups: Sequence[StackGroup]) -> tuple[Culprit, ...]:
    del verdicts, groups
    lost_R = (
        columns.last_heard_R - columns.liveness_tick_R
    )  # as its launcher last saw it; what it was not told it does not guess
    runs_R = (columns.process_R != EXITED) & (columns.process_R != UNINTERRUPTIBLE)
    ranks = np.flatnonzero((lost_R > PULSE_LOST) & runs_R)
    return tuple(
        _culprit(
            columns,
            int(r),
            CulpritClass.GIL_HELD,
            f"its process runs, but no Python thread of it has for {lost_R[r]:.1f} s: something holds its GIL",
        )
        for r in ranks
    )


def _silent(columns: RankColumns, verdicts: Sequence[Verdict], groups: Sequence[StackGroup]) -> tuple[Culprit, ...]:
    del groups
    lost: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.kind is VerdictKind.NODE_LOST:
            lost.setdefault(columns.hosts[verdict.rank], []).append(verdict)
    words: dict[int, str] = {}
    for host, of_host in lost.items():
        ranks = "its rank" if len(of_host) == 1 else f"its {len(of_host)} ranks"
        longest = max(v.elapsed for v in of_host)
        said = f"nothing was heard of {host or 'its node'}, neither its launcher nor {ranks}, for {longest:.1f} s"
        words.update((v.rank, said) for v in of_host)
    for verdict in verdicts:
        if verdict.kind is VerdictKind.SILENT:
            words[verdict.rank] = f"nothing was heard of it for {verdict.elapsed:.1f} s"
    return tuple(_culprit(columns, rank, CulpritClass.HOST_SILENT, words[rank]) for rank in sorted(words))


def _live(columns: RankColumns) -> Ints:
    return np.flatnonzero(live_ranks(columns))


def _by_collectives(
    columns: RankColumns, told: Standing, odd: set[int], groups: Sequence[StackGroup]
) -> tuple[Culprit, ...]:
    live = set(_live(columns).tolist())
    late = {rank: each for rank, each in told.late.items() if rank in live}
    outside = {rank for rank in late if rank in odd}
    waits = {rank for g in groups if g.waits for rank in g.ranks}
    if not outside and odd & live and set(late) <= waits:
        return ()  # they wait for one that makes no collectives with them: point to point, or by a store
    named = sorted(outside or set(late) - waits or late)
    return tuple(_culprit(columns, rank, CulpritClass.BEHIND, late[rank].words) for rank in named)


def _by_progress(columns: RankColumns, odd: set[int]) -> tuple[Culprit, ...]:
    ranks = _live(columns)
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
    gap = f"{steps} {'step' if steps == 1 else 'steps'} behind" if steps else "behind within the same step"
    waiting = "the other rank waits" if others == 1 else f"the {others} other ranks wait"
    text = f"it is {gap}, and {waiting} for it"
    return tuple(_culprit(columns, int(r), CulpritClass.BEHIND, text) for r in behind)


def _by_stack(columns: RankColumns, odd: set[int], groups: Sequence[StackGroup]) -> tuple[Culprit, ...]:
    if not odd or 2 * len(odd) > len(_live(columns)):
        return ()
    innermost = {rank: g.frames[0] if g.frames else None for g in groups for rank in g.ranks}
    return tuple(
        _culprit(
            columns,
            rank,
            CulpritClass.BEHIND,
            f"it stands {_where(innermost[rank])}, while the others wait for their peers",
        )
        for rank in sorted(odd)
    )


def _where(frame: Frame | None) -> str:
    if frame is None:
        return "outside every call that waits for peers"
    return f"in {frame.function} ({frame.file.rsplit('/', 1)[-1]}:{frame.line})"


def _nobody(columns: RankColumns, groups: Sequence[StackGroup], told: Standing, unasked: Sequence[str]) -> str:
    ranks = _live(columns)
    places = set(zip(columns.iteration_R[ranks].tolist(), columns.progress_R[ranks].tolist(), strict=True))
    silent = ""
    if unasked:
        few = ", ".join(sorted(unasked)[:3]) + (f" and {len(unasked) - 3} more" if len(unasked) > 3 else "")
        silent = f"; {few} did not answer in time, so the ranks there could not be asked"
    if asleep := len(_in_kernel(columns, groups)):
        silent += f"; {asleep} of {len(ranks)} ranks are stuck in the kernel (state D)"
    if told.circle:
        few = ", ".join(map(str, told.circle[:8])) + (" and more" if len(told.circle) > 8 else "")
        return f"ranks {few} wait for each other in different collectives, so nobody is named{silent}"
    if unasked and groups:
        where = _in_which(groups, told)
        return f"the ranks that could be asked all wait for their peers{where}, so nobody is named{silent}"
    if len(places) > 1 and not groups:
        return (
            "the ranks have come differently far, but only stacks could tell who waits for whom, so nobody is named"
            f"{silent}"
        )
    if len(places) > 1 and not any(g.waits for g in groups):
        return f"the ranks stand in different places, and none waits for another, so nobody is named{silent}"
    return f"all ranks are stuck in the same place{_in_which(groups, told)}, so nobody is named{silent}"


def _in_which(groups: Sequence[StackGroup], told: Standing) -> str:
    """Where all of them stand, in parentheses: the collective that everybody has entered, else the function."""
    if told.everywhere:
        front = max(told.everywhere, key=lambda f: len(f.ranks))
        return f" ({place(front)})"
    calls = {call.function for g in groups if (call := waiting_call(g.frames)) is not None}
    return f" ('{calls.pop()}')" if len(calls) == 1 and all(g.waits for g in groups) else ""


def _alone(columns: RankColumns, verdicts: Sequence[Verdict]) -> tuple[Culprit, ...]:
    """Some are past their limits while the others go on, or while these are more, or there are no others."""
    offenders, ranks = {v.rank for v in verdicts}, _live(columns)
    live = len(ranks)
    others = np.array([r for r in ranks.tolist() if r not in offenders], dtype=np.int64)
    go_on = len(others) > 0 and bool(np.all(columns.last_progress_R[others] > max(v.since for v in verdicts)))
    if live > 1 and 2 * len(offenders) >= live and not go_on:
        return ()
    alone = "it is the only rank" if len(columns) == 1 else "it is the only rank still running"
    text = "it is past its limit, and the other ranks are not" if live > 1 else alone
    return tuple(_culprit(columns, rank, CulpritClass.BEHIND, text) for rank in sorted(offenders))


def _odd_by_stack(groups: Sequence[StackGroup]) -> set[int]:
    """Ranks that stand outside every call that waits for peers, if there are others that stand in one."""
    if not any(g.waits for g in groups):
        return set()
    return {rank for g in groups if not g.waits for rank in g.ranks}


def _culprit(columns: RankColumns, rank: int, kind: CulpritClass, reason: str) -> Culprit:
    return Culprit(rank, columns.hosts[rank], kind, reason)


def _joined(culprits: Sequence[Culprit]) -> str:
    return "; ".join(f"rank {c.rank}: {c.reason}" for c in culprits[:3])
