"""Groups of two in two rounds, and the verdicts, up to 1,000 emulated nodes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from rankwatch.contract.node_checks import CheckReason
from rankwatch_launcher.checks.pairing import Figures, Groups, Verdict, first_groups, judge, second_groups, table


def names(count: int) -> list[str]:
    return [f"n{i}" for i in range(count)]


def measured(
    groups: Groups,
    links: Mapping[str, float | None],
    computes: Mapping[str, float],
    silent: Sequence[str],
    seed: int,
) -> dict[str, Figures]:
    """What the nodes of these groups measure: an all-reduce takes as long as its slowest link, or fails."""
    noise = random.Random(seed)
    found = {}
    for group in groups:
        times = [links.get(node, 0.1) for node in group]
        broken = any(time is None for time in times) or any(node in silent for node in group)
        reduce = None if broken else max(time for time in times if time is not None) * noise.uniform(1.0, 1.3)
        for node in group:
            if node not in silent:
                found[node] = Figures(computes.get(node, 0.2) * noise.uniform(1.0, 1.2), reduce)
    return found


def verdicts(
    count: int,
    links: Mapping[str, float | None] | None = None,
    computes: Mapping[str, float] | None = None,
    silent: Sequence[str] = (),
    seed: int = 1,
) -> tuple[Verdict, ...]:
    first = first_groups(names(count))
    one = measured(first, links or {}, computes or {}, silent, seed)
    second = second_groups(first, one)
    two = measured(second, links or {}, computes or {}, silent, seed + 1)
    return judge((first, second), (one, two))


def faults(found: Sequence[Verdict]) -> dict[str, str]:
    return {each.node: each.fault.reason for each in found if each.fault is not None}


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 7, 8, 9, 17, 64, 255, 1000])
def test_every_node_is_in_one_group_of_each_round_and_has_other_partners(count: int) -> None:
    first = first_groups(names(count))
    for seed in range(5):
        found = measured(first, {"n1": 1.0, "n3": 1.0}, {}, (), seed)
        second = second_groups(first, found)
        for groups in (first, second):
            assert sorted(node for group in groups for node in group) == sorted(names(count))
            assert {len(group) for group in groups} <= {2, 3}
            assert sum(len(group) == 3 for group in groups) == count % 2
        if count == 4 or count > 5:
            partners = [{n: set(g) - {n} for g in groups for n in g} for groups in (first, second)]
            again = [n for n in names(count) if partners[0][n] & partners[1][n]]
            assert again == [], (count, again)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 9, 64, 1000])
def test_nodes_in_good_health_are_not_named(count: int) -> None:
    for seed in range(10):
        assert faults(verdicts(count, seed=seed)) == {}


@pytest.mark.parametrize("count", [4, 7, 8, 9, 64, 1000])
def test_the_node_that_is_slow_in_both_rounds_is_named(count: int) -> None:
    for at in {0, 1, count // 2, count - 1}:
        slow = f"n{at}"
        assert faults(verdicts(count, links={slow: 1.0})) == {slow: CheckReason.SLOW_IN_BOTH}
        assert faults(verdicts(count, computes={slow: 0.6})) == {slow: CheckReason.SLOW_IN_BOTH}
        assert faults(verdicts(count, links={slow: None})) == {slow: CheckReason.SILENT_IN_BOTH}
        assert faults(verdicts(count, silent=[slow])) == {slow: CheckReason.SILENT_IN_BOTH}


def test_of_five_nodes_nobody_in_good_health_is_named() -> None:
    for node in names(5):
        assert set(faults(verdicts(5, links={node: 1.0}))) <= {node}


def test_of_two_nodes_the_link_cannot_be_attributed_but_compute_and_silence_can() -> None:
    assert faults(verdicts(2, links={"n0": 5.0})) == {}
    assert faults(verdicts(2, computes={"n0": 0.9})) == {"n0": CheckReason.SLOW_IN_BOTH}
    assert faults(verdicts(2, silent=["n0"])) == {"n0": CheckReason.SILENT_IN_BOTH}


def test_several_bad_nodes_of_a_thousand() -> None:
    for seed in range(5):
        bad = random.Random(seed).sample(names(1000), 30)
        links: dict[str, float | None] = dict.fromkeys(bad[:10], 1.0) | dict.fromkeys(bad[10:20])
        found = faults(verdicts(1000, links=links, silent=bad[20:], seed=seed))
        assert set(found) == set(bad)


def test_the_table_has_every_node_and_begins_with_the_one_at_fault() -> None:
    lines = table(verdicts(6, links={"n3": 1.0}))
    assert len(lines) == 7
    assert lines[1].startswith("n3 ")
    assert lines[1].endswith("AT FAULT: slow in both")
    assert sum("AT FAULT" in line for line in lines) == 1


def test_no_terminal_obeys_a_name_from_the_store() -> None:
    evil = "n\x1b[2J\n\u202e"
    found = [replace(each, node=evil, partners=((evil,), ())) for each in verdicts(6)[:1]]
    assert all(line.isprintable() for line in table(found))
