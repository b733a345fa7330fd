"""Looks at many verdicts at once."""

from __future__ import annotations

import pytest

from rankwatch.contract.enums import CulpritClass, VerdictKind
from rankwatch_monitor.core.hang.verdict import (
    Verdict,
    culprit_of,
    kinds_of,
    left_to_launchers,
    of_kinds,
    rank_of,
)
from rankwatch_monitor.core.ranks import RankColumns

HUNG, SILENT, LOST = VerdictKind.SECTION_OVERRUN, VerdictKind.SILENT, VerdictKind.NODE_LOST


def verdict(kind: VerdictKind, rank: int, node_loss: str = "") -> Verdict:
    return Verdict(kind, rank, None, 10.0, 12.0, 0.0, node_loss=node_loss)


def test_verdicts_by_kind_however_they_are_mixed() -> None:
    verdicts = [verdict(kind, rank) for rank, kind in enumerate((HUNG, SILENT, HUNG, HUNG, LOST, SILENT))]
    assert kinds_of(verdicts) == {HUNG, SILENT, LOST}
    assert [v.rank for v in of_kinds(verdicts, SILENT, LOST)] == [1, 4, 5]
    assert of_kinds(verdicts, VerdictKind.PROCESS_EXITED) == []
    assert kinds_of([]) == set()
    assert list(map(rank_of, verdicts)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("kind", "node_loss", "left"),
    [(VerdictKind.PROCESS_EXITED, "", True), (LOST, "node a is lost", True), (LOST, "", False), (SILENT, "", False)],
)
def test_what_is_left_to_launchers(kind: VerdictKind, node_loss: str, left: bool) -> None:
    assert left_to_launchers([verdict(HUNG, 0), verdict(kind, 1, node_loss)]) is left


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
    found = culprit_of(columns, rank, CulpritClass.BEHIND, "it is behind", host)
    assert (found.rank, found.host, found.local_rank) == (rank, *place)
