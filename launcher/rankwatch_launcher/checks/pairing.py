"""Who is measured with whom, and which node is at fault. Pure: names and figures in, groups and verdicts out.

Two rounds, as DLRover does it: a group that is slow or silent does not say which of its nodes is to blame. In the next
round every node has other partners, and those of the slow groups get partners from the fast ones: the node that is slow
or silent in both rounds is the one. What a node measures by itself, its matrix product, needs no partner.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rankwatch.contract.node_checks import CheckName, CheckReason, CheckResult, CheckState
from rankwatch.contract.text import one_line

SLOW_LINK: Final = 2.0
"""Times the median of all groups from which an all-reduce is slow."""
SLOW_COMPUTE: Final = 1.5
"""Times the median of all nodes from which a matrix product is slow."""
LEAST: Final = 0.02
"""Seconds by which it must be longer besides: less is the noise of a host."""

Groups = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """What one node measured in one round."""

    compute: float | None = None
    """Seconds of its matrix products; None: it has not finished them."""
    all_reduce: float | None = None
    """Seconds of an all-reduce of a fixed size in its group; None: it failed, or did not end in time."""


Round = Mapping[str, Figures]
"""By node; one that has not answered is missing."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One node in the table."""

    node: str
    rounds: tuple[Figures | None, Figures | None]
    partners: tuple[tuple[str, ...], tuple[str, ...]]
    fault: CheckResult | None = None


def first_groups(nodes: Sequence[str]) -> Groups:
    """Neighbours in twos; the last three of an odd number together."""
    groups = [tuple(nodes[i : i + 2]) for i in range(0, len(nodes) - 1, 2)]
    if len(nodes) % 2 and groups:
        groups[-1] = (*groups[-1], nodes[-1])
    return tuple(groups)


def second_groups(groups: Groups, found: Round) -> Groups:
    """Other partners for all: the slowest with the fastest, so that two suspects do not meet while others are left."""
    before = {node: set(group) for group in groups for node in group}
    order = sorted(before, key=lambda node: _group_seconds(before[node], found))
    if len(order) < 4:
        return groups  # there are no others
    half = len(order) // 2
    fast, slow = order[:half], order[half:]
    slow.reverse()
    for i in range(half):  # a partner of the round before is exchanged for the next one
        if fast[i] in before[slow[i]]:
            j = next((j for j in range(half) if fast[j] not in before[slow[i]] and fast[i] not in before[slow[j]]), i)
            fast[i], fast[j] = fast[j], fast[i]
    pairs = [(fast[i], slow[i]) for i in range(half)]
    if len(slow) > half:
        odd = slow[-1]
        place = next((i for i, pair in enumerate(pairs) if not before[odd] & set(pair)), len(pairs) - 1)
        return (*pairs[:place], (*pairs[place], odd), *pairs[place + 1 :])
    return tuple(pairs)


def judge(groups: tuple[Groups, Groups], found: tuple[Round, Round]) -> tuple[Verdict, ...]:
    """The table of all nodes, the ones at fault with their reason.

    Of a group that is slow or silent in both rounds a node is to blame whose partners in one of them are cleared: they
    were neither in the other round. So of two or three nodes none is, and of five not always one.
    """
    partners = [{node: tuple(o for o in group if o != node) for group in each for node in group} for each in groups]
    limits = [_limits(each) for each in found]
    bad = [
        {node for node in partners[0] if not _is_fast(answers.get(node), limit[1])}
        for answers, limit in zip(found, limits, strict=True)
    ]
    verdicts = []
    for node in partners[0]:
        rounds = (found[0].get(node), found[1].get(node))
        others = (partners[0][node], partners[1][node])
        cleared = not set(others[0]) & bad[1] or not set(others[1]) & bad[0]
        shared = node in bad[0] and node in bad[1] and cleared
        verdicts.append(Verdict(node, rounds, others, _fault(rounds, limits, shared=shared)))
    return tuple(verdicts)


def _is_fast(figures: Figures | None, limit: float) -> bool:
    return figures is not None and figures.all_reduce is not None and figures.all_reduce <= limit


def _fault(
    rounds: tuple[Figures | None, Figures | None], limits: Sequence[tuple[float, float]], *, shared: bool
) -> CheckResult | None:
    """What a node is named for; ``shared``: its all-reduce was slow or failed in both rounds, and it is to blame."""
    known = [each for each in rounds if each is not None]
    if len(known) < 2:  # one that answers in one round only has gone silent, or has just begun
        return _result(CheckReason.SILENT_IN_BOTH, {})
    computes, reduces = [each.compute for each in known], [each.all_reduce for each in known]
    if all(each is None or each > limit[0] for each, limit in zip(computes, limits, strict=True)):
        return _result(CheckReason.SLOW_IN_BOTH, {"figures": f"matrix product {_shown(computes)}"})
    if not shared:
        return None
    if all(each is None for each in reduces):
        return _result(CheckReason.SILENT_IN_BOTH, {})
    return _result(CheckReason.SLOW_IN_BOTH, {"figures": f"all-reduce {_shown(reduces)}"})


def _limits(found: Round) -> tuple[float, float]:
    """From how many seconds a matrix product and an all-reduce are slow."""
    computes = [each.compute for each in found.values() if each.compute is not None]
    reduces = [each.all_reduce for each in found.values() if each.all_reduce is not None]
    # Of few nodes the lower middle: half of them may be those in the group of the slow one.
    compute = statistics.median_low(computes) if computes else 0.0
    reduce = statistics.median_low(reduces) if reduces else 0.0
    return max(SLOW_COMPUTE * compute, compute + LEAST), max(SLOW_LINK * reduce, reduce + LEAST)


def _group_seconds(group: set[str], found: Round) -> float:
    figures = [found.get(node) for node in group]
    if any(each is None or each.all_reduce is None for each in figures):
        return float("inf")
    return max(each.all_reduce for each in figures if each is not None and each.all_reduce is not None)


def _shown(seconds: Sequence[float | None]) -> str:
    return ", ".join("none" if each is None else f"{each:.3g} s" for each in seconds)


def _result(reason: CheckReason, evidence: Mapping[str, str]) -> CheckResult:
    return CheckResult(CheckName.PAIRS, CheckState.FAILED, reason, evidence)


def table(verdicts: Sequence[Verdict]) -> list[str]:
    """The nodes with their figures, the ones at fault first."""
    head = ("NODE", "MATRIX PRODUCT", "ALL-REDUCE", "WITH", "")
    rows = [head]
    for each in sorted(verdicts, key=lambda verdict: verdict.fault is None):
        figures = [Figures() if found is None else found for found in each.rounds]
        compute, reduce = _shown([f.compute for f in figures]), _shown([f.all_reduce for f in figures])
        # Names come from the rendezvous store, which anybody who reaches it can write to.
        partners = one_line(", ".join("+".join(others) for others in each.partners if others), 200)
        fault = "" if each.fault is None else "AT FAULT: " + str(each.fault.reason).replace("_", " ")
        rows.append((one_line(each.node, 100), compute, reduce, partners, fault))
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
