"""Peer groups: which ranks are compared with each other, and the medians over them. Pure.

Shapes: R ranks, K measurements of each rank, G groups, M members of a group.

Ranks of different pipeline stages, or at different tensor or expert coordinates, do different work by design; a rank is
compared with those that should do the same: its data-parallel peers. Where there are too few of them the group is
widened, but never over pipeline stages, since a stage may be heavier than the others for good reasons.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from rankwatch_monitor.core.ranks import Bools, Floats, Ints

MIN_PEERS: Final = 4
"""Ranks of a group below which it is widened, and its median means little: of two, the one that waits in a section
looks as slow as the one that is waited for."""
NO_PEERS: Final = -1
SAMPLE: Final = 2_048
"""Ranks from which all references together are computed: the median of m ranks errs by 1.25 / sqrt(m) of the noise."""
MIN_SAMPLE: Final = 64
"""Of each group at least."""
LARGE: Final = 1_024
"""Ranks of a group above which it does not matter whether the median includes the rank itself."""
BLOCK: Final = 65_536
"""Values sorted at once, at least one group: they stay in the processor's cache."""


class Layout(NamedTuple):
    """Parallel coordinates of each rank, -1 where unknown; each of shape (R,)."""

    data_R: Ints
    tensor_R: Ints
    pipeline_R: Ints
    expert_R: Ints

    @classmethod
    def unknown(cls, ranks: int) -> Layout:
        """A layout of -1."""
        return cls(*(np.full(ranks, -1, dtype=np.int64) for _ in range(4)))


class Places(NamedTuple):
    """The groupings of a layout: of each rank the number of its stage, and of its (stage, tensor, expert)."""

    stage_R: Ints
    fine_R: Ints

    @classmethod
    def of(cls, layout: Layout) -> Places:
        """Number the places of a layout."""
        fine_R = _numbered(layout.pipeline_R, layout.tensor_R, layout.expert_R)
        return cls(_numbered(layout.pipeline_R), fine_R)


def groups(places: Places, present_R: Bools) -> Ints:
    """The number of each rank's peer group, counted from 0; :data:`NO_PEERS` for ranks that have none. Shape (R,).

    Of the groupings (stage, tensor, expert) and (stage), the finest counts in which a rank has :data:`MIN_PEERS` peers,
    itself included; where there is none, the (stage) group of at least two.
    """
    stage_R, fine_R = places
    found_R = np.full(len(present_R), NO_PEERS, dtype=np.int64)
    if not present_R.any():
        return found_R
    stages = int(stage_R.max()) + 1
    in_stage = np.bincount(stage_R[present_R], minlength=stages)
    in_fine = np.bincount(fine_R[present_R], minlength=int(fine_R.max()) + 1)
    wide_R = in_stage[stage_R] >= 2
    found_R[wide_R] = stage_R[wide_R]
    narrow_R = in_fine[fine_R] >= MIN_PEERS
    found_R[narrow_R] = fine_R[narrow_R] + stages
    # Where some ranks of a stage have no fine group, all of it is one group: else they were compared with a part of it.
    narrow_in_stage = np.bincount(stage_R[present_R & narrow_R], minlength=stages)
    lacking_in_stage = np.bincount(stage_R[present_R & ~narrow_R], minlength=stages)
    mixed_R = ((narrow_in_stage > 0) & (lacking_in_stage > 0))[stage_R]
    found_R[mixed_R] = stage_R[mixed_R]
    found_R[~present_R] = NO_PEERS
    known_R = found_R != NO_PEERS
    used = np.bincount(found_R[known_R]) > 0
    found_R[known_R] = (np.cumsum(used) - 1)[found_R[known_R]]
    return found_R


def in_large_group(group_R: Ints) -> Bools:
    """Ranks whose group has at least :data:`MIN_PEERS` members; shape (R,)."""
    if not len(group_R) or group_R.max() < 0:
        return np.zeros(len(group_R), dtype=np.bool_)
    size_G = np.bincount(group_R[group_R >= 0], minlength=int(group_R.max()) + 1)
    return (group_R >= 0) & (size_G[group_R] >= MIN_PEERS)


def _numbered(*coordinates: Ints) -> Ints:
    """One number for each different combination of coordinates."""
    number_R = np.zeros(len(coordinates[0]), dtype=np.int64)
    for each_R in coordinates:
        span = int(each_R.max(initial=-1)) + 2
        _, number_R = np.unique(number_R * span + each_R + 1, return_inverse=True)
    return number_R.astype(np.int64)


def median_of_others(values_RK: Floats, group_R: Ints) -> Floats:
    """For each rank the median over the *other* ranks of its group, NaN values left out; NaN where there are none.

    Without itself, so that of two ranks each is compared with the other one. Shape (R,) or (R, K).
    """
    if values_RK.ndim == 1:
        return median_of_others(values_RK[:, None], group_R)[:, 0]
    found_RK = np.full(values_RK.shape, np.nan)
    large_G = np.bincount(group_R[group_R >= 0]) > LARGE
    if large_G.any():
        is_large_R = (group_R >= 0) & large_G[group_R]
        middle_RK = references(values_RK, np.where(is_large_R, group_R, NO_PEERS))
        found_RK = np.where(np.isnan(values_RK), np.nan, middle_RK)
        group_R = np.where(is_large_R, NO_PEERS, group_R)
    for _, members_GM in _by_size(group_R):
        for block_GM in _blocks(members_GM, values_RK.shape[1]):
            inside_GM = block_GM >= 0
            value_GKM = _values(values_RK, block_GM)
            found_GKM = _middle_of_others(value_GKM)
            found_RK[block_GM[inside_GM]] = found_GKM.transpose(0, 2, 1)[inside_GM]
    return found_RK


def _middle_of_others(value_GKM: Floats) -> Floats:
    """For each value the median over the others along the last axis, from three order statistics."""
    sorted_GKM = np.sort(value_GKM, axis=-1)  # NaN comes last
    known_GK = np.sum(~np.isnan(sorted_GKM), axis=-1, keepdims=True)
    half_GK = known_GK // 2

    def at(place_GK: Ints) -> Floats:
        found_GK: Floats = np.take_along_axis(sorted_GKM, np.clip(place_GK, 0, value_GKM.shape[-1] - 1), axis=-1)
        return found_GK

    below, middle, above = at(half_GK - 1), at(half_GK), at(half_GK + 1)
    # An odd number of ranks leaves an even number of others, whose middle two depend on the side a rank is on.
    odd_GK = known_GK % 2 == 1
    of_lower = np.where(odd_GK, 0.5 * (middle + above), middle)
    of_middle = np.where(odd_GK, 0.5 * (below + above), below)
    of_higher = np.where(odd_GK, 0.5 * (below + middle), below)
    found_GKM: Floats = np.where(value_GKM < middle, of_lower, of_middle)
    np.copyto(found_GKM, of_higher, where=value_GKM > middle)
    np.copyto(found_GKM, np.nan, where=np.isnan(value_GKM) | (known_GK < 2))
    return found_GKM


def references(values_RK: Floats, group_R: Ints) -> Floats:
    """The median over each rank's group; shape (R, K), NaN where the group has no value."""
    return group_medians(values_RK, group_R)[group_R]  # NO_PEERS is -1: the last row, which is NaN


def group_medians(values_RK: Floats, group_R: Ints) -> Floats:
    """The median of each group; shape (G + 1, K), the last row NaN.

    A large group is represented by a fixed sample of its ranks, so large that the reference is far more certain than
    what is compared with it (see :data:`SAMPLE`).
    """
    count = int(group_R.max(initial=-1)) + 1
    median_GK = np.full((count + 1, values_RK.shape[1]), np.nan, dtype=values_RK.dtype)
    used = int(np.count_nonzero(np.bincount(group_R[group_R >= 0])))
    most = max(MIN_SAMPLE, SAMPLE // max(used, 1))
    for groups_G, members_GM in _by_size(group_R, most):
        done = 0
        for block_GM in _blocks(members_GM, values_RK.shape[1]):
            median_GK[groups_G[done : done + len(block_GM)]] = _middle(_values(values_RK, block_GM))
            done += len(block_GM)
    return median_GK


def column_medians(values_RK: Floats) -> Floats:
    """The median of each column without NaN; shape (K,). Faster than numpy's nanmedian, which loops in Python."""
    if not len(values_RK):
        return np.full(values_RK.shape[1], np.nan)
    return _middle(np.ascontiguousarray(values_RK.T))


def _middle(values_KR: Floats) -> Floats:
    """The median along the last axis without NaN."""
    sorted_KR = np.sort(values_KR, axis=-1)  # NaN comes last
    known_K = np.sum(~np.isnan(sorted_KR), axis=-1, keepdims=True)
    low_K = np.take_along_axis(sorted_KR, np.maximum(known_K - 1, 0) // 2, axis=-1)
    high_K = np.take_along_axis(sorted_KR, np.minimum(known_K // 2, values_KR.shape[-1] - 1), axis=-1)
    return np.where(known_K > 0, 0.5 * (low_K + high_K), np.nan)[..., 0]


def _by_size(group_R: Ints, most: int | None = None) -> Iterator[tuple[Ints, Ints]]:
    """Groups of about the same size together: their numbers (G,) and members (G, M), padded with -1.

    Avoids a loop over many small groups. ``most``: of larger groups only so many ranks, evenly spread.
    """
    few = group_R.max(initial=-1) < np.iinfo(np.int16).max  # numpy sorts small integers much faster
    order = np.argsort(group_R.astype(np.int16) if few else group_R, kind="stable")
    order = order[np.searchsorted(group_R[order], 0) :]
    if not len(order):
        return
    size_G = np.bincount(group_R[order])
    start_G = np.cumsum(size_G) - size_G
    shown_G = size_G if most is None else np.minimum(size_G, most)
    class_G = np.ceil(np.log2(np.maximum(shown_G, 1)))
    for each in np.unique(class_G[size_G > 0]):
        groups_G = np.flatnonzero((class_G == each) & (size_G > 0))
        place_M = np.arange(int(shown_G[groups_G].max()))
        last_G1, step_G1 = shown_G[groups_G, None], size_G[groups_G, None]
        # Where all are shown this is the place itself, else evenly spread from the first to the last.
        at_GM = np.minimum(place_M, last_G1 - 1) * (step_G1 - 1) // np.maximum(last_G1 - 1, 1)
        yield groups_G, np.where(place_M < last_G1, order[start_G[groups_G, None] + at_GM], -1)


def _blocks(members_GM: Ints, columns: int) -> Iterator[Ints]:
    """Splits groups into blocks whose intermediate arrays stay small."""
    rows = max(1, BLOCK // max(1, members_GM.shape[1] * columns))
    for first in range(0, len(members_GM), rows):
        yield members_GM[first : first + rows]


def _values(values_RK: Floats, members_GM: Ints) -> Floats:
    """The members' values; shape (G, K, M), NaN in the padding."""
    value_GMK = values_RK[members_GM]
    value_GMK[members_GM < 0] = np.nan
    return np.ascontiguousarray(value_GMK.transpose(0, 2, 1))
