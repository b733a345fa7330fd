"""The reason of an incident: the rank, the limit that it passed, and the cause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from rankwatch.cli.formatting import capital, count, uncapital
from rankwatch.contract.enums import LimitSource, Proof, VerdictKind
from rankwatch_monitor.core.cause import OF_A_SECTION, Cause, Detection, Followed, NodeLost, Shown, Some, Unnamed
from rankwatch_monitor.core.words.causes import When, exited, named, place, predicate, reason, some, unnamed, waits_for

Named = Sequence[tuple[int, str, Cause]]
"""Ranks that are to blame, with host and cause."""


def sentence(found: Detection, culprits: Named, why_none: Unnamed | None) -> str:
    """The detection and its cause.

    Args:
        why_none: why no rank is named; None: some are.
    """
    if not culprits:
        none = "" if why_none is None else f"; {''.join(unnamed(why_none))}"
        return f"{detected(found, named=False)}{none}."
    rank, host, cause = culprits[0]
    if isinstance(cause, NodeLost):
        lost = list(dict.fromkeys(each for *_, each in culprits))[:3]
        return f"{capital('; '.join(map(reason, lost)))}{_after(found)}."
    if found.kind is VerdictKind.PROCESS_EXITED:
        said = f"Rank {rank}{on(host)} {''.join(predicate(cause)).rstrip('.')}{likewise(culprits)}"
        return f"{said}{_after(found)}."
    if rank == found.rank:
        return f"{detected(found)}: {reason(cause)}{likewise(culprits)}."
    return also_to_blame(detected(found), culprits)


def also_to_blame(text: str, culprits: Named) -> str:
    """A sentence about one rank, and the culprits that caused it."""
    rank, host, cause = culprits[0]
    return f"{text.rstrip('.')}; rank {rank}{on(host)} is to blame: {reason(cause)}{likewise(culprits)}."


def detected(found: Detection, *, named: bool = True) -> str:
    """``Rank 3 on host-0 has made no progress in section 'step' for 31.0 s, over its learned limit of 30 s``.

    Args:
        named: the rank is to blame; else it is one of several over a limit.
    """
    host = "" if found.kind is VerdictKind.NEVER_STARTED else f" on {found.host or 'an unknown host'}"
    rank = f"rank {found.rank}{host}"
    if found.others and not named and found.kind is not VerdictKind.STALLED:
        return f"Limits were passed by {found.others + 1} ranks: {uncapital(_over(found, 'one of them'))}"
    others = f" ({count(found.others, 'other')} too)" if found.others and named else ""
    return _over(found, rank) + others


def when_detected(found: Detection, subject: str) -> str:
    """The same in the past, of ``subject``: its figures do not grow with time. Empty: no limit was passed."""
    if not found.limit or found.kind is VerdictKind.PROCESS_EXITED:
        return ""
    others = f" ({count(found.others, 'other')} too)" if found.others and found.kind is not VerdictKind.STALLED else ""
    return f"When detected, {uncapital(_over(found, subject, has='had'))}{others}."


def _over(found: Detection, rank: str, has: str = "has") -> str:
    elapsed, limit, who = f"{found.elapsed:.1f} s", _limit(found), capital(rank)
    match found.kind:
        case VerdictKind.STALLED:
            return f"No step {has} completed for {elapsed}, over the limit of {_plain(found.limit)} s"
        case VerdictKind.SECTION_OVERRUN if not found.source.acts_at_once:
            return f"{who} {has} made no progress in section '{found.section}' for {elapsed}, {limit}"
        case VerdictKind.SECTION_OVERRUN:
            return f"{who} {has} been in section '{found.section}' for {elapsed}, {limit}"
        case VerdictKind.OUT_OF_SECTION_OVERRUN:
            return f"{who} {has} been outside all sections for {elapsed}, {limit}"
        case VerdictKind.HEARTBEAT_OVERRUN if found.source is LimitSource.LEARNED:
            return f"{who} {has} sent no heartbeat and completed no step for {elapsed}, {limit}"
        case VerdictKind.HEARTBEAT_OVERRUN if found.has_beaten:
            return f"{who} {has} sent no heartbeat for {elapsed}, {limit}"
        case VerdictKind.HEARTBEAT_OVERRUN:
            return f"{who} {has} sent no first heartbeat for {elapsed}, {limit}"
        case VerdictKind.SILENT | VerdictKind.NODE_LOST:
            return f"{who} {has} been silent for {elapsed}, {limit}"
        case VerdictKind.NEVER_STARTED:
            return f"{who} {has} not reported within {elapsed} of the first rank, {limit}"
        case (
            VerdictKind.PROCESS_EXITED
            | VerdictKind.STRAGGLER
            | VerdictKind.WRONG_RESULT
            | VerdictKind.RESTARTED_IN_PROCESS
            | VerdictKind.ORDERED
        ):
            return who  # no limit was passed
        case _:
            assert_never(found.kind)


def _limit(found: Detection) -> str:
    seconds = f"{_plain(found.limit)} s"
    if found.kind not in OF_A_SECTION:
        return f"over the policy's limit of {seconds}"
    match found.source:
        case LimitSource.LEARNED:
            return f"over its learned limit of {seconds}"
        case LimitSource.LOADED:
            return f"over its limit of {seconds}, learned in an earlier run"
        case LimitSource.FIRST_TIME:
            return f"over the limit of {seconds} for a section without a learned limit"
        case LimitSource.DEFAULT:
            return f"over the default limit of {seconds}"
        case LimitSource.CONFIGURED:
            return f"over its configured limit of {seconds}"


def followed(crash: Followed | None) -> str:
    """The crashes after the cause: the logs show these first. Empty: there were none."""
    if crash is None:
        return ""
    more = f"; {crash.more} more ended like that" if crash.more else ""
    return f"after that, rank {crash.rank} on {crash.host} {exited(crash.exit.code, crash.exit.message)}{more}"


def _after(found: Detection) -> str:
    return f"; {after}" if (after := followed(found.followed)) else ""


def likewise(culprits: Named) -> str:
    """The other culprits: those with the same cause by their ranks, else the first with its own; empty: none."""
    cause = culprits[0][2]
    more = [rank for rank, _, each in culprits[1:] if each == cause]
    differing = next(((rank, each) for rank, _, each in culprits[1:] if each != cause), None)
    if more:
        return f"; likewise {some(Some.of(more))}"
    return "" if differing is None else f"; rank {differing[0]}: {reason(differing[1])}"


def shown(seen: Shown, when: When = When.NOW) -> str:
    """What samples show; empty: nothing that decides anything."""
    v, number = when.value, seen.ranks.number
    rank = seen.ranks.first[0] if seen.ranks.first else -1
    where = place(seen.site)
    match seen.proof:
        case Proof.UNINTERRUPTIBLE:
            return (
                f"All {number} ranks {v.wait} in the kernel (state D){where}: storage or a device that they share "
                f"{v.does} not answer. A restart would not bring it back, so none follows unless an operator orders it."
            )
        case Proof.SUSPENDED:
            return f"All {number} ranks {v.are} stopped (state T), as by a scheduler that suspends a job."
        case Proof.TRANSPORT if number == 1:
            return f"Rank {rank} {v.waits} for its device{where}, which may recover."
        case Proof.TRANSPORT:
            what = f"{v.wait} in a collective that" if seen.call is None else f"{v.entered} {named(seen.call)}, and it"
            return f"All {number} ranks {what} {v.does} not complete: their network or a device may recover."
        case Proof.BUSY | Proof.MAY_END | Proof.DEBUGGED:
            return _of_one(seen, rank, where, when)
        case Proof.STALLED:
            return (
                f"No step has completed for {seen.seconds or 0.0:.0f} s, although the ranks {v.are} alive and move: a "
                "retry that never ends, or steps that fail and are caught. No restart follows unless "
                "an operator orders it."
            )
        case Proof.STOPPED:
            return f"Proof: the process of rank {rank}{_more(number)} stays stopped (state T)."
        case Proof.WAITING:
            return (
                "Proof: every rank waits for its peers, in collectives that cannot complete, and in repeated samples "
                "none has moved."
            )
        case Proof.STILL:
            return f"Proof: rank {rank}{_more(number)} does not move{where}, and no thread or child can wake it."
        case Proof.SPINNING | Proof.UNDECIDED:
            return ""
        case _:
            assert_never(seen.proof)


def _more(number: int) -> str:
    return f", and {number - 1} more" if number > 1 else ""


def _of_one(seen: Shown, rank: int, where: str, when: When) -> str:
    """What the first of the ranks does, where, for how long, and how many wait for it."""
    v, busy = when.value, seen.proof is Proof.BUSY
    lasted = "" if seen.seconds is None else f" for {seen.seconds:.0f} s"
    more = seen.ranks.number - 1
    others = f" ({more} more {f'{v.are} busy' if busy else f'{v.wait} alike'})" if more else ""
    waits = f", {count(seen.waiting, 'rank')} {v.waits if seen.waiting == 1 else v.wait}" if seen.waiting else ""
    does = f"{v.is_} busy" if busy else waits_for(seen.wait, when)
    return f"Rank {rank}{on(seen.host)} {does}{where}{lasted}{others}{waits}."


def on(host: str) -> str:
    """`` on host-0``; empty: it is not known."""
    return f" on {host}" if host else ""


def _plain(seconds: float) -> str:
    return f"{seconds:.3f}".rstrip("0").rstrip(".")
