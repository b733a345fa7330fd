"""Statistics over ranks and names that both grow: medians of sections and kernels, with bounds on their memory.

Shapes: R rows (ranks or devices), K names, X statistics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from rankwatch_monitor.core.ranks import Floats

NAMES_AT_ONCE: Final = 8
ROWS_AT_ONCE: Final = 64
NAMES_A_ROW: Final = 4
"""A table over ranks has room for so many names, and for all that :data:`ROWS_AT_ONCE` ranks may report, whatever its
world size; for each rank that has reported, so many times as much. So a claim of a world costs a few bytes a row."""
MAX_COMBINATIONS: Final = 64
"""Sets of names reported together whose columns are cached; ranks of a job report the same few."""


class _Columns(NamedTuple):
    """The columns of some names."""

    at: list[int | None]
    """Of each name; None: the table has no room for it."""
    whole: slice | None
    """All of them, where they are the first ones of the table in this order."""


class Table:
    """Statistics over ranks and names (of kernels or sections), both of which grow; each is an array of (R, names)."""

    def __init__(self, statistics: Sequence[str], limit: int, *, of_ranks: bool = False) -> None:
        """Without any; ``of_ranks``: its rows are claimed, and most of them may never be reported."""
        self.names: list[str] = []
        self._index: dict[str, int] = {}
        self._limit = limit
        self._of_ranks = of_ranks
        self._reported: set[int] = set()
        """Rows of a table of ranks that have been written."""
        self._statistics = {each: number for number, each in enumerate(statistics)}
        # One array, so that all a rank reports is written at once; X statistics.
        self._values_RKX: Any = np.full((0, 0, len(statistics)), np.nan, dtype=np.float32)
        self._columns: dict[tuple[str, ...], _Columns] = {}
        """By names that were reported together."""

    def __getitem__(self, statistic: str) -> Floats:
        values_RK: Floats = self._values_RKX[:, : len(self.names), self._statistics[statistic]]
        return values_RK

    def grow(self, ranks: int) -> None:
        """Add rows up to rank ``ranks - 1``, and a few more."""
        rows, *rest = self._values_RKX.shape
        if (extra := ranks - rows) > 0:
            fresh = np.full((max(extra, rows // 4), *rest), np.nan, dtype=np.float32)
            self._values_RKX = np.concatenate([self._values_RKX, fresh])

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these, in this order."""
        self._values_RKX = self._values_RKX[[row for row in rows if row < len(self._values_RKX)]]

    def index(self, name: str) -> int | None:
        """The column of a name, added when it is new; None when the table is full."""
        known = self._index.get(name)
        if known is not None:
            return known
        if len(self.names) >= self._room:
            return None
        self._index[name] = len(self.names)
        self.names.append(name)
        self._reserve(len(self.names))
        return self._index[name]

    def room(self, rows: int) -> int:
        """Names for which it has room with so many rows."""
        if not self._of_ranks:
            return self._limit
        cells = NAMES_A_ROW * self._limit * (len(self._reported) + ROWS_AT_ONCE)
        return min(self._limit, max(NAMES_AT_ONCE, cells // max(1, rows)))

    @property
    def _room(self) -> int:
        return self.room(len(self._values_RKX))

    def _reserve(self, columns: int) -> None:
        """Have room for so many columns; at least doubled, so that most new names copy nothing."""
        rows, present, statistics = self._values_RKX.shape
        if columns > present:
            extra = max(columns - present, min(max(4, present), self._room - present))
            fresh = np.full((rows, extra, statistics), np.nan, dtype=np.float32)
            self._values_RKX = np.concatenate([self._values_RKX, fresh], axis=1) if present else fresh

    def columns(self, names: Iterable[str]) -> _Columns:
        """The columns of some names, added when they are new."""
        key = tuple(names)
        found = self._columns.get(key)
        if found is None:
            if len(self._columns) >= MAX_COMBINATIONS:
                self._columns.clear()
            self._reserve(min(self._room, len(self.names) + sum(name not in self._index for name in key)))
            at = [self.index(name) for name in key]
            whole = bool(key) and at == list(range(len(key)))
            found = _Columns(at, slice(len(key)) if whole else None)
            if None not in at or len(self.names) >= self._limit:  # else there may be room for more later
                self._columns[key] = found
        return found

    def put(self, rank: int, values: Mapping[str, Sequence[float]]) -> None:
        """Replace a rank's row by the statistics of each name, in the order in which they were declared."""
        self._reported.add(rank)
        columns = self.columns(values)
        row_KX = self._values_RKX[rank]
        row_KX.fill(np.nan)
        if columns.whole is not None:
            row_KX[columns.whole] = list(values.values())
            return
        for column, statistics in zip(columns.at, values.values(), strict=True):
            if column is not None:
                row_KX[column] = statistics

    def improve(self, row: int, columns: _Columns, values: Iterable[float]) -> None:
        """Take in smaller numbers of the first statistic; NaN: there is none yet."""
        # One Python float at a time: ten times as fast as numpy's scalars, and few are written.
        best = self._values_RKX.item
        for column, value in zip(columns.at, values, strict=True):
            if column is not None and not best(row, column, 0) <= value:
                self._values_RKX[row, column, 0] = value
