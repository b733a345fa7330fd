"""Looks at many verdicts at once."""

from __future__ import annotations

import numpy as np
import pytest

from rankwatch.contract.enums import LimitSource, VerdictKind
from rankwatch_monitor.core.cause import Behind
from rankwatch_monitor.core.hang.verdict import NONE, Verdict, Verdicts, culprit_of, joined
from rankwatch_monitor.core.ranks import RankColumns

HUNG, SILENT, LOST = VerdictKind.SECTION_OVERRUN, VerdictKind.SILENT, VerdictKind.NODE_LOST


def verdict(kind: VerdictKind, rank: int, node_loss: str = "") -> Verdict:
    return Verdict(kind, rank, None, 10.0, 12.0, 0.0, node_loss=node_loss)


MIXED = [verdict(kind, rank) for rank, kind in enumerate((HUNG, SILENT, HUNG, HUNG, LOST, SILENT))]


def test_verdicts_by_kind_however_they_are_mixed() -> None:
    verdicts = Verdicts.of(MIXED)
    assert verdicts.kinds == {HUNG, SILENT, LOST}
    assert [v.rank for v in verdicts.of_kinds(SILENT, LOST)] == [1, 4, 5]
    assert not verdicts.of_kinds(VerdictKind.PROCESS_EXITED)
    assert not NONE
    assert NONE.kinds == set()


def test_columns_hold_every_field_of_a_verdict() -> None:
    learned = Verdict(HUNG, 7, "step", 3.0, 4.5, 100.0, LimitSource.LEARNED)
    lost = Verdict(LOST, 2, None, 0.0, 9.0, 90.0, node_loss="node a is lost")
    assert list(Verdicts.of([learned, lost, *MIXED])) == sorted([learned, lost, *MIXED], key=lambda each: each.rank)


def test_verdicts_of_several_checks_are_ordered_by_rank_and_then_by_check() -> None:
    first, second = Verdicts.of([verdict(HUNG, 1), verdict(HUNG, 3)]), Verdicts.of([verdict(SILENT, 1)])
    assert [(v.rank, v.kind) for v in joined(first, NONE, second)] == [(1, HUNG), (1, SILENT), (3, HUNG)]
    assert joined(first, second).ranks.tolist() == [1, 3]
    assert [v.kind for v in joined(first, second).of_rank(1)] == [HUNG, SILENT]


def test_one_configured_limit_among_others_needs_no_confirmation() -> None:
    learned = Verdict(HUNG, 0, "step", 3.0, 4.5, 100.0, LimitSource.LEARNED)
    assert not Verdicts.of([learned]).act_at_once
    assert Verdicts.of([learned, verdict(HUNG, 1)]).act_at_once
    assert (
        not joined(Verdicts.of([learned]), Verdicts.of([verdict(HUNG, 1)])).where(np.array([True, False])).act_at_once
    )


@pytest.mark.parametrize(
    ("kind", "node_loss", "left"),
    [(VerdictKind.PROCESS_EXITED, "", True), (LOST, "node a is lost", True), (LOST, "", False), (SILENT, "", False)],
)
def test_what_is_left_to_launchers(kind: VerdictKind, node_loss: str, left: bool) -> None:
    assert Verdicts.of([verdict(HUNG, 0), verdict(kind, 1, node_loss)]).left_to_launchers is left


@pytest.mark.parametrize(
    ("rank", "host", "place"),
    [(1, None, ("host-a", 5)), (1, "host-a", ("host-a", 5)), (1, "host-b", ("host-b", -1)), (7, "", ("", -1)),
     (7, None, ("", -1))],
)  # fmt: skip
def test_a_culprit_has_the_place_of_its_process_only_while_that_runs_there(
    rank: int, host: str | None, place: tuple[str, int]
) -> None:
    columns = RankColumns(2)
    columns.hosts[1], columns.local_rank_R[1] = "host-a", 5
    found = culprit_of(columns, rank, Behind(1, 1), host)
    assert (found.rank, found.host, found.local_rank) == (rank, *place)
