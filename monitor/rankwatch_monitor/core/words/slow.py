"""The sentences about a slow job."""

from __future__ import annotations

from typing import Final

from rankwatch.cli.formatting import bandwidth, count, listed, whole_percent
from rankwatch.contract import topology
from rankwatch.contract.enums import Cause
from rankwatch_monitor.core.cause import SHOWN
from rankwatch_monitor.core.places import SharedPlace
from rankwatch_monitor.core.slow_cause import MANY, UNDECLARED, Doubt, HeavyStage, LateRank, SlowLink, SlowNode, Turns

PARTS: Final = {Cause.DATA: "input", Cause.HOST: "host-side work", Cause.COMPUTE: "computation"}
_DOUBTS: Final = {
    Doubt.FEW_WINDOWS: "from {needed} such windows on it is named",
    Doubt.NOISE: "the steps of this job differ by as much from window to window, so it is not named yet",
    Doubt.TURNS: "other ranks are late as often, so none is named",
    Doubt.FAST_PEER: "it takes no longer than before, its peers have become faster",
}


def node(slow: SlowNode) -> str:
    """Which node is slow, and what it costs."""
    which = "Both ranks" if slow.ranks == 2 else f"All {slow.ranks} ranks"
    return f"{which} of {slow.host} are slow: the node costs {whole_percent(slow.share)} of each step."


def place(found: SharedPlace, share: float) -> str:
    """Which rack or switch its slow nodes have in common, and what it costs."""
    which = f"{found.nodes} of {found.of} nodes of {topology.title(found.label)} are slow, and none elsewhere"
    return f"{which}: this costs {whole_percent(share)} of each step."


def more(ranks: int) -> str:
    """How many ranks are slow besides the one that was named; empty: none."""
    return f" {count(ranks, 'more rank')} {'is' if ranks == 1 else 'are'} slow." if ranks else ""


def late(found: LateRank) -> str:
    """Which rank the newest window shows late, in how many windows it was so, and why it is not named."""
    where = f"rank {found.rank}" + (f" on {found.host}" if found.host else "")
    waits = f"the others wait {whole_percent(found.share)} of a step"
    head = f"{where}, {found.slow} of {found.of} windows: {waits} for it"
    return f"{'suspected' if found.suspected else 'late'}: {head}; {_DOUBTS[found.doubt].format(needed=found.needed)}"


def stage(heavy: HeavyStage) -> str:
    """Which stage has more to do, and what else it may be."""
    if heavy.number == UNDECLARED:
        return _undeclared(heavy)
    more = f"Pipeline stage {heavy.number} has more to do than the others, {whole_percent(heavy.share)} of a step"
    if len(heavy.ranks) == 1:
        return f"{more} on rank {heavy.ranks[0]}, its only rank: its work cannot be distinguished from its node."
    on = f"{more} on all {len(heavy.ranks)} of its ranks"
    if heavy.host:
        return f"{on}: the stages are unbalanced, or {heavy.host} is slow; all ranks of the stage are on it."
    return f"{on}: the stages are unbalanced, no node is to blame."


def _undeclared(heavy: HeavyStage) -> str:
    one = len(heavy.ranks) == 1
    if one:
        which = f"Rank {heavy.ranks[0]} has"
    else:
        numbers = ", ".join(map(str, heavy.ranks[:SHOWN]))
        more = f" and {len(heavy.ranks) - SHOWN} more" if len(heavy.ranks) > SHOWN else ""
        which = f"Ranks {numbers}{more} have"
    nodes = "its node is" if one else "their nodes are"
    return (
        f"{which} done {heavy.times:.1f} times the work of the others since the first steps, and ranks send to each "
        f"other as the stages of a pipeline do: the stages are unbalanced, or {nodes} slow. Where each rank declares "
        "its stage (dl.pipeline_parallel.rank in OTEL_RESOURCE_ATTRIBUTES), it is compared with that stage alone."
    )


def link(slow: SlowLink) -> str:
    """Which process group takes long, against what, and what is between its members."""
    others = slow.against == "others"
    reference = "the other groups of its kind take" if others else "it took at its best"
    text = (
        f"All members of process group {slow.group!r} take long in its collectives, {_seconds(slow.seconds)} of each "
        f"step where {reference} {_seconds(slow.usual)}"
    )
    if slow.operation:
        usual = f"its peers have {bandwidth(slow.usual_bandwidth)}"
        usual = usual if others else f"it had {bandwidth(slow.usual_bandwidth)}"
        text += f" ({slow.operation}: {bandwidth(slow.bandwidth)} where {usual})"
    if slow.starved:
        return f"{text}: they wait for a CPU, since other processes use those of their nodes."
    if slow.host:
        return f"{text}, and none of them is late. All are on {slow.host}: its memory or CPUs are slow, not a network."
    if slow.slow_host:
        return f"{text}, and none of them is late: the slow member is {slow.slow_host}, as its other groups show."
    between = listed(slow.hosts, SHOWN)
    return f"{text}, and none of them is late: the link between {between or 'them'} is slow."


def turns(slow: Turns) -> str:
    """Who takes turns in being late, and with what."""
    lose, what = f"Steps lose {whole_percent(slow.share)} to waiting for", PARTS.get(slow.cause)
    if slow.starved:
        return (
            f"{lose} ranks that take turns in waiting for a CPU: other processes use those of their nodes, and no "
            "single rank is to blame."
        )
    more = f"with more {what}" if what else "with nothing that was measured"
    if slow.often_behind:
        return f"{lose} {_same_ranks(slow, more)}"
    if slow.cause in (Cause.COMPUTE, Cause.DATA):
        return (
            f"{lose} ranks that take turns in having more {what} than the others, as with sequences of different "
            "lengths: the workload is uneven, no node is to blame."
        )
    late = f"being late, with {what or 'nothing that was measured'}"
    return f"{lose} ranks that take turns in {late}: no single rank is to blame."


def _same_ranks(slow: Turns, more: str) -> str:
    """Names ranks that are late again and again, and why none of them is called a straggler."""
    ranks = len(slow.often_behind)
    if ranks == 1:
        which = f"rank {slow.often_behind[0]}, which is behind in most windows, {more}"
    else:
        which = f"{ranks} of {slow.ranks} ranks, which are behind in most windows, {more}"
    if ranks <= MANY * slow.ranks or ranks == 1:
        return f"{which}; but steps differ too much from window to window to be sure of a straggler."
    return f"{which}: too many for one of them to be at fault. Do they have other hardware, or other work?"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.995 else f"{1000 * seconds:.3g} ms"
