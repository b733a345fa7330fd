"""Which ranks are compared with each other, and the middle of them. Pure.

Shapes: R ranks, K anything that is measured of each rank.

Ranks of different pipeline stages, or at different tensor or expert coordinates, do different work by design; a rank is
compared with those that should do the same: its data-parallel peers. Where there are too few of them the group is
widened, but never over pipeline stages, since a stage may be heavier than the others for good reasons.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from rankwatch_monitor.core.columns import Bools, Floats, Ints

MIN_PEERS: Final = 4
"""Ranks of a group below which it is widened: the middle of three is as good as any of them."""
NO_PEERS: Final = -1
SAMPLE: Final = 2_048
"""Ranks that all references together are taken from. Of m of them, the median errs by 1.25 / sqrt(m) of the noise."""
SAMPLE_LEAST: Final = 64


class Layout(NamedTuple):
    """Parallel coordinates of each rank, -1 where they are not told; each of shape (R,)."""

    data_R: Ints
    tensor_R: Ints
    pipeline_R: Ints
    expert_R: Ints

    @classmethod
    def unknown(cls, ranks: int) -> Layout:
        """A layout of which nothing is known."""
        return cls(*(np.full(ranks, -1, dtype=np.int64) for _ in range(4)))


def groups(layout: Layout, present_R: Bools) -> Ints:
    """The number of each rank's peer group, counted from 0, and :data:`NO_PEERS` for ranks that have none; shape (R,).

    Of the groupings (stage, tensor, expert), (stage), the finest counts in which a rank has :data:`MIN_PEERS` peers,
    itself included; where there is none, the (stage) group of at least two.
    """
    fine_R = _numbered(layout.pipeline_R, layout.tensor_R, layout.expert_R)
    stage_R = _numbered(layout.pipeline_R)
    found_R = np.full(len(present_R), NO_PEERS, dtype=np.int64)
    if not present_R.any():
        return found_R
    in_stage = np.bincount(stage_R[present_R], minlength=int(stage_R.max()) + 1)
    in_fine = np.bincount(fine_R[present_R], minlength=int(fine_R.max()) + 1)
    offset = int(stage_R.max()) + 1
    wide_R = in_stage[stage_R] >= 2
    found_R[wide_R] = stage_R[wide_R]
    narrow_R = in_fine[fine_R] >= MIN_PEERS
    found_R[narrow_R] = fine_R[narrow_R] + offset
    found_R[~present_R] = NO_PEERS
    # Ranks of one stage that have no fine group must not be compared with a rest of it that lacks those who have one.
    mixed = np.unique(stage_R[present_R & narrow_R])
    partly_R = present_R & ~narrow_R & np.isin(stage_R, mixed)
    for stage in np.unique(stage_R[partly_R]):
        found_R[present_R & (stage_R == stage)] = stage
    known_R = found_R != NO_PEERS
    _, compact = np.unique(found_R[known_R], return_inverse=True)
    found_R[known_R] = compact
    return found_R


def _numbered(*coordinates: Ints) -> Ints:
    """One number for each different combination of coordinates."""
    number_R = np.zeros(len(coordinates[0]), dtype=np.int64)
    for each_R in coordinates:
        span = int(each_R.max(initial=-1)) + 2
        _, number_R = np.unique(number_R * span + each_R + 1, return_inverse=True)
    return number_R.astype(np.int64)


def median_of_others(values_R: Floats, group_R: Ints) -> Floats:
    """For each rank the median over the *other* ranks of its group; NaN where there are none. NaN values are left out.

    The rank itself is left out so that of two ranks each is compared with the other one.
    """
    found_R = np.full(len(values_R), np.nan)
    usable_R = ~np.isnan(values_R) & (group_R != NO_PEERS)
    ranks = np.flatnonzero(usable_R)
    if not len(ranks):
        return found_R
    order = ranks[np.lexsort((values_R[ranks], group_R[ranks]))]
    starts = np.flatnonzero(np.r_[True, np.diff(group_R[order]) != 0])
    sizes = np.diff(np.r_[starts, len(order)])
    start_i = np.repeat(starts, sizes)
    others_i = np.repeat(sizes, sizes) - 1
    place_i = np.arange(len(order)) - start_i
    sorted_i = values_R[order]

    def other(number_i: Ints) -> Floats:
        """The value of that number among the others of the group, in ascending order."""
        shifted_i = number_i + (number_i >= place_i)
        found_i: Floats = sorted_i[np.minimum(start_i + shifted_i, len(order) - 1)]
        return found_i

    middle_i = 0.5 * (other(np.maximum(others_i - 1, 0) // 2) + other(others_i // 2))
    found_R[order] = np.where(others_i > 0, middle_i, np.nan)
    return found_R


def references(values_RK: Floats, group_R: Ints) -> Floats:
    """The median over each group, for each rank of it; shape (R, K), NaN where the group knows nothing."""
    return group_medians(values_RK, group_R)[group_R]  # NO_PEERS is -1: the last row, which is NaN


def group_medians(values_RK: Floats, group_R: Ints) -> Floats:
    """The median of each group, one row a group and a last one of NaN.

    Of a large group a fixed sample of ranks stands for all: enough that the reference is far surer than what is
    compared with it (see :data:`SAMPLE`).
    """
    count = int(group_R.max(initial=-1)) + 1
    median_GK = np.full((count + 1, values_RK.shape[1]), np.nan, dtype=values_RK.dtype)
    most = max(SAMPLE_LEAST, SAMPLE // max(count, 1))
    order = np.argsort(group_R, kind="stable")
    bounds = np.searchsorted(group_R[order], np.arange(count + 1))
    for group in range(count):
        members = order[bounds[group] : bounds[group + 1]]
        if len(members) > most:
            members = members[np.linspace(0, len(members) - 1, most, dtype=np.int64)]
        median_GK[group] = column_medians(values_RK[members])
    return median_GK


def column_medians(values_RK: Floats) -> Floats:
    """The median of each column without NaN; shape (K,). numpy's nanmedian goes through Python for each column."""
    if not len(values_RK):
        return np.full(values_RK.shape[1], np.nan)
    sorted_KR = np.sort(np.ascontiguousarray(values_RK.T), axis=1)  # NaN comes last
    known_K = np.sum(~np.isnan(sorted_KR), axis=1)
    columns = np.arange(values_RK.shape[1])
    low_K = sorted_KR[columns, np.maximum(known_K - 1, 0) // 2]
    high_K = sorted_KR[columns, np.minimum(known_K // 2, len(values_RK) - 1)]
    return np.where(known_K > 0, 0.5 * (low_K + high_K), np.nan)
