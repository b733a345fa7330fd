"""Formats a verdict as one sentence, which log, API, page, metrics and restart reason share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankwatch.cli.formatting import capital, uncapital
from rankwatch.contract.enums import LimitSource, VerdictKind
from rankwatch.contract.exits import LEFT_EARLY, exit_phrase
from rankwatch.contract.messages import Frame
from rankwatch_monitor.core.hang.verdict import OF_A_SECTION, Blame, Culprit, Verdict
from rankwatch_monitor.core.ranks import RankColumns, failed_ranks

ITS_PROCESS = "its process "


def sentence(first: Verdict, others: int, judged: Blame, columns: RankColumns) -> str:
    """Format the verdict: the rank, the limit it exceeded, and the culprit.

    Args:
        first: the verdict that is described.
        others: number of other ranks over a limit.
        judged: the culprits.
        columns: the ranks; their hosts, exit codes and heartbeat counts are used.
    """
    if first.node_loss:
        causes = tuple(dict.fromkeys(c.reason for c in judged.culprits))
        return f"{capital('; '.join(causes[:3]))}{_what_followed(columns)}."
    rank_name = f"rank {first.rank} on {columns.hosts[first.rank] or 'an unknown host'}"
    has_beaten = bool(columns.heartbeats_R[first.rank] > 0)
    if first.kind is VerdictKind.PROCESS_EXITED:
        # The launchers log the same words.
        culprit = judged.culprits[0]
        host = f" on {culprit.host}" if culprit.host else ""
        reason = culprit.reason.removeprefix(ITS_PROCESS)
        followed = _what_followed(columns) if reason.endswith(LEFT_EARLY) else ""
        return f"Rank {culprit.rank}{host} {reason.rstrip('.')}{_likewise(judged.culprits)}{followed}."
    if not judged.culprits:
        several = others > 0 and first.kind is not VerdictKind.STALLED
        text = _what(first, "one of them" if several else rank_name, has_beaten)
        text = f"Limits were passed by {others + 1} ranks: {uncapital(text)}" if several else text
        return f"{text}; {judged.explanation}."
    text = _what(first, rank_name, has_beaten) + (
        f" ({others} {'other' if others == 1 else 'others'} too)" if others else ""
    )
    if judged.culprits[0].rank == first.rank:
        return f"{text}: {judged.culprits[0].reason}{_likewise(judged.culprits)}."
    return also_to_blame(text, judged.culprits)


def also_to_blame(text: str, culprits: Sequence[Culprit]) -> str:
    """A sentence about one rank, and the culprits that caused it."""
    first = culprits[0]
    host = f" on {first.host}" if first.host else ""
    return f"{text.rstrip('.')}; rank {first.rank}{host} is to blame: {first.reason}{_likewise(culprits)}."


def _what_followed(columns: RankColumns) -> str:
    """The crashes after the loss of a node: the logs show these first."""
    ranks = np.flatnonzero(failed_ranks(columns))
    if not len(ranks):
        return ""
    more = f"; {len(ranks) - 1} more ended like that" if len(ranks) > 1 else ""
    return f"; after that, rank {ranks[0]} on {columns.hosts[ranks[0]]} {exit_words(columns, int(ranks[0]))}{more}"


def _what(verdict: Verdict, rank_name: str, has_beaten: bool) -> str:
    elapsed, limit = f"{verdict.elapsed:.1f} s", _limit(verdict)
    match verdict.kind:
        case VerdictKind.STALLED:
            return f"No step has completed for {elapsed}, over the limit of {_plain(verdict.limit)} s"
        case VerdictKind.SECTION_OVERRUN if not verdict.source.acts_at_once:
            return f"{capital(rank_name)} has made no progress in section '{verdict.section}' for {elapsed}, {limit}"
        case VerdictKind.SECTION_OVERRUN:
            return f"{capital(rank_name)} has been in section '{verdict.section}' for {elapsed}, {limit}"
        case VerdictKind.OUT_OF_SECTION_OVERRUN:
            return f"{capital(rank_name)} has been outside all sections for {elapsed}, {limit}"
        case VerdictKind.HEARTBEAT_OVERRUN if verdict.source is LimitSource.LEARNED:
            return f"{capital(rank_name)} has sent no heartbeat and completed no step for {elapsed}, {limit}"
        case VerdictKind.HEARTBEAT_OVERRUN if has_beaten:
            return f"Did not get subsequent heartbeat of {rank_name}: waited {elapsed}, {limit}"
        case VerdictKind.HEARTBEAT_OVERRUN:
            return f"Did not get initial heartbeat of {rank_name}: waited {elapsed}, {limit}"
        case VerdictKind.SILENT | VerdictKind.NODE_LOST:
            return f"{capital(rank_name)} has been silent for {elapsed}, {limit}"
        case VerdictKind.NEVER_STARTED:
            return f"Rank {verdict.rank} has not reported within {elapsed} of the first rank, {limit}"
        case _:
            return capital(rank_name)


def _limit(verdict: Verdict) -> str:
    seconds = f"{_plain(verdict.limit)} s"
    if verdict.kind not in OF_A_SECTION:
        return f"over the policy's limit of {seconds}"
    match verdict.source:
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


def _likewise(culprits: Sequence[Culprit]) -> str:
    first = culprits[0]
    more = [str(c.rank) for c in culprits[1:] if c.reason == first.reason]
    differing = [c for c in culprits[1:] if c.reason != first.reason]
    if differing and not more:
        return f"; rank {differing[0].rank}: {differing[0].reason}"
    if not more:
        return ""
    shown = ", ".join(more[:8]) + (f" and {len(more) - 8} more" if len(more) > 8 else "")
    return f"; likewise {'rank' if len(more) == 1 else 'ranks'} {shown}"


Call = tuple[str, Frame | None, bool]
"""A collective call of a rank: operation and size; the place that called it, if known; whether the rank waits in it."""


def other_call(odd: Call, usual: Call, *, ranks: int, group: str, number: int) -> str:
    """Why a rank is to blame whose collective differs from that of ``ranks`` ranks under the same sequence number."""
    sizes = odd[0].partition(" of ")[0] == usual[0].partition(" of ")[0]
    tense = ("is", "are") if odd[2] and usual[2] else ("was", "were")
    count = f"1 rank {tense[0]}" if ranks == 1 else f"{ranks} ranks {tense[1]}"
    return (
        f"it {tense[0]} in {_call(odd[0], sizes=sizes)}{_called_at(odd[1] if odd[2] else None)}, while {count} in "
        f"{_call(usual[0], sizes=sizes)}{_called_at(usual[1] if usual[2] else None)}, both as number {number} of group "
        f"'{group}'"
    )


def several_calls(group: str, number: int, calls: Sequence[tuple[str, Sequence[int]]]) -> str:
    """The mismatch, when no call is that of most ranks."""
    sizes = len({call.partition(" of ")[0] for call, _ in calls}) == 1
    each = (f"{_ranks(ranks)} in {_call(call, sizes=sizes)}" for call, ranks in calls[:3])
    return f"different collectives were called as number {number} of group '{group}' ({', '.join(each)})"


def other_site(collective: str, site: Frame, usual: Frame, ranks: int) -> str:
    """Why a rank is to blame that entered the collective of all ranks from another line than ``ranks`` ranks."""
    return (
        f"it entered {collective} at {file_and_line(site)}, while {_ranks_enter(ranks)} it at {file_and_line(usual)}, "
        "so they are in different places of the program"
    )


def waits_instead(collective: str, site: Frame | None) -> str:
    """A rank that others wait for waits in another group."""
    return f"; it waits in {collective}{_called_at(site)} instead"


OTHER_ORDER = (
    ", so the ranks wait for each other in a circle, and it alone entered the groups in another order than before"
)
"""Of a rank that waits in another group than those that wait for it."""


def in_a_circle(cycle: Sequence[int], waits: Sequence[tuple[str, Sequence[int]]]) -> str:
    """Ranks that wait for each other; ``waits``: collectives and the ranks that wait in them."""
    each = "; ".join(f"{_ranks(ranks)} in {collective}" for collective, ranks in waits[:4])
    return f"{_ranks(cycle)} wait for each other in a circle ({each}{'; and more' if len(waits) > 4 else ''})"


def file_and_line(frame: Frame) -> str:
    """``train.py:41``."""
    return f"{frame.file.rsplit('/', 1)[-1]}:{frame.line}"


def _call(call: str, *, sizes: bool) -> str:
    operation, _, size = call.partition(" of ")
    return f"'{operation}'" + (f" of {size} values" if size and sizes else "")


def _called_at(site: Frame | None) -> str:
    return f" called at {file_and_line(site)}" if site is not None else ""


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}"


def _ranks_enter(ranks: int) -> str:
    return "1 rank entered" if ranks == 1 else f"{ranks} ranks entered"


def _plain(seconds: float) -> str:
    return f"{seconds:.3f}".rstrip("0").rstrip(".")


def signal_number(name: str) -> int:
    """The number of a signal's name (``SIGKILL`` or ``signal 35``); 0 if the name is unknown."""
    known = {text: number for number, text in SIGNALS.items()}
    return known.get(name) or int("0" + "".join(filter(str.isdecimal, name))[:3])


def exit_words(columns: RankColumns, rank: int) -> str:
    """``was killed by SIGKILL`` or ``exited with code 1: ValueError: no data``."""
    code, message = int(columns.exit_code_R[rank]), columns.exit_messages.get(rank, "")
    return exit_phrase(code, message, SIGNALS.get(-code, ""))


SIGNALS = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
    9: "SIGKILL", 10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM",
    16: "SIGSTKFLT", 24: "SIGXCPU", 25: "SIGXFSZ", 26: "SIGVTALRM", 27: "SIGPROF", 29: "SIGIO", 30: "SIGPWR",
    31: "SIGSYS",
}  # fmt: skip
"""Linux's numbers: what launchers report, wherever the monitor runs."""
