"""Clauses of causes. A clause is a tuple of parts: a line that is short of room leaves out the last ones."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple, assert_never

from rankwatch.cli.formatting import count
from rankwatch.cli.formatting import ranks as as_ranges
from rankwatch.contract.enums import Proof, WaitKind
from rankwatch.contract.exits import LEFT_EARLY, exit_phrase
from rankwatch.contract.messages import Wait
from rankwatch_monitor.core.cause import (
    AllAlike,
    Among,
    Apart,
    Behind,
    Call,
    Cause,
    Circle,
    DifferentCalls,
    Disagreed,
    Exited,
    GilHeld,
    InKernel,
    Leaving,
    Made,
    NcclBehind,
    NcclUnreachable,
    NeverStarted,
    NodeLost,
    NodeSilent,
    NotEntered,
    OtherCall,
    OtherSite,
    Outside,
    PastLimit,
    Rejected,
    Silent,
    Site,
    Slow,
    Some,
    StacksFollow,
    Stopped,
    Unnamed,
    Watched,
)

Parts = tuple[str, ...]
_OF_A_PROCESS: Final = (Exited, Stopped, Leaving, InKernel, GilHeld)
UNNAMED: Final = ", so no rank is named"


class Tense(NamedTuple):
    """The verbs of a clause; ``be``: what is stated of the rank itself, which may not be certain."""

    be: str
    is_: str
    are: str
    has: str
    wait: str
    waits: str
    cannot: str
    does: str
    holds: str
    runs: str
    entered: str


class When(Enum):
    """Whether a clause is about now, about what is over, or about what is not certain."""

    NOW = Tense("is", "is", "are", "has", "wait", "waits", "cannot", "does", "holds", "runs", "have entered")
    PAST = Tense("was", "was", "were", "had", "waited", "waited", "could not", "did", "held", "ran", "had entered")
    MAYBE = Tense("may be", "is", "are", "has", "wait", "waits", "cannot", "does", "holds", "runs", "have entered")


def reason(cause: Cause, when: When = When.NOW) -> str:
    """The clause with its subject: ``it has not entered ...``, ``its process exited ...``; a node names itself."""
    subject = "" if isinstance(cause, NodeLost | NodeSilent | Slow | Rejected) else "it "
    return ("its process " if isinstance(cause, _OF_A_PROCESS) else subject) + "".join(predicate(cause, when))


def predicate(cause: Cause, when: When = When.NOW, *, short: bool = False) -> Parts:
    """What is stated of the rank; ``short``: collectives as ``all_reduce #7``, places without files."""
    v = when.value
    match cause:
        case Exited(code, message, early):
            return (exited(code, message), *((LEFT_EARLY,) if early else ()))
        case Stopped():
            return (f"{v.is_} stopped by a signal (state T)", f", so it {v.cannot} run")
        case Leaving(seconds):
            return (f"began to end {seconds:.0f} s ago and {v.is_} still there",)
        case NeverStarted():
            return ("never reported", ", while other ranks did")
        case InKernel(host):
            what = f": a device, a file system or the network of {host or 'its node'} {v.does} not answer"
            return (f"{v.is_} stuck in the kernel (state D)", what)
        case GilHeld(seconds):
            return (
                f"{v.runs}, but no Python thread of it {v.has} for {seconds:.1f} s",
                f": something {v.holds} its GIL",
            )
        case NodeLost(node, ranks, why):
            with_ranks = f" with {some(ranks, short=short)}" if ranks.number else ""
            return (f"node {node} {v.is_} lost{with_ranks}", f": {why}")
        case NodeSilent(host, ranks, seconds):
            them = "the rank" if ranks == 1 else f"the {ranks} ranks"
            return (f"neither the launcher nor {them} of {host or 'its node'} reported for {seconds:.1f} s",)
        case Silent(seconds):
            return (f"{v.has} sent no report for {seconds:.1f} s",)
        case OtherCall():
            return _other_call(cause, when, short=short)
        case OtherSite(call, site, usual, ranks):
            return (
                f"entered {named(call, short=short)} at {at(site)}",
                f", while {count(ranks, 'rank')} entered it at {at(usual)}",
                f", so they {v.are} in different places of the program",
            )
        case NotEntered():
            return _not_entered(cause, when, short=short)
        case Behind():
            return _behind(cause, v)
        case Outside(site):
            where = "outside every call that waits for peers" if site is None else f"in {site.function} ({at(site)})"
            return (f"{v.be} {where}", f", while the others {v.wait} for their peers")
        case NcclBehind():
            return _nccl_behind(cause, v, short=short)
        case NcclUnreachable(dead):
            return (f"{v.does} not answer NCCL", f" and {v.is_} considered dead by it" if dead else "")
        case PastLimit(others):
            if others == "within":
                return (f"{v.be} past its limit", f", and the other ranks {v.are} not")
            return (f"{v.is_} the only rank" + (" still running" if others == "ended" else ""),)
        case Watched(proof, wait, site, waiting):
            parts = [_does(proof, wait, when), place(site, short=short)]
            if waiting:
                parts.append(f", {count(waiting, 'rank')} {v.waits if waiting == 1 else v.wait}")
            return tuple(filter(None, parts))
        case Slow(stated) | Rejected(stated):
            return (stated,)
        case _:
            assert_never(cause)


def _behind(cause: Behind, v: Tense) -> Parts:
    gap = f"{v.be} {count(cause.steps, 'step')} behind" if cause.steps else f"{v.be} behind within the same step"
    gap = f"{v.has} not begun the step that the others {v.are} in" if cause.between else gap
    others = f"the other rank {v.waits}" if cause.waiting == 1 else f"the {cause.waiting} other ranks {v.wait}"
    return (gap, f", and {others} for it")


def _nccl_behind(cause: NcclBehind, v: Tense, *, short: bool) -> Parts:
    own = ", ".join(launched(each.own, each.kind) for each in cause.kinds)
    most = ", ".join(launched(each.others, each.kind) for each in cause.kinds)
    where = "" if short else f" of NCCL's communicator {cause.communicator}"
    have = "have" if cause.ranks > 1 and v is not When.PAST.value else v.has
    return (
        f"{v.has} launched {own}{where}",
        f", where {count(cause.ranks, 'rank')} {have} launched {most}",
        "" if short else ", by NCCL's own count",
    )


def launched(number: int, kind: str) -> str:
    """``639 AllGather``; ``6649 operations`` where NCCL does not tell kinds apart."""
    return f"{number} operations" if kind == "collective" else f"{number} {kind}"


def exited(code: int, message: str) -> str:
    """``was killed by SIGKILL`` or ``exited with code 1: ValueError: no data``."""
    return exit_phrase(code, message, SIGNALS.get(-code, ""))


def _other_call(cause: OtherCall, when: When, *, short: bool) -> Parts:
    odd, usual = cause.made, cause.usual
    sizes = odd.operation == usual.operation
    both = odd.waits and usual.waits  # what ranks have left is over
    verbs = when.value if both else When.PAST.value
    most = f"{count(cause.ranks, 'rank')} {verbs.is_ if cause.ranks == 1 else verbs.are}"
    return (
        f"{verbs.be if both else verbs.is_} in {_made(odd, sizes=sizes)}",
        f", while {most} in {_made(usual, sizes=sizes)}",
        f", both as number {cause.number}" + ("" if short else f" of group '{cause.group}'")
        if cause.number
        else ", both of which need all ranks",
    )


def _not_entered(cause: NotEntered, when: When, *, short: bool) -> Parts:
    v = when.value
    waits = f"{count(cause.waiting, 'rank')} {v.waits if cause.waiting == 1 else v.wait}"
    parts = [f"{v.has} not entered {named(cause.call, short=short)}", f", in which {waits}"]
    if cause.call.number - cause.newest > 1:
        parts.append(f"; the newest that it {v.has} entered there {v.is_} number {cause.newest}")
    if cause.instead is not None:
        called = "" if cause.site is None else f" called at {at(cause.site)}"
        parts.append(f"; it {v.waits} in {named(cause.instead, short=short)}{called} instead")
    if cause.reordered:
        parts.append(f", so the ranks {v.wait} for each other in a circle")
        parts.append(", and it alone entered the groups in another order than before")
    return tuple(parts)


def _does(proof: Proof, wait: Wait | None, when: When) -> str:
    v = when.value
    if proof is Proof.BUSY:
        return f"{v.is_} busy"
    return f"{v.is_} in a debugger" if wait is None and proof is Proof.DEBUGGED else waits_for(wait, when)


def waits_for(wait: Wait | None, when: When = When.NOW) -> str:
    """``waits for an answer from 10.0.3.7:443``: what a rank does that waits for this."""
    v = when.value
    if wait is None:
        return v.waits
    target = f" {wait.target}" if wait.target else ""
    through = f" in its thread '{wait.through}'" if wait.through else ""
    match wait.kind:
        case WaitKind.TIMED:
            words = "slept" if when is When.PAST else "sleeps"
        case WaitKind.CHILD:
            words = f"{v.waits} for its child process{target}"
        case WaitKind.FILE_LOCK:
            words = f"{v.waits} for the lock of a file{target}"
        case WaitKind.SOCKET:
            words = f"{v.waits} for an answer {f'from{target}' if target else 'over a socket'}"
        case WaitKind.PIPE:
            words = f"{v.waits} for the other end of a pipe{target}"
        case WaitKind.EVENT:
            words = f"{v.waits} for{target or ' another process'}"
        case WaitKind.STORAGE:
            words = f"{v.waits} for storage{target}"
        case WaitKind.DEVICE:
            words = f"{v.waits} for its device{target}"
        case WaitKind.TERMINAL:
            words = f"{v.waits} for input at{target}"
        case WaitKind.DEBUGGER:
            words = f"{v.is_} stopped in a debugger"
        case WaitKind.PEERS:
            words = f"{v.waits} for other ranks"
        case WaitKind.STOPPED:
            words = f"{v.waits} for a process that {v.is_} stopped,{target}"
        case WaitKind.THREAD:
            words = f"{v.waits} for a thread that nothing wakes"
        case WaitKind.RUNNING | WaitKind.UNKNOWN:
            words = v.waits
        case _:
            assert_never(wait.kind)
    return words + through


# Why no rank is named -------------------------------------------------------------------------------------------------


def unnamed(cause: Unnamed, when: When = When.NOW, *, short: bool = False) -> Parts:
    """Why no rank is to blame; all parts together end in :data:`UNNAMED`, unless stacks follow."""
    v = when.value
    if isinstance(cause.why, StacksFollow):
        return (f"by their progress alone no rank {v.is_} to blame",)
    lead = ""
    if cause.unanswered:  # it comes first: it is where to look
        few = ", ".join(cause.unanswered[:3])
        few += f" and {len(cause.unanswered) - 3} more" if len(cause.unanswered) > 3 else ""
        lead = f"node{'' if len(cause.unanswered) == 1 else 's'} {few} did not answer in time, and "
    first, *more = _why_none(cause.why, when, short=short)
    asleep = f"; {cause.asleep} of {cause.live} ranks {v.are} stuck in the kernel (state D)" if cause.asleep else ""
    return (lead + first, *more, *(() if short else (UNNAMED,)), *((asleep,) if asleep else ()))


def _why_none(why: DifferentCalls | Circle | AllAlike | Apart | Disagreed, when: When, *, short: bool) -> Parts:
    v = when.value
    match why:
        case DifferentCalls(group, called, calls):
            sizes = len({made.operation for made, _ in calls}) == 1
            circle = any(made.among is not None for made, _ in calls)
            each = ", ".join(
                f"{some(ranks, short=short)} in {_made(made, sizes=sizes, between=circle)}" for made, ranks in calls[:3]
            )
            if circle:
                return (f"the ranks {v.wait} for each other in calls that cannot complete", f" ({each})")
            if not called:
                return (f"the ranks {v.wait} in different collectives, each of which needs all of them", f" ({each})")
            return (f"different collectives were called as number {called} of group '{group}'", f" ({each})")
        case Circle(ranks, waits):
            each = "; ".join(f"{some(ranks, short=short)} in {named(call, short=short)}" for call, ranks in waits[:4])
            more = "; and more" if len(waits) > 4 else ""
            return (f"{some(ranks, short=short)} {v.wait} for each other in a circle", f" ({each}{more})")
        case AllAlike(call, function, answered):
            where = f" ({named(call, short=short)})" if call is not None else f" ('{function}')" if function else ""
            if answered:
                return (f"the ranks that could be asked all {v.wait} for their peers{where}",)
            are = v.are if when is not When.MAYBE else v.be
            return (f"all ranks {are} stuck in the same place{where}",)
        case Disagreed(ours, nccl):
            return (
                f"the ranks' own evidence points at {some(ours, short=short)}",
                f", NCCL's own answer at {some(nccl, short=short)}",
            )
        case Apart(seen):
            are = v.are if when is not When.MAYBE else v.be
            if seen:
                return (f"the ranks {are} in different places and none {v.waits} for another",)
            unknown = f", and without stacks it {v.is_} unknown which {v.waits} for which"
            return (f"the ranks {are} at different points", unknown)
        case _:
            assert_never(why)


# Parts of clauses -----------------------------------------------------------------------------------------------------


def named(call: Call, *, short: bool = False) -> str:
    """A collective; names of torch are quoted like those of sections."""
    return (
        f"{call.operation} #{call.number}"
        if short
        else f"'{call.operation}' number {call.number} of group '{call.group}'"
    )


def _made(made: Made, *, sizes: bool, between: bool = False) -> str:
    """``between``: with the ranks that it is between."""
    size = f" of {made.size} values" if made.size and sizes else ""
    ranks = _among(made.operation, made.among) if between else ""
    return f"'{made.operation}'{size}{ranks}{f' called at {at(made.site)}' if made.site is not None else ''}"


def _among(operation: str, among: Among | None) -> str:
    if among is None:
        return " of all ranks"
    if operation in ("recv", "send"):
        to = "to" if operation == "send" else "from"
        return f" {to} rank {among.peer}" if among.peer >= 0 else ""
    ranks = f" of {count(among.ranks, 'rank')}" if among.ranks else ""
    return f" of group '{among.group}'{ranks}" if among.group else f" of a group{ranks}"


def at(site: Site) -> str:
    """``train.py:41``."""
    return f"{site.file}:{site.line}"


def place(site: Site | None, *, short: bool = False) -> str:
    """`` in evaluate() (train.py:41)``; empty: it is not known."""
    if site is None:
        return ""
    name = site.function if site.function.startswith("<") else f"{site.function}()"
    return f" in {name}" + ("" if short else f" ({at(site)})")


def some(ranks: Some, *, short: bool = False) -> str:
    """``rank 3``, ``ranks 0, 1, 2, 3, 4, 5, 6, 7 and 56 more``; ``short``: three and more as ranges."""
    more = f" and {ranks.number - len(ranks.first)} more" if ranks.number > len(ranks.first) else ""
    listed = as_ranges(ranks.first) if short and ranks.number > 2 else ", ".join(map(str, ranks.first))
    return f"rank{'' if ranks.number == 1 else 's'} {listed}{more}"


SIGNALS: Final = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
    9: "SIGKILL", 10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM",
    16: "SIGSTKFLT", 24: "SIGXCPU", 25: "SIGXFSZ", 26: "SIGVTALRM", 27: "SIGPROF", 29: "SIGIO", 30: "SIGPWR",
    31: "SIGSYS",
}  # fmt: skip
"""Linux's numbers: what launchers report, wherever the monitor runs."""


def signal_number(name: str) -> int:
    """The number of a signal's name (``SIGKILL`` or ``signal 35``); 0 if the name is unknown."""
    known = {text: value for value, text in SIGNALS.items()}
    return known.get(name) or int("0" + "".join(filter(str.isdecimal, name))[:3])
