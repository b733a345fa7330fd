"""Columns of several statistics over ranks and names, both of which grow. Pure.

Shapes: R ranks, K names (of kernels or sections).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rankwatch_monitor.core.ranks import Floats


class Table:
    """Columns of several statistics over ranks and names, which both grow: each array has shape (R, names)."""

    def __init__(self, statistics: Sequence[str], most: int) -> None:
        self.names: list[str] = []
        self.refused = 0
        """Names for which there was no room."""
        self._index: dict[str, int] = {}
        self._most = most
        self._columns: dict[str, Any] = {each: np.full((0, 0), np.nan, dtype=np.float32) for each in statistics}

    def __getitem__(self, statistic: str) -> Floats:
        values_RK: Floats = self._columns[statistic][:, : len(self.names)]
        return values_RK

    def value(self, statistic: str, rank: int, column: int) -> float:
        """One number of a row."""
        value: float = self._columns[statistic].item(rank, column)
        return value

    def grow(self, ranks: int) -> None:
        """Have rows for ranks up to ``ranks - 1``."""
        for name, column in self._columns.items():
            if (extra := ranks - len(column)) > 0:
                fresh = np.full((extra, column.shape[1]), np.nan, dtype=column.dtype)
                self._columns[name] = np.concatenate([column, fresh])

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows only, in this order."""
        for name, column in self._columns.items():
            self._columns[name] = column[[row for row in rows if row < len(column)]]

    def index(self, name: str) -> int | None:
        """The column of a name, made when it is new; None when there is no room."""
        known = self._index.get(name)
        if known is not None:
            return known
        if len(self.names) >= self._most:
            self.refused += 1
            return None
        self._index[name] = len(self.names)
        self.names.append(name)
        for each, column in self._columns.items():
            if column.shape[1] < len(self.names):  # twice as many, so that names are not paid for one by one
                fresh = np.full((len(column), max(4, column.shape[1])), np.nan, dtype=column.dtype)
                self._columns[each] = np.concatenate([column, fresh], axis=1)
        return self._index[name]

    def put(self, rank: int, values: Mapping[str, Sequence[float]]) -> None:
        """Replace a rank's row: for each name its statistics, in the order in which they were named."""
        found = [(i, statistics) for name, statistics in values.items() if (i := self.index(name)) is not None]
        for number, each in enumerate(self._columns.values()):
            row = each[rank]
            row.fill(np.nan)
            for i, statistics in found:
                row[i] = statistics[number]
