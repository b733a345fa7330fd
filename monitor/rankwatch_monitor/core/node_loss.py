"""Lost nodes: verdicts on all ranks of a node instead of one verdict per rank.

=====================================================  =============================  =================================
detected by                                            after                          acted on by
=====================================================  =============================  =================================
its launcher, which has failed while others go on      :data:`ALONE_AFTER`            the launchers, by themselves
(it lost the store), and leaves no rank behind
the other launchers, which receive nothing of it       at once                        the launchers, by themselves
(event ``node_lost``); the verdict has ``node_loss``
the monitor, which receives nothing of its launcher    ``silence_timeout``            the policy
nor of its ranks, while others report; also where
it has heard none of them yet, as after its restart
=====================================================  =============================  =================================

A lost node makes others crash: their collectives fail when the connection breaks. The loss is to blame for those
crashes, unless the node gave a sign of life after the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from rankwatch.contract.enums import ProcessEventKind, VerdictKind
from rankwatch.contract.messages import ProcessEvent
from rankwatch_monitor.core import nodes
from rankwatch_monitor.core.cause import Exited, NodeLost, Some
from rankwatch_monitor.core.hang.verdict import Culprit, Verdict, Verdicts, joined
from rankwatch_monitor.core.job import Job, Node, NodeLoss
from rankwatch_monitor.core.ranks import EXITED, live_ranks, silence_limit, silent_for

ON_ITS_WAY: Final = 0.25
"""Seconds a message may take: the last message of a lost node may arrive this long after what its loss caused."""
ALONE_AFTER: Final = 10.0
"""Seconds after the failure of a launcher, for which it states no cause, until which others may fail for the same."""
UNSTATED: Final = "its launcher no longer answers the others"


class LostNode(NamedTuple):
    """A lost node as the cause of an incident."""

    host: str
    ranks: tuple[int, ...]
    since: float
    cause: NodeLost


def declare(job: Job, event: ProcessEvent, at: float) -> None:
    """Apply the launchers' report that a node was lost; ``at`` is when."""
    node = job.nodes.get(event.lost_node or "")
    if node is None or node.lost is not None or node.ended is not None:
        return
    if event.attempt < job.attempt and node.ranks:
        return  # the report is about an attempt that is over, and the node is back
    columns = job.columns
    ranks = node.ranks or node.former
    signs = [node.seen]
    if node.ranks:
        signs += [float(columns.last_heard_R[r]) for r in node.ranks if r < len(columns)]
    since = float(min(np.nanmax(signs), at))
    reason = event.reason.rstrip(". ") or UNSTATED
    node.lost = NodeLoss(job.attempt if node.ranks else node.attempt, tuple(sorted(ranks)), since, reason)


def merge(job: Job, verdicts: Verdicts, now: float) -> Verdicts:
    """Replace the verdicts on ranks of lost nodes by verdicts on the loss."""
    lost: dict[int, Verdict] = {}
    for name, node in job.nodes.items():
        if node.lost is not None:
            lost.update(_declared(job, name, node, verdicts, now))
        elif _failed_alone(job, node, now):
            assert node.ended is not None
            ranks = [r for r in node.ranks if r < len(job.columns)]
            cause = NodeLost(nodes.title(job, name), Some.of(sorted(ranks)), node.ended.reason.rstrip(". ") or UNSTATED)
            of_rank = Verdict(VerdictKind.NODE_LOST, 0, None, 0.0, now - node.seen, node.seen, node_loss=cause)
            lost.update({r: of_rank._replace(rank=r) for r in ranks})
    lost.update(_silent_together(job, verdicts, now))
    if not lost:
        return verdicts
    others = verdicts.where(~np.isin(verdicts.rank_V, list(lost)))
    return joined(others, Verdicts.of(lost.values()))


def cause_of(job: Job, name: str) -> NodeLost:
    """The loss of a node as the cause of what its ranks did: ``node host-1 is lost with ranks 2, 3: ...``."""
    lost = job.nodes[name].lost
    assert lost is not None
    return NodeLost(nodes.title(job, name), Some.of(sorted(lost.ranks)), lost.reason)


def causes(job: Job, attempt: int, culprits: Sequence[Culprit], began: float) -> list[LostNode]:
    """Node losses of an earlier attempt that explain trouble there which ``began`` then and was blamed on others."""
    return [
        LostNode(node.registration.host, node.lost.ranks, node.lost.since, cause_of(job, name))
        for name, node in job.nodes.items()
        if node.lost is not None and node.lost.attempt == attempt and _explains(node.lost, culprits, began)
    ]


def _explains(lost: NodeLoss, culprits: Sequence[Culprit], began: float) -> bool:
    crashed_first = any(c.rank in lost.ranks and isinstance(c.cause, Exited) for c in culprits)
    return not crashed_first and lost.since <= began + ON_ITS_WAY


def _failed_alone(job: Job, node: Node, now: float) -> bool:
    end = node.ended
    failed = end is not None and end.kind is ProcessEventKind.FAILED and not end.cause and end.attempt == job.attempt
    return failed and now - node.seen > ALONE_AFTER


def _declared(job: Job, name: str, node: Node, verdicts: Verdicts, now: float) -> dict[int, Verdict]:
    lost = node.lost
    assert lost is not None
    if lost.attempt != job.attempt:
        return {}
    exits = {v.rank: v for v in verdicts.of_kinds(VerdictKind.PROCESS_EXITED)}
    # A launcher that reported an exit was alive then.
    first = not any(v.rank in lost.ranks or v.since + ON_ITS_WAY < lost.since for v in exits.values())
    cause = cause_of(job, name) if first else None
    ranks = [r for r in lost.ranks if r < len(job.columns) and not job.columns.shut_down_R[r] and r not in exits]
    elapsed = max(0.0, now - lost.since)
    return {r: Verdict(VerdictKind.NODE_LOST, r, None, 0.0, elapsed, lost.since, node_loss=cause) for r in ranks}


def _silent_together(job: Job, verdicts: Verdicts, now: float) -> dict[int, Verdict]:
    """Ranks that fell silent together with their launcher.

    Their last reports lie up to an export interval apart: once one rank is over the limit, and the launcher and the
    other ranks are past half of it, the whole node is lost.
    """
    limit = job.limits.silence
    if limit is None or not (quiet := [node for node in job.nodes.values() if now - node.seen > limit / 2]):
        return {}
    silent = {v.rank: v for v in verdicts.of_kinds(VerdictKind.SILENT)}
    columns, heard = job.columns, _any_heard(job, limit, now)
    last_heard_R = np.fmax(columns.last_heard_R, job.silence_since)
    lost: dict[int, Verdict] = {}
    for node in quiet:
        of_node = np.array([r for r in node.ranks if r < len(columns) and not columns.shut_down_R[r]], dtype=np.int64)
        first = next((silent[r] for r in of_node.tolist() if r in silent), None)
        last_sign = max(node.seen, float(np.max(last_heard_R[of_node], initial=0.0)))
        if heard and first is None and len(of_node) and not columns.reported_R[of_node].any():
            # Nothing was ever heard of its ranks, or not since the monitor was restarted: their launcher alone counts.
            first = _unheard(job, int(of_node[0]), limit, last_sign, now)
        if first is None or node.ended is not None or node.lost is not None or now - last_sign <= limit / 2:
            continue
        for rank in of_node.tolist():
            since = float(last_heard_R[rank])
            lost[rank] = first._replace(kind=VerdictKind.NODE_LOST, rank=rank, elapsed=now - since, since=since)
    return lost


def _any_heard(job: Job, limit: float, now: float) -> bool:
    """Whether some rank reports; if none does, the network to the monitor is the likelier cause."""
    fresh_R = silent_for(job.columns, now, job.silence_since) <= silence_limit(job.columns, limit / 2)
    return bool((live_ranks(job.columns) & fresh_R).any())


def _unheard(job: Job, rank: int, limit: float, last_sign: float, now: float) -> Verdict | None:
    elapsed = now - last_sign
    if elapsed <= limit or job.columns.process_R[rank] == EXITED:
        return None
    return Verdict(VerdictKind.SILENT, rank, None, limit, elapsed, last_sign, job.limits.silence_source)
