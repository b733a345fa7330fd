"""Looks at many verdicts at once."""

from __future__ import annotations

import pytest

from rankwatch.contract.enums import VerdictKind
from rankwatch_monitor.core.hang.verdict import Verdict, kinds_of, left_to_launchers, of_kinds, rank_of

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
