"""Nodes that are lost, with all that is on them.

How this works
--------------
======================================================  ==============================  ===============================
who notices                                             when                            who acts
======================================================  ==============================  ===============================
the other launchers: they hear nothing of one (event    at once                         the launchers, by themselves
``node_lost``), and the verdict is *told*
the monitor: it hears neither a launcher nor any of     within the limit for silence    the policy
its ranks, while others speak
======================================================  ==============================  ===============================

A lost node makes the others crash: their collectives fail when the connection breaks. Those crashes are what follows,
so the loss is to blame. Not when the node has shown a sign of life after the first crash: then that came by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from rankwatch.contract.enums import CulpritClass, VerdictKind
from rankwatch.contract.messages import ProcessEvent
from rankwatch_monitor.core import nodes
from rankwatch_monitor.core.hang.verdict import Culprit, Verdict
from rankwatch_monitor.core.job import Job, Node, NodeLoss

ON_ITS_WAY: Final = 0.25
"""Seconds a message may take: so long after what followed from its end may the last word of a lost node come."""
UNSTATED: Final = "its launcher no longer answers the others"


class LostNode(NamedTuple):
    """A lost node as the cause of an incident."""

    host: str
    ranks: tuple[int, ...]
    since: float
    reason: str


def declare(job: Job, event: ProcessEvent, at: float) -> None:
    """Launchers have given a node up; ``at`` is when."""
    node = job.nodes.get(event.lost_node or "")
    if node is None or node.lost is not None or node.ended is not None:
        return
    if event.attempt < job.attempt and node.ranks:
        return  # it was said of an attempt that is over, and the node is back
    columns = job.columns
    ranks = node.ranks or node.former
    words = [node.seen]
    if node.ranks:
        words += [float(columns.last_heard_R[r]) for r in node.ranks if r < len(columns)]
    since = float(min(np.nanmax(words), at))
    said = event.reason.rstrip(". ")
    reason = said.partition(" is lost: ")[2] or said or UNSTATED  # the launchers' own sentence names the node, too
    node.lost = NodeLoss(job.attempt if node.ranks else node.attempt, tuple(sorted(ranks)), since, reason)


def merge(job: Job, verdicts: list[Verdict], now: float) -> list[Verdict]:
    """The verdicts on a job's ranks, with those on lost nodes in place of what each of their ranks did by itself."""
    lost: dict[int, Verdict] = {}
    for name, node in job.nodes.items():
        if node.lost is not None:
            lost.update(_declared(job, name, node, verdicts, now))
    lost.update(_silent_together(job, verdicts, now))
    others = [v for v in verdicts if v.rank not in lost]
    return sorted([*others, *lost.values()], key=lambda v: v.rank) if lost else verdicts


def sentence(job: Job, name: str) -> str:
    """``node host-1 is lost with ranks 2, 3: nothing was heard of its launcher for 20 s``."""
    lost = job.nodes[name].lost
    assert lost is not None
    ranks = f" with {nodes.format_ranks(lost.ranks)}" if lost.ranks else ""
    return f"node {nodes.title(job, name)} is lost{ranks}: {lost.reason}"


def causes(job: Job, attempt: int, culprits: Sequence[Culprit], began: float) -> list[LostNode]:
    """Node losses of an earlier attempt that explain trouble there which ``began`` then and was blamed on others."""
    return [
        LostNode(node.registration.host, node.lost.ranks, node.lost.since, sentence(job, name))
        for name, node in job.nodes.items()
        if node.lost is not None and node.lost.attempt == attempt and _explains(node.lost, culprits, began)
    ]


def _explains(lost: NodeLoss, culprits: Sequence[Culprit], began: float) -> bool:
    crashed_first = any(c.rank in lost.ranks and c.kind is CulpritClass.DEAD for c in culprits)
    return not crashed_first and lost.since <= began + ON_ITS_WAY


def _declared(job: Job, name: str, node: Node, verdicts: Sequence[Verdict], now: float) -> dict[int, Verdict]:
    lost = node.lost
    assert lost is not None
    if lost.attempt != job.attempt:
        return {}
    exits = {v.rank: v for v in verdicts if v.kind is VerdictKind.PROCESS_EXITED}
    # Whoever told of an exit was there to tell it.
    first = not any(v.rank in lost.ranks or v.since + ON_ITS_WAY < lost.since for v in exits.values())
    said = sentence(job, name) if first else ""
    ranks = [r for r in lost.ranks if r < len(job.columns) and not job.columns.shut_down_R[r] and r not in exits]
    elapsed = max(0.0, now - lost.since)
    return {r: Verdict(VerdictKind.NODE_LOST, r, None, 0.0, elapsed, lost.since, node_loss=said) for r in ranks}


def _silent_together(job: Job, verdicts: Sequence[Verdict], now: float) -> dict[int, Verdict]:
    """Ranks that fell silent together with their launcher.

    Their last words were told at different times within an export interval: once one of them is past the limit, and
    launcher and ranks are well on the way to it, the whole node is lost.
    """
    silent = {v.rank: v for v in verdicts if v.kind is VerdictKind.SILENT}
    limit = job.limits.silence
    if not silent or limit is None:
        return {}
    last_heard_R = np.fmax(job.columns.last_heard_R, job.silence_baseline)
    lost: dict[int, Verdict] = {}
    for node in job.nodes.values():
        of_node = np.array(
            [r for r in node.ranks if r < len(last_heard_R) and not job.columns.shut_down_R[r]], dtype=np.int64
        )
        first = next((silent[r] for r in of_node.tolist() if r in silent), None)
        last_word = max(node.seen, float(np.max(last_heard_R[of_node], initial=0.0)))
        if first is None or node.ended is not None or node.lost is not None or now - last_word <= limit / 2:
            continue
        for rank in of_node.tolist():
            since = float(last_heard_R[rank])
            lost[rank] = first._replace(kind=VerdictKind.NODE_LOST, rank=rank, elapsed=now - since, since=since)
    return lost
