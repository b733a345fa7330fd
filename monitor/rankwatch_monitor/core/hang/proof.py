"""Proof: what several looks at suspected ranks show, and what follows for a suspicion.

How a rank is judged
--------------------
The first row that applies. Counters are those of the last looks, over about 10 s, without the threads of Rankwatch and
of collective libraries.

===================  ===================================================================================================
proof                if
===================  ===================================================================================================
stopped              state T over :data:`STILL_SECONDS`
waiting              in a call that waits for peers, by its stack, which stood still that long while no thread worked;
                     on a GPU also a rank that spins while a collective of it is pending
busy                 the stack moved, bytes were read or written, a child worked, or CPU time was spent
spinning             ... but CPU time alone, at the same lines, on a GPU: a wait for it; or for :data:`LOOP_SECONDS` in
                     the same functions: an endless loop
uninterruptible      state D over :data:`STILL_SECONDS`, with nothing moved
still                over :data:`STILL_SECONDS` the same stack, no CPU time, no bytes and hardly a wake-up
undecided            all else, and fewer looks
===================  ===================================================================================================

What follows, from all live ranks together
------------------------------------------
===================  ===================================================================================================
decision             if
===================  ===================================================================================================
proven               a rank is stopped
busy                 a rank is busy: the others may wait for it, in whatever way
uninterruptible      each of several ranks is: storage that all use is away, and a restart does not bring it back
proven               each rank is still or waiting, and a still one is past the time that its section may stand still
proven               each rank has been waiting for :data:`DEADLOCK_SECONDS`
undecided            all else: a rank was not looked at, spins, or all stand still outside of collectives, as when the
                     storage of all is away. Patience decides (:mod:`.confirmation`)
===================  ===================================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from rankwatch.contract.enums import LimitSource, ProcessState, Proof
from rankwatch.contract.limits import RankLimits
from rankwatch.contract.messages import Frame, RankStack, Usage
from rankwatch_monitor.core.hang.stacks import StackGroup, waits_for_peers
from rankwatch_monitor.core.ranks import PROOFS, RankColumns, live_ranks

STILL_SECONDS: Final = 6.0
"""Seconds over which looks must show the same for a rank to stand still."""
STILL_SAMPLES: Final = 3
DEADLOCK_SECONDS: Final = 20.0
"""Seconds without progress after which ranks that all wait for each other are stuck: a network may pause."""
UNKNOWN_SECONDS: Final = 30.0
"""Seconds that a section which is new, or usually long, may stand still; a configured limit holds as written."""
SAMPLE_AFTER_SECONDS: Final = 60.0
"""Seconds without progress after which ranks in a first-time section are looked at, long before its limit."""
LOOP_SECONDS: Final = 300.0
"""Seconds in the same functions, on CPU alone, after which it counts as an endless loop and no longer as work."""
FRESH_SECONDS: Final = 15.0
"""Age of a look up to which it counts; launchers look every 4 s at the latest."""
FRESH_PER_RANK: Final = 0.0005
"""On top of it in seconds, since launchers of large jobs look less often."""
WORK: Final = 0.1
"""Share of one CPU from which a process or a thread works: exporters and loggers take less."""
IDLE: Final = 0.02
"""Share of one CPU up to which a main thread and the child processes stand still."""
WORK_BYTES: Final = 65_536.0
"""Bytes a second read and written from which a process works."""
WAKEUPS: Final = 0.25
"""Wake-ups a second up to which a main thread stands still: waits with a timeout of some seconds, not polling."""
_MARGIN: Final = 0.05

_OWN_CODE: Final = ("site-packages", "dist-packages", "<frozen", "lib/python")
"""Parts of paths of files that are not the script's."""


def of_stack(stack: RankStack) -> Proof | None:
    """What the looks at one rank show; None: it was looked at once only."""
    usage = stack.usage
    if usage is None:
        return None
    enough = usage.looks >= STILL_SAMPLES and usage.seconds >= STILL_SECONDS
    if stack.process_state is ProcessState.STOPPED:
        return Proof.STOPPED if enough else Proof.UNDECIDED
    span = max(usage.seconds, 1e-3)
    if waits_for_peers(stack.frames):
        return _waiting(usage, span, enough=enough)
    if usage.looks < 2:
        return Proof.UNDECIDED
    works = _works(stack, usage, span)
    if works is not None:
        return works
    if not enough or (usage.same_stack is not None and usage.same_stack < STILL_SECONDS):
        return Proof.UNDECIDED
    if stack.process_state is ProcessState.UNINTERRUPTIBLE:
        return Proof.UNINTERRUPTIBLE
    idle = IDLE * span + _MARGIN
    rests = max(usage.main_cpu, usage.child_cpu) <= idle and usage.wakeups <= 1 + WAKEUPS * span
    return Proof.STILL if rests and stack.process_state is ProcessState.ALIVE else Proof.UNDECIDED


def _waiting(usage: Usage, span: float, *, enough: bool) -> Proof:
    if not usage.gpu and _main_works(usage, span):
        return Proof.BUSY  # autograd computes inside of such a call
    stood = enough and (usage.same_stack or 0.0) >= STILL_SECONDS
    moves = not usage.gpu and usage.cpu >= WORK * span  # the transfer itself, on a thread of gloo
    return Proof.WAITING if stood and not moves else Proof.UNDECIDED


def _works(stack: RankStack, usage: Usage, span: float) -> Proof | None:
    """Busy or spinning; None: the rank does not work."""
    if usage.same_stack is not None and usage.same_stack + _MARGIN < min(usage.seconds, STILL_SECONDS):
        return _unless_endless(usage) if _main_works(usage, span) else Proof.BUSY
    if usage.child_cpu + usage.child_delay >= WORK * span or usage.io_bytes >= WORK_BYTES * span:
        return Proof.BUSY
    if not _main_works(usage, span) and usage.cpu < WORK * span:
        return None
    if usage.gpu and usage.same_stack is not None:
        pending = any(each.completed < each.enqueued for each in stack.collectives)
        return Proof.WAITING if pending and usage.looks >= STILL_SAMPLES else Proof.SPINNING
    return _unless_endless(usage)


def _main_works(usage: Usage, span: float) -> bool:
    """Whether the main thread computes, or would if the machine were not overloaded.

    A look itself makes a thread that sleeps wait for a CPU, so that only one that gets some counts.
    """
    rests = usage.main_cpu <= IDLE * span + _MARGIN
    return not rests and usage.main_cpu + usage.main_delay >= WORK * span


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


class Decision(NamedTuple):
    """What the looks decide; ``proof`` is undecided if they do not."""

    proof: Proof
    ranks: tuple[int, ...] = ()
    """The ranks that show it."""

    @property
    def proven(self) -> bool:
        """Whether the suspicion is confirmed."""
        return self.proof in (Proof.STILL, Proof.STOPPED, Proof.WAITING)


NOTHING: Final = Decision(Proof.UNDECIDED)


def decide(columns: RankColumns, limits: RankLimits, now: float) -> Decision:
    """What the newest looks at all live ranks decide at ``now``."""
    live_R = live_ranks(columns)
    fresh = FRESH_SECONDS + FRESH_PER_RANK * len(columns)
    seen_R = live_R & (now - columns.proof_at_R <= fresh) & (columns.proof_at_R > _moved_at(columns))

    def ranks(proof: Proof) -> tuple[int, ...]:
        return tuple(np.flatnonzero(seen_R & (columns.proof_R == PROOFS.index(proof))).tolist())

    if stopped := ranks(Proof.STOPPED):
        return Decision(Proof.STOPPED, stopped)
    if busy := ranks(Proof.BUSY):
        return Decision(Proof.BUSY, busy)
    still, waiting, live = ranks(Proof.STILL), ranks(Proof.WAITING), int(np.count_nonzero(live_R))
    asleep = ranks(Proof.UNINTERRUPTIBLE)
    if len(asleep) == live > 1:
        return Decision(Proof.UNINTERRUPTIBLE, asleep)
    if not live or len(still) + len(waiting) < live:
        return NOTHING
    if not still:
        stood = now - float(np.nanmax(_moved_at(columns)[live_R]))
        return Decision(Proof.WAITING, waiting) if stood >= DEADLOCK_SECONDS else NOTHING
    over = tuple(rank for rank in still if _past_its_own(columns, limits, rank, now))
    return Decision(Proof.STILL, over) if over and (waiting or live == 1) else NOTHING


def last_busy(columns: RankColumns) -> float:
    """When a look last found a rank busy; minus infinity: never."""
    return float(np.fmax.reduce(columns.busy_at_R, initial=-np.inf))


def _moved_at(columns: RankColumns) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """When each rank last moved; minus infinity where that is unknown."""
    moved: np.ndarray[tuple[int], np.dtype[np.float64]] = np.nan_to_num(columns.last_progress_R, nan=-np.inf)
    return moved


def _past_its_own(columns: RankColumns, limits: RankLimits, rank: int, now: float) -> bool:
    """Whether a rank that stands still has done so for longer than its innermost section may."""
    within = columns.open_sections(rank, now)
    if not within:
        return True
    name = list(within)[-1]
    first = bool(columns.first_RS[rank, columns.sections.index(name)])
    limit, source = limits.of_section(name, first=first)
    quiet = now - float(_moved_at(columns)[rank])
    if limit is None or source is not LimitSource.CONFIGURED:
        limit = UNKNOWN_SECONDS if limit is None else min(limit, UNKNOWN_SECONDS)
    return quiet > limit


# Sentences ------------------------------------------------------------------------------------------------------------


def busy_sentence(decision: Decision, groups: Sequence[StackGroup], columns: RankColumns, now: float) -> str:
    """Where the first busy rank works, for how long, and how many live ranks are not busy."""
    rank = decision.ranks[0]
    since = float(_moved_at(columns)[rank])
    lasted = f" for {now - since:.0f} s" if np.isfinite(since) else ""
    others = f" ({len(decision.ranks) - 1} more are busy)" if len(decision.ranks) > 1 else ""
    wait = int(np.count_nonzero(live_ranks(columns))) - len(decision.ranks)
    waits = f", {wait} {'rank waits' if wait == 1 else 'ranks wait'}" if wait else ""
    host = f" on {columns.hosts[rank]}" if columns.hosts[rank] else ""
    return f"Rank {rank}{host} is busy{place(rank, groups)}{lasted}{others}{waits}."


def storage_sentence(decision: Decision, groups: Sequence[StackGroup]) -> str:
    """Where all ranks wait for storage, and what follows."""
    where = place(decision.ranks[0], groups)
    return (
        f"All {len(decision.ranks)} ranks wait in the kernel (state D){where}: storage or a device that they share "
        "does not answer. A restart would not bring it back, so none follows unless an operator orders it."
    )


def stall_sentence(seconds: float) -> str:
    """How long no step has completed, and why no action follows."""
    return (
        f"No step has completed for {seconds:.0f} s, although the ranks are alive and move: a retry that never ends, "
        "or steps that fail and are caught. No restart follows unless an operator orders it."
    )


def proof_sentence(decision: Decision, groups: Sequence[StackGroup]) -> str:
    """Which proof confirmed a suspicion."""
    rank = decision.ranks[0]
    more = f", and {len(decision.ranks) - 1} more" if len(decision.ranks) > 1 else ""
    match decision.proof:
        case Proof.STOPPED:
            return f"Proof: the process of rank {rank}{more} stays stopped (state T)."
        case Proof.WAITING if len(decision.ranks) == 1:
            return (
                f"Proof: rank {rank} waits for its device{place(rank, groups)}, and in repeated samples did not move."
            )
        case Proof.WAITING:
            return "Proof: every rank waits for its peers, and in repeated samples none has moved."
        case _:
            where = place(rank, groups)
            what = "the same stack, no CPU time and no bytes in repeated samples"
            return f"Proof: rank {rank}{more} does not move{where}: {what}."


def place(rank: int, groups: Sequence[StackGroup]) -> str:
    """`` in evaluate() (train.py:41)``: the innermost function of the script; empty: its stack is unknown."""
    if (frame := own_frame(rank, groups)) is None:
        return ""
    name = frame.function if frame.function.startswith("<") else f"{frame.function}()"
    return f" in {name} ({frame.file.rsplit('/', 1)[-1]}:{frame.line})"


def own_frame(rank: int, groups: Sequence[StackGroup]) -> Frame | None:
    """The innermost function of the script in which a rank is, else the innermost one; None: its stack is unknown."""
    frames = next((group.frames for group in groups if rank in group.ranks), ())
    return next((f for f in frames if not any(part in f.file for part in _OWN_CODE)), next(iter(frames), None))
