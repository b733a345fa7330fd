"""Shares of the contributors to a change: the same seconds count once."""

from __future__ import annotations

import random

import pytest

from rankwatch_monitor.core.regression.attribution import Contributor, PartChange, attributed
from rankwatch_monitor.core.regression.explain import KnownSlow, explain
from rankwatch_monitor.core.straggler.findings import Straggler
from support.windows import DATA, Ranks, slower


def contributor(name: str, share: float, part: str = "") -> Contributor:
    return Contributor("section", name, 0.1, 0.1 + share, share, name, part)


def test_a_rank_that_is_waited_for_counts_once_however_often_its_seconds_are_seen() -> None:
    parts = (PartChange("communication", 0.02, 0.08, 0.99), PartChange("data", 0.0, 0.0, 0.01))
    found = [
        contributor("data on rank 5", 1.09, "data"),
        contributor("backward", 1.0),
        contributor("rank 5", 0.99, "communication"),
    ]
    shown = attributed(found, parts, "communication")
    assert [(each.name, each.share) for each in shown] == [("rank 5", 0.99), ("data on rank 5", 0), ("backward", 0)]


def test_contributors_of_different_parts_have_their_own_shares() -> None:
    parts = (PartChange("compute", 0.1, 0.16, 0.6), PartChange("data", 0.0, 0.04, 0.4))
    found = [contributor("load", 0.4, "data"), contributor("gemm", 0.5, "compute"), contributor("forward", 0.6)]
    shown = attributed(found, parts, "compute")
    assert [(each.name, round(each.share, 3)) for each in shown] == [("gemm", 0.5), ("load", 0.4), ("forward", 0.1)]


def test_shares_never_add_up_to_more_than_the_whole_change() -> None:
    chance = random.Random(7)
    for _ in range(500):
        names = ("data", "host", "compute", "communication", "unexplained")
        raw = [chance.uniform(-1, 2) for _ in names]
        parts = [PartChange(n, 0, v, v / (sum(raw) or 1)) for n, v in zip(names, raw, strict=True)]
        found = [contributor(str(i), chance.uniform(0, 2), chance.choice(["", *names[:4]])) for i in range(8)]
        for known in (parts, []):
            shown = attributed(found, known, "compute")
            assert len(shown) == len(found)
            assert sum(each.share for each in shown) <= 1 + 1e-9
            assert all(each.share == 0 or each.share >= 0.05 for each in shown)


def slowed() -> tuple[Ranks, Straggler]:
    ranks = Ranks(16, work=(0.002, 0.012, 0.13)).run(30).run(30, slower(5, DATA, 0.06))
    (straggler,) = ranks.performance.open_stragglers
    return ranks, straggler


def test_the_change_and_the_straggler_behind_it_began_at_one_moment() -> None:
    ranks, straggler = slowed()
    found = explain(ranks.performance.history)
    assert found.since == straggler.since == ranks.performance.finding.since
    (rank, *also) = found.contributors
    assert (rank.kind, [each.share for each in also]) == ("rank", [0.0] * len(also))
    later = explain(ranks.performance.history, None, (), {5: KnownSlow(straggler.since + 7)})
    assert later.since == straggler.since + 7, "windows that do not fit into the samples"
    assert explain(ranks.performance.history, None, (), {5: KnownSlow(straggler.since - 300)}).since == found.since


def test_the_time_that_ranks_wait_for_another_is_known_apart_from_their_communication() -> None:
    ranks, _ = slowed()
    before, after = ranks.performance.history.window()[5], ranks.performance.history.window()[-5]
    assert before.waiting is not None
    assert before.waiting < 0.01
    assert after.waiting == pytest.approx(0.06, rel=0.1)
    assert after.parts["communication"] - after.waiting == pytest.approx(before.parts["communication"], rel=0.5)
    assert after._replace(slowest=()).waiting is None
