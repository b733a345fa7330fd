"""Whose work costs the job how much: ranks, nodes and stages as candidates, re-timed through the pipeline. Pure.

A *candidate* is a set of ranks that may be slow for one reason: a rank, the ranks of a node, those of a stage. Its
*excess* is what its members take beyond ranks that should do the same and are not members: else of two nodes each would
be the other one's measure. Members without such a peer, as those of a node that holds whole stages, are measured by the
other stages.

Its *loss* is by how much the step would be shorter with its members at the speed of the others. In a pipeline that is
less than the excess, for part of it disappears in waiting that is there anyway. A replica with work W_s in stage s and
m microbatches takes, by 1F1B, until its busiest stage has begun, worked, and drained:

    T = max over s of [ W_s + B_s/m + max(0, A_s - (P - 1 - s) F_s)/m + max(0, A_s - (P - 1 - s) (W_s - F_s))/m ]

with B_s and A_s the work of the stages before and after s, and F_s the forward part of W_s. The stages before s must
have passed it the first microbatch and take the last one from it. While those after s have the first microbatch, s
works forward on those that it may be ahead; while they have the last one, backward on as many. Replicas meet in the
exchange of gradients, so the slowest one counts.

Shapes: R ranks, D replicas, P stages, H nodes, K chosen ranks. Times are seconds of one step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from rankwatch.contract.semconv import POINT_TO_POINT
from rankwatch_monitor.core.ranks import Bools, Floats, Ints
from rankwatch_monitor.core.straggler.lateness import COMMUNICATION, OWN, Lateness
from rankwatch_monitor.core.straggler.peers import Layout, group_medians

FORWARD: Final = 1.0 / 3.0
"""The part of a microbatch's work that is forward: backward takes twice as long."""
FEW_NODES: Final = 8
"""Nodes up to which a node's peers are those of the others: with more, one hardly counts in the median of all."""
LEAST_MEMBERS: Final = 0.25
"""A node is as slow as its members that are slower than this part of them: one slow rank is no slow node."""
MOST_STAGES: Final = 256
"""Of a pipeline: a layout of more stages, or of four times as many places as ranks, is taken for no layout at all."""
MOST_SLOW: Final = 4096
"""Ranks whose loss is computed through the pipeline, the latest ones."""
MOST_NODES: Final = 64
"""Nodes that are measured by the ranks of the others in one window, the latest ones; a quarter of them where the job
has 131,072 ranks, of which each takes 0.02 s."""
_RANKS_OF_NODES: Final = 1 << 21
PAIRS: Final = "send-recv/stage"
"""Begins the name of the process group of two neighbouring stages."""


class Pipeline(NamedTuple):
    """Where each rank is in the parallel layout, numbered from 0."""

    stage_R: Ints
    replica_R: Ints
    stages: int
    replicas: int
    microbatches: float
    """As many as the sends and receives show; infinity where there are none: a loss is then an upper bound."""

    @classmethod
    def of(cls, layout: Layout, calls: Mapping[str, int]) -> Pipeline:
        """Derive it from the layout and from how often each process group communicates in a step.

        Ranks whose replica is unknown are counted within their stage, as all frameworks number them.
        """
        numbers, stage_R = np.unique(layout.pipeline_R, return_inverse=True)
        stage_R = stage_R.astype(np.int64).ravel()
        if (layout.data_R >= 0).all():
            _, replica_R = np.unique(layout.data_R, return_inverse=True)
        else:
            tensors = int(layout.tensor_R.max(initial=0)) + 1
            order_R = np.argsort(stage_R, kind="stable")
            first_P = np.searchsorted(stage_R[order_R], np.arange(len(numbers)))
            replica_R = np.empty_like(stage_R)
            replica_R[order_R] = (np.arange(len(stage_R)) - first_P[stage_R[order_R]]) // max(1, tensors)
        replica_R = replica_R.astype(np.int64).ravel()
        if len(numbers) > MOST_STAGES or len(numbers) * (int(replica_R.max(initial=0)) + 1) > 4 * len(stage_R) + 4:
            nowhere_R = np.zeros_like(stage_R)
            return cls(nowhere_R, nowhere_R, 1, 1, np.inf)
        pairs = [count for group, count in calls.items() if group.startswith(PAIRS)]
        others = [count / 2 for group, count in calls.items() if group == POINT_TO_POINT]
        microbatches = max(1.0, min([*pairs, *others], default=np.inf) / 2.0)
        return cls(stage_R, replica_R, len(numbers), int(replica_R.max(initial=0)) + 1, microbatches)

    def seconds(self, work_KP: Floats) -> Floats:
        """Seconds that replicas with this work in their stages take; shape (K,)."""
        before_KP = np.cumsum(work_KP, axis=-1) - work_KP
        after_KP = work_KP.sum(axis=-1, keepdims=True) - before_KP - work_KP
        ahead_KP = np.arange(self.stages - 1, -1, -1) * work_KP
        waits_KP = [np.maximum(0.0, after_KP - part * ahead_KP) for part in (FORWARD, 1.0 - FORWARD)]
        found_K: Floats = (work_KP + (before_KP + sum(waits_KP)) / self.microbatches).max(axis=-1)
        return found_K

    def levels(self, work_R: Floats, chosen_R: Bools) -> Floats:
        """The usual work of each stage, by the chosen ranks; that of the other stages where none is. Shape (P,)."""
        masked_R1 = np.where(chosen_R, work_R, np.nan)[:, None]
        level_P: Floats = group_medians(masked_R1, self.stage_R)[:-1, 0]
        if np.isnan(level_P).any() and not np.isnan(level_P).all():
            level_P = np.where(np.isnan(level_P), np.nanmedian(level_P), level_P)
        return level_P


def against_stages(
    pipeline: Pipeline, parts_RP: Floats, late: Lateness, group_R: Ints
) -> tuple[Lateness, Floats, Bools]:
    """Measure ranks with one peer or none by the other stages.

    Of two peers one may be the unusual one, and fast: the other one is late by no more than it is behind the other
    stages. Returns the lateness; the same of all ranks, by the other stages for those without a peer; and which these
    are.
    """
    known_R = ~np.isnan(late.work_R)
    size_G = np.bincount(group_R[known_R & (group_R >= 0)], minlength=int(group_R.max(initial=0)) + 1)
    size_R = np.where(known_R, np.where(group_R >= 0, size_G[group_R], 1), 0)
    alone_R = size_R == 1
    if pipeline.stages < 2 or not (known_R & (size_R <= 2)).any():
        return late, late.late_R, alone_R
    # The least of each stage, so that a node whose ranks are slow in all stages is not its own measure.
    least_P = np.full(pipeline.stages, np.inf)
    np.minimum.at(least_P, pipeline.stage_R[known_R], late.work_R[known_R])
    least_P = np.where(np.isfinite(least_P), least_P, np.nan)
    others_P = np.array([np.nanmedian(np.delete(least_P, stage)) for stage in range(pipeline.stages)])
    by_stages_R = late.work_R - others_P[pipeline.stage_R]
    late_R = np.where(size_R == 2, np.fmin(late.late_R, by_stages_R), late.late_R)
    excess_RP = late.excess_RP
    if alone_R.any():
        own_RP = parts_RP[:, list(OWN)]
        excess_RP = np.where(alone_R[:, None], own_RP - np.nanmedian(own_RP, axis=0), excess_RP)
    late = late._replace(late_R=late_R, excess_RP=excess_RP)
    return late, np.where(alone_R, by_stages_R, late_R), alone_R


def losses(pipeline: Pipeline, work_R: Floats, late_R: Floats, level_P: Floats, slow_R: Bools) -> Floats:
    """By how much the step is longer for each slow rank alone; its lateness for the others. Shape (R,)."""
    lost_R = late_R.copy()
    rank_K = np.flatnonzero(slow_R)
    if len(rank_K) > MOST_SLOW:
        rank_K = np.sort(rank_K[np.argpartition(late_R[rank_K], -MOST_SLOW)[-MOST_SLOW:]])
    if pipeline.stages < 2 or np.isinf(pipeline.microbatches) or not len(rank_K) or np.isnan(level_P).any():
        return lost_R
    stage_K, row_K = pipeline.stage_R[rank_K], np.arange(len(rank_K))
    work_KP = np.repeat(level_P[None], len(rank_K), axis=0)
    work_KP[row_K, stage_K] = work_R[rank_K] - late_R[rank_K]
    usual_K = pipeline.seconds(work_KP)
    work_KP[row_K, stage_K] = work_R[rank_K]
    lost_R[rank_K] = pipeline.seconds(work_KP) - usual_K
    return lost_R


def stage_loss(pipeline: Pipeline, work_R: Floats, chosen_R: Bools) -> tuple[int, float]:
    """The busiest stage by the chosen ranks, and by how much the step is longer for what it does beyond the others.

    One fast rank of two makes no other stage heavy: of two values in the middle the higher one counts for the others.
    """
    level_P = pipeline.levels(work_R, chosen_R)
    present_P = np.bincount(pipeline.stage_R[chosen_R], minlength=pipeline.stages) > 0
    stage = int(np.argmax(np.where(present_P, level_P, -np.inf)))
    for other in np.flatnonzero(present_P):
        ordered = np.sort(work_R[chosen_R & (pipeline.stage_R == other)])
        level_P[other] = ordered[(len(ordered) - 1) // 2 if other == stage else len(ordered) // 2]
    evened_P = level_P.copy()
    evened_P[stage] = np.median(np.delete(level_P, stage))
    return stage, float(np.diff(pipeline.seconds(np.stack([evened_P, level_P])))[0])


def uneven_loss(pipeline: Pipeline, work_R: Floats, level_P: Floats) -> float:
    """By how much the step is longer for what replicas do beyond the usual work of their stages."""
    work_DP = np.full((pipeline.replicas, pipeline.stages), -np.inf)
    known_R = ~np.isnan(work_R)
    np.maximum.at(work_DP, (pipeline.replica_R[known_R], pipeline.stage_R[known_R]), work_R[known_R])
    work_DP = np.where(np.isfinite(work_DP), work_DP, level_P)
    return float(pipeline.seconds(work_DP).max() - pipeline.seconds(level_P[None])[0])


class NodeExcess(NamedTuple):
    """How slow each node is as a whole; NaN where its ranks have no measure. Shape (H,)."""

    late_H: Floats
    lost_H: Floats
    whole_H: Bools
    """It holds the whole of one stage and nothing else: its work cannot be distinguished from the stage's."""

    @classmethod
    def unknown(cls, nodes: int) -> NodeExcess:
        """Of so many nodes."""
        return cls(np.full(nodes, np.nan), np.full(nodes, np.nan), np.zeros(nodes, dtype=np.bool_))


def node_excess(
    pipeline: Pipeline, parts_RP: Floats, late: Lateness, group_R: Ints, node_R: Ints, slowdown: float
) -> NodeExcess:
    """Measure each node by the ranks of the others.

    Args:
        late: of each rank against its peers.
        node_R: the number of each rank's node; -1: unknown.
        slowdown: fraction of a step from which on a loss is computed.
    """
    known_R = ~np.isnan(late.work_R) & (node_R >= 0)
    nodes = int(node_R.max(initial=-1)) + 1
    found = NodeExcess.unknown(nodes)
    here_H = np.bincount(node_R[known_R], minlength=nodes)
    if np.count_nonzero(here_H) < 2 or here_H.max() < 2:
        return found
    step = float(np.median(late.step_R[known_R]))
    few = np.count_nonzero(here_H) <= FEW_NODES
    for node in np.flatnonzero(here_H >= 2) if few else _worth_a_look(late.late_R, node_R, known_R, slowdown * step):
        member_R = known_R & (node_R == node)
        excess_R, level_P = _beyond_others(pipeline, parts_RP, late.work_R, group_R, known_R & ~member_R, member_R)
        excess_M = excess_R[member_R]
        if 2 * np.count_nonzero(~np.isnan(excess_M)) < len(excess_M):
            continue
        stages = np.unique(pipeline.stage_R[member_R])
        found.whole_H[node] = len(stages) == 1 and np.array_equal(known_R & (pipeline.stage_R == stages[0]), member_R)
        found.late_H[node] = np.nanquantile(excess_M, LEAST_MEMBERS, method="lower")
        if found.late_H[node] > slowdown * step:
            found.lost_H[node] = _lost_together(pipeline, level_P, np.where(member_R, excess_R, np.nan))
        else:
            found.lost_H[node] = found.late_H[node]
    return found


def _worth_a_look(late_R: Floats, node_R: Ints, known_R: Bools, least: float) -> Sequence[int]:
    """The nodes most of whose ranks are late."""
    late_H = np.bincount(node_R[known_R & (late_R > least)], minlength=int(node_R.max()) + 1)
    here_H = np.bincount(node_R[known_R], minlength=len(late_H))
    found_N = np.flatnonzero((here_H >= 2) & (late_H >= (1.0 - LEAST_MEMBERS) * here_H))
    most = min(MOST_NODES, max(MOST_NODES // 4, _RANKS_OF_NODES // len(node_R)))
    if len(found_N) > most:
        late_R = np.where(known_R & (late_R > least), late_R, 0.0)
        sum_H = np.bincount(node_R[known_R], weights=late_R[known_R], minlength=len(late_H))
        found_N = np.sort(found_N[np.argsort((sum_H / np.maximum(1, here_H))[found_N], kind="stable")[-most:]])
    found: list[int] = found_N.tolist()
    return found


def _beyond_others(
    pipeline: Pipeline, parts_RP: Floats, work_R: Floats, group_R: Ints, others_R: Bools, member_R: Bools
) -> tuple[Floats, Floats]:
    """What members of a candidate take beyond ranks that are none (R), and the level of each stage without them (P)."""
    measured_RX = np.where(others_R[:, None], np.column_stack([parts_RP[:, COMMUNICATION], work_R]), np.nan)
    usual_RX = group_medians(measured_RX, group_R)[group_R]
    others_G = np.bincount(group_R[others_R & (group_R >= 0)], minlength=int(group_R.max(initial=-1)) + 1)
    paired_R = group_R >= 0
    paired_R[paired_R] = others_G[group_R[paired_R]] == 2
    if paired_R.any():  # one of two may be the unusual one, and fast
        others = np.flatnonzero(paired_R & others_R)
        both_G2X = measured_RX[others[np.argsort(group_R[others], kind="stable")]].reshape(-1, 2, 2)
        usual_GX = np.full((len(others_G), 2), np.nan)
        usual_GX[others_G == 2] = np.column_stack([both_G2X[:, :, 0].min(axis=1), both_G2X[:, :, 1].max(axis=1)])
        usual_RX[paired_R] = usual_GX[group_R[paired_R]]
    excess_R = np.minimum(usual_RX[:, 0] - parts_RP[:, COMMUNICATION], work_R - usual_RX[:, 1])
    level_P = pipeline.levels(work_R, others_R)
    alone_R = member_R & np.isnan(usual_RX[:, 1])
    if pipeline.stages > 1 and alone_R.any():
        by_stage_R = work_R - level_P[pipeline.stage_R]
        # What one stage has to do beyond the others is its own: the node's is what all of its stages share.
        excess_R[alone_R] = np.nanmin(by_stage_R[alone_R])
    return np.where(member_R, excess_R, np.nan), level_P


def _lost_together(pipeline: Pipeline, level_P: Floats, excess_R: Floats) -> float:
    """By how much the step is longer for all ranks with an excess together."""
    rank_K = np.flatnonzero(~np.isnan(excess_R))
    if pipeline.stages < 2 or np.isinf(pipeline.microbatches):
        return float(np.median(excess_R[rank_K]))
    work_DP = np.repeat(level_P[None], pipeline.replicas, axis=0)
    cell_K = pipeline.replica_R[rank_K] * pipeline.stages + pipeline.stage_R[rank_K]
    excess_C = group_medians(excess_R[rank_K][:, None], cell_K)[:-1, 0]
    extra_DP = np.zeros_like(work_DP)
    extra_DP.ravel()[: len(excess_C)] = np.nan_to_num(excess_C)
    usual = float(pipeline.seconds(level_P[None])[0])
    return float(pipeline.seconds(work_DP + extra_DP).max()) - usual
