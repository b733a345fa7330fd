"""Proof: what several looks at suspected ranks show, and what follows for a suspicion.

How a rank is judged
--------------------
The first row that applies. Counters are those of the last looks, over about 10 s, without the threads of Rankwatch and
of collective libraries. What it waits for is what the kernel shows (:class:`rankwatch.contract.messages.Wait`).

===================  ===================================================================================================
proof                if
===================  ===================================================================================================
stopped              state T over :data:`STILL_SECONDS`
debugged             it is in a debugger
waiting              in a call that waits for peers, by its stack, which stood still that long while no thread worked;
                     on a GPU also a rank that spins while a collective of it is pending
busy                 the stack moved, to one that was not seen before :data:`LOOP_SECONDS` ago; bytes were read or
                     written or arrived, a child worked, or CPU time was spent
spinning             ... but CPU time alone, at the same lines, on a GPU: a wait for it; or for :data:`LOOP_SECONDS` in
                     the same functions: an endless loop
uninterruptible      state D over :data:`STILL_SECONDS`, with nothing moved
may end              it waits for what may end by itself: a time, a child, an answer, a lock of another process
still                over :data:`STILL_SECONDS` the same stack, no CPU time, no bytes and hardly a wake-up, and every
                     thread and child that could wake it waits for another one of them
undecided            all else, and fewer looks; also where the kernel does not tell what it waits for, and where for
                     :data:`LOOP_SECONDS` only children worked or bytes moved, which could not wake it
===================  ===================================================================================================

What follows where no limit was configured, from all live ranks together
------------------------------------------------------------------------
===================  ===================================================================================================
decision             if
===================  ===================================================================================================
suspended            all ranks are stopped, as by a scheduler or a person: never acted on
stopped              a rank is stopped while another one was looked at and is not: proven
busy                 a rank is busy: nothing, the others may wait for it, in whatever way
debugged             a rank is in a debugger: never acted on
uninterruptible      each of several ranks is: storage that all use is away, and a restart does not bring it back
may end              a rank waits for what may end by itself: patience (:mod:`..incident.patience`)
still                each rank is still or waiting, one is still, and past the limit configured for its section: proven
waiting              each has been waiting for :data:`DEADLOCK_SECONDS`, in collectives that cannot complete: proven
transport            each is waiting, and a collective that all have entered does not complete: patience
undecided            all else: a rank was not looked at, polls or spins: patience
===================  ===================================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from rankwatch.contract.enums import ProcessState, Proof, WaitKind
from rankwatch.contract.limits import RankLimits
from rankwatch.contract.messages import Frame, RankStack, Usage, Wait
from rankwatch.contract.peers import BACKWARD, waiting_call, waits_for_peers
from rankwatch_monitor.core.cause import Shown, Some, Watched
from rankwatch_monitor.core.hang.collectives import call_of, cannot_complete, may_miss_one, waiting_ranks
from rankwatch_monitor.core.hang.stacks import StackGroup, Stacks, of_script, site_of
from rankwatch_monitor.core.ranks import PROOFS, RankColumns, left_ranks, live_ranks

STILL_SECONDS: Final = 6.0
"""Seconds over which looks must show the same for a rank to stand still."""
STILL_SAMPLES: Final = 3
DEADLOCK_SECONDS: Final = 10.0
"""Seconds without progress after which ranks that all wait, in collectives that cannot complete, are stuck."""
SAMPLE_AFTER_SECONDS: Final = 60.0
"""Seconds without progress after which ranks in a first-time section are looked at, long before its limit."""
LOOP_SECONDS: Final = 300.0
"""Seconds in the same functions, on CPU alone, after which it counts as an endless loop and no longer as work; and
seconds without a stack that was not seen before, after which one that moves counts as polls or retries."""
FRESH_SECONDS: Final = 15.0
"""Age of a look up to which it counts; launchers look every 4 s at the latest."""
FRESH_PER_RANK: Final = 0.0005
"""On top of it in seconds, since launchers of large jobs look less often."""
WORK: Final = 0.1
"""Share of one CPU from which a process or a thread works: exporters and loggers take less."""
SEVERAL: Final = 1.5
"""CPUs in threads beside the main one from which a rank computes on the host."""
IDLE: Final = 0.02
"""Share of one CPU up to which a main thread and the child processes stand still."""
WORK_BYTES: Final = 65_536.0
"""Bytes a second read and written from which a process works."""
WAKEUPS: Final = 0.25
"""Wake-ups a second up to which a main thread stands still: waits with a timeout of some seconds, not polling."""
_MARGIN: Final = 0.05
WAKES_NOTHING: Final = (WaitKind.THREAD, WaitKind.STOPPED)
"""Waits that nothing ends: all that could is part of them."""
MAY_END: Final = (
    WaitKind.TIMED,
    WaitKind.CHILD,
    WaitKind.FILE_LOCK,
    WaitKind.SOCKET,
    WaitKind.PIPE,
    WaitKind.EVENT,
    WaitKind.STORAGE,
    WaitKind.DEVICE,
)


def of_stack(stack: RankStack) -> Proof | None:
    """What the looks at one rank show; None: it was looked at once only, or too seldom while it is stopped."""
    usage = stack.usage
    if usage is None:
        return None
    enough = usage.looks >= STILL_SAMPLES and usage.seconds >= STILL_SECONDS
    kind = WaitKind.UNKNOWN if usage.wait is None else usage.wait.kind
    if stack.process_state is ProcessState.STOPPED:
        return Proof.STOPPED if enough else None
    if kind in (WaitKind.TERMINAL, WaitKind.DEBUGGER):
        return Proof.DEBUGGED
    span = max(usage.seconds, 1e-3)
    if waits_for_peers(stack.frames, device=usage.gpu) or (kind is WaitKind.PEERS and not usage.gpu):
        return _waiting(stack, usage, span, enough=enough)
    if usage.looks < 2:
        return Proof.UNDECIDED
    works = _works(stack, usage, span)
    if works is not None:
        return works
    stands = usage.same_stack is None or usage.same_stack >= STILL_SECONDS
    if not enough or not (stands or (usage.new_stack or 0.0) >= LOOP_SECONDS):
        return Proof.UNDECIDED
    if stack.process_state is ProcessState.UNINTERRUPTIBLE:
        return Proof.UNINTERRUPTIBLE
    if kind in MAY_END:
        return Proof.MAY_END
    idle = IDLE * span + _MARGIN
    rests = stands and max(usage.main_cpu, usage.child_cpu) <= idle and usage.wakeups <= 1 + WAKEUPS * span
    return Proof.STILL if rests and kind in WAKES_NOTHING else Proof.UNDECIDED


def _waiting(stack: RankStack, usage: Usage, span: float, *, enough: bool) -> Proof:
    if not usage.gpu and _main_works(usage, span):
        return Proof.BUSY  # autograd computes inside of such a call
    call = waiting_call(stack.frames) if usage.gpu and _moved(usage) else None
    if call is not None and call.function.rpartition(".")[2] == BACKWARD:
        return Proof.BUSY  # a backward pass that compiles, or runs Python; one that waits for a device stands still
    stood = enough and (usage.same_stack or 0.0) >= STILL_SECONDS
    moves = not usage.gpu and usage.cpu >= WORK * span  # the transfer itself, on a thread of gloo
    return Proof.WAITING if stood and not moves else Proof.UNDECIDED


def _works(stack: RankStack, usage: Usage, span: float) -> Proof | None:
    """Busy or spinning; None: the rank does not work."""
    if _stack_moves(usage) and _main_works(usage, span):
        return _unless_endless(usage)
    if _moved(usage):
        return Proof.BUSY
    worked = usage.child_cpu + usage.child_delay >= WORK * span
    if worked or usage.arrives or usage.io_bytes >= WORK_BYTES * span:
        return Proof.UNDECIDED if _nothing_wakes(usage) else Proof.BUSY
    if not _main_works(usage, span) and usage.cpu < WORK * span:
        return None
    if usage.gpu and usage.same_stack is not None:
        pending = any(each.completed < each.enqueued for each in stack.collectives)
        if pending and usage.looks >= STILL_SAMPLES:
            return Proof.WAITING
        # A wait for a device takes one CPU. Where the collectives are known and none is pending, it is for no peer.
        if pending or not (stack.collectives or usage.cpu >= SEVERAL * span):
            return Proof.SPINNING
    return _unless_endless(usage)


def _stack_moves(usage: Usage) -> bool:
    return usage.same_stack is not None and usage.same_stack + _MARGIN < min(usage.seconds, STILL_SECONDS)


def _moved(usage: Usage) -> bool:
    """Whether the stack moves, and was one lately that was not seen before: it does not poll in a loop."""
    return _stack_moves(usage) and (usage.new_stack or 0.0) < LOOP_SECONDS


def _main_works(usage: Usage, span: float) -> bool:
    """Whether the main thread computes, or would if the machine were not overloaded.

    A look itself makes a thread that sleeps wait for a CPU, so that only one that gets some counts.
    """
    rests = usage.main_cpu <= IDLE * span + _MARGIN
    return not rests and usage.main_cpu + usage.main_delay >= WORK * span


def _nothing_wakes(usage: Usage) -> bool:
    """Whether nothing that the process or its children do can wake the main thread, and it stood for long."""
    return (
        usage.wait is not None
        and usage.wait.kind in WAKES_NOTHING
        and min(usage.same_stack or 0.0, usage.same_functions or 0.0) >= LOOP_SECONDS
    )


def _unless_endless(usage: Usage) -> Proof:
    return Proof.SPINNING if (usage.same_functions or 0.0) >= LOOP_SECONDS else Proof.BUSY


def record(columns: RankColumns, stacks: Sequence[RankStack], at: float) -> None:
    """Put the looks of one launcher into the columns; ``at`` is when they were taken."""
    for stack in stacks:
        found = of_stack(stack)
        if found is not None and stack.rank < len(columns):
            columns.proof_R[stack.rank], columns.proof_at_R[stack.rank] = PROOFS.index(found), at
            if found is Proof.BUSY:
                columns.busy_at_R[stack.rank] = at


PROVEN: Final = (Proof.STILL, Proof.STOPPED, Proof.WAITING)
"""What confirms a suspicion."""
HOLDS: Final = (Proof.BUSY, Proof.UNINTERRUPTIBLE, Proof.DEBUGGED, Proof.SUSPENDED)
"""What keeps a suspicion from being acted on, for as long as it is seen."""
LASTING: Final = (Proof.BUSY, Proof.MAY_END)
"""What is stated with how long it has lasted."""
WAITED_FOR: Final = (Proof.BUSY, Proof.MAY_END, Proof.DEBUGGED)
"""What ranks show that the others wait for."""


class Decision(NamedTuple):
    """What the looks decide; ``proof`` is undecided if they do not."""

    proof: Proof
    ranks: tuple[int, ...] = ()
    """The ranks that show it."""

    @property
    def proven(self) -> bool:
        """Whether the suspicion is confirmed."""
        return self.proof in PROVEN

    @property
    def holds(self) -> bool:
        """Whether no patience ends it."""
        return self.proof in HOLDS


NOTHING: Final = Decision(Proof.UNDECIDED)


def decide(columns: RankColumns, limits: RankLimits, stacks: Stacks, now: float) -> Decision:
    """What the newest looks at all live ranks decide.

    Args:
        stacks: those of the ranks, with how far these are in each process group.
    """
    live_R = live_ranks(columns)
    fresh = FRESH_SECONDS + FRESH_PER_RANK * len(columns)
    seen_R = live_R & (now - columns.proof_at_R <= fresh) & (columns.proof_at_R > _moved_at(columns))
    if not seen_R.any():
        return NOTHING

    def ranks(proof: Proof) -> tuple[int, ...]:
        return tuple(np.flatnonzero(seen_R & (columns.proof_R == PROOFS.index(proof))).tolist())

    live = int(np.count_nonzero(live_R))
    if stopped := ranks(Proof.STOPPED):
        if len(stopped) == live:
            return Decision(Proof.SUSPENDED, stopped)
        others = np.count_nonzero(seen_R) - len(stopped)
        return Decision(Proof.STOPPED, stopped) if others else NOTHING
    for held in (Proof.BUSY, Proof.DEBUGGED):
        if found := ranks(held):
            return Decision(held, found)
    asleep = ranks(Proof.UNINTERRUPTIBLE)
    if len(asleep) == live > 1:
        return Decision(Proof.UNINTERRUPTIBLE, asleep)
    if may_end := (*ranks(Proof.MAY_END), *asleep):
        return Decision(Proof.MAY_END, tuple(sorted(may_end)))
    still, waiting = ranks(Proof.STILL), ranks(Proof.WAITING)
    if not live or len(still) + len(waiting) < live:
        return NOTHING
    if still:
        over = tuple(rank for rank in still if _past_its_own(columns, limits, rank, now))
        return Decision(Proof.STILL, over) if over and (waiting or live == 1) else NOTHING
    stood = now - float(np.nanmax(_moved_at(columns)[live_R]))
    if stood < DEADLOCK_SECONDS:
        return NOTHING
    progress = stacks.group_progress()
    needed = bool(len(left_ranks(columns))) and live > 1 and may_miss_one(progress)
    stuck = needed or cannot_complete(progress, waiting)
    if not stuck and waiting_ranks(progress).late:
        return NOTHING  # they wait for a rank that waits in a group whose members are not known
    return Decision(Proof.WAITING if stuck else Proof.TRANSPORT, waiting)


def begin_anew(columns: RankColumns, now: float) -> None:
    """Let patience begin now, while a suspicion is not to be acted on: what is found after that has only just begun."""
    columns.busy_at_R[:] = now


def last_busy(columns: RankColumns) -> float:
    """When a look last found a rank busy, or kept a suspicion from being acted on; minus infinity: never."""
    return float(np.fmax.reduce(columns.busy_at_R, initial=-np.inf))


def last_moved(columns: RankColumns) -> float:
    """The last progress or heartbeat of any live rank; minus infinity: none is known."""
    moved_R = np.fmax(np.fmax(columns.last_progress_R, columns.inferred_progress_R), columns.last_heartbeat_R)
    return float(np.fmax.reduce(moved_R[live_ranks(columns)], initial=-np.inf))


def _moved_at(columns: RankColumns) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """When each rank last moved; minus infinity where that is unknown."""
    moved: np.ndarray[tuple[int], np.dtype[np.float64]] = np.fmax(columns.last_progress_R, -np.inf)
    return moved


def _past_its_own(columns: RankColumns, limits: RankLimits, rank: int, now: float) -> bool:
    """Whether a rank stands still for longer than the limit configured for its innermost section, if there is one."""
    within = columns.open_sections(rank, now)
    configured = limits.sections.get(list(within)[-1]) if within else None
    return configured is None or now - float(_moved_at(columns)[rank]) > configured


# What is stated -------------------------------------------------------------------------------------------------------


def shown(decision: Decision, waits: Mapping[int, Wait], stacks: Stacks, columns: RankColumns, now: float) -> Shown:
    """What the looks show, as a record.

    Args:
        waits: what ranks wait for, as far as known.
    """
    ranks = decision.ranks
    if not ranks:
        return Shown(decision.proof, Some((), 0))
    first = ranks[0]
    since = float(_moved_at(columns)[first])
    everywhere = waiting_ranks(stacks.group_progress()).everywhere
    entered = next((each for each in everywhere if len(each.ranks) >= len(ranks)), None)
    return Shown(
        decision.proof,
        Some.of(ranks),
        columns.hosts[first],
        waits.get(first),
        site_of(own_frame(first, stacks.groups())),
        now - since if np.isfinite(since) else None,
        int(np.count_nonzero(live_ranks(columns))) - len(ranks),
        None if entered is None else call_of(entered),
    )


def watched(seen: Shown, ranks: Sequence[int], waits: Mapping[int, Wait], stacks: Stacks) -> list[Watched]:
    """The causes of ranks that others wait for, and that may still go on; of thousands most have one in common."""
    groups, alike = stacks.groups(), Watched(seen.proof, None, None, seen.waiting)
    own = {*seen.ranks.first[:1], *waits}
    return [
        Watched(seen.proof, waits.get(rank), site_of(own_frame(rank, groups)), seen.waiting) if rank in own else alike
        for rank in ranks
    ]


def own_frame(rank: int, groups: Sequence[StackGroup]) -> Frame | None:
    """The innermost function of the script in which a rank is, else the innermost one; None: its stack is unknown."""
    frames = next((group.frames for group in groups if rank in group.ranks), ())
    return next(filter(of_script, frames), next(iter(frames), None))
