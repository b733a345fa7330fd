"""Peer groups, and medians over the others of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwatch_monitor.core.straggler import peers
from rankwatch_monitor.core.straggler.peers import NO_PEERS, Layout, Places


def layout(ranks: int, *, tensor: int = 1, stages: int = 1) -> Layout:
    """Tensor coordinate fastest, then stage, then data."""
    rank_R = np.arange(ranks)
    return Layout(
        rank_R // (tensor * stages), rank_R % tensor, rank_R // tensor % stages, np.full(ranks, -1, dtype=np.int64)
    )


def all_ranks(ranks: int) -> np.ndarray:
    return np.ones(ranks, dtype=np.bool_)


def groups(layout: Layout, present_R: np.ndarray) -> np.ndarray:
    return peers.groups(Places.of(layout), present_R)


def test_without_coordinates_all_are_peers() -> None:
    assert set(groups(Layout.unknown(5), all_ranks(5))) == {0}


def test_peers_have_the_same_stage_and_tensor_coordinate() -> None:
    group_R = groups(layout(32, tensor=2, stages=2), all_ranks(32))
    assert len(set(group_R)) == 4
    assert len({group_R[rank] for rank in range(0, 32, 4)}) == 1


def test_too_few_peers_widen_the_group_but_never_over_stages() -> None:
    group_R = groups(layout(8, tensor=2, stages=2), all_ranks(8))  # two ranks of each kind
    assert len(set(group_R)) == 2
    assert list(group_R) == [0, 0, 1, 1, 0, 0, 1, 1]


def test_four_peers_of_one_tensor_coordinate_are_enough() -> None:
    group_R = groups(layout(8, tensor=2), all_ranks(8))
    assert list(group_R) == [0, 1] * 4
    assert set(groups(layout(6, tensor=2), all_ranks(6))) == {0}, "three are not"


def test_a_stage_of_one_rank_has_no_peers() -> None:
    assert list(groups(layout(4, stages=4), all_ranks(4))) == [NO_PEERS] * 4


def test_an_absent_rank_is_in_no_group() -> None:
    present_R = all_ranks(6)
    present_R[2] = False
    assert list(groups(Layout.unknown(6), present_R)) == [0, 0, NO_PEERS, 0, 0, 0]


def test_without_present_ranks_there_are_no_groups() -> None:
    assert list(groups(Layout.unknown(2), np.zeros(2, dtype=np.bool_))) == [NO_PEERS, NO_PEERS]
    assert len(groups(Layout.unknown(0), np.zeros(0, dtype=np.bool_))) == 0


values = st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(float("nan"))), min_size=1, max_size=12)


@given(values, st.data())
def test_the_median_of_others_leaves_the_rank_itself_out(drawn: list[float], data: st.DataObject) -> None:
    group = data.draw(st.lists(st.integers(-1, 2), min_size=len(drawn), max_size=len(drawn)))
    value_R, group_R = np.array(drawn), np.array(group)
    found_R = peers.median_of_others(value_R, group_R)
    for rank, found in enumerate(found_R):
        others = [v for r, v in enumerate(drawn) if r != rank and group[r] == group[rank] and v == v]
        if group[rank] == NO_PEERS or not others or drawn[rank] != drawn[rank]:
            assert np.isnan(found)
        else:
            assert found == pytest.approx(np.median(others))


def test_column_medians_leave_nan_out() -> None:
    values_RK = np.array([[1.0, np.nan, np.nan], [3.0, 2.0, np.nan], [5.0, 4.0, np.nan]])
    assert peers.column_medians(values_RK) == pytest.approx([3.0, 3.0, np.nan], nan_ok=True)
    assert len(peers.column_medians(np.empty((0, 3)))) == 3


def test_a_sample_of_a_large_group_stands_for_all_of_it() -> None:
    random = np.random.default_rng(0)
    values_RK = random.normal(1.0, 0.02, (50_000, 2))
    reference_RK = peers.references(values_RK, np.zeros(50_000, dtype=np.int64))
    assert reference_RK[0] == pytest.approx(np.median(values_RK, axis=0), abs=0.002)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 40])
def test_the_middle_of_the_others_is_their_median_whatever_the_sizes_of_the_groups(ranks: int) -> None:
    random = np.random.default_rng(ranks)
    group_R = random.integers(-1, 4, ranks)
    value_RK = np.round(random.normal(size=(ranks, 2)), 1)  # rounded: equal values must do no harm
    value_RK[random.random((ranks, 2)) < 0.2] = np.nan
    found_RK = peers.median_of_others(value_RK, group_R)
    for rank in range(ranks):
        others = (group_R == group_R[rank]) & (np.arange(ranks) != rank)
        for k in range(2):
            known = value_RK[others, k][~np.isnan(value_RK[others, k])]
            nothing = group_R[rank] < 0 or np.isnan(value_RK[rank, k]) or not len(known)
            expected = np.nan if nothing else np.median(known)
            assert found_RK[rank, k] == pytest.approx(expected, nan_ok=True)


def test_of_a_large_group_the_middle_is_that_of_a_sample() -> None:
    value_R = np.random.default_rng(0).normal(1.0, 0.02, 5 * peers.LARGE)
    value_R[7] = np.nan
    found_R = peers.median_of_others(value_R, np.zeros(len(value_R), dtype=np.int64))
    assert np.isnan(found_R[7])
    assert np.nanmedian(found_R) == pytest.approx(1.0, abs=0.1 * 0.02)
