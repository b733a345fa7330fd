"""Splits the steps of an operation table into parts: interval arithmetic over all ranks and steps at once.

A *cell* is one step of one rank. Its operations may overlap (several streams) and leave gaps. All cells are laid
end to end on one time line, so that a single pass processes all of them:

*  *own work* is the union of computation, data and host operations; *communication* is what the union of all
   operations covers beyond it, so communication overlapped by computation costs nothing.
*  A gap before an operation is time without a recorded operation. Before a computation the host was late: part
   ``host``. Before communication it depends on the table: some record an operation from when it was posted, so that
   waiting is inside it; others record the transfer alone, so that waiting is the gap. Among the same operations of one
   step, the waiting is what varies (:func:`waits_in_gaps`).

Shapes: N operations, sorted by cell and start; C cells; G groups, each the operations of one kind in one cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from rankwatch_monitor.core.ranks import Bools, Floats, Ints

WAITING_IN_GAPS = 0.3
"""The waiting is in the gaps if durations vary less than this fraction of the variation of the gaps."""


class Kind(IntEnum):
    """Kinds of operations."""

    COMPUTE = 0
    COMMUNICATION = 1
    DATA = 2
    HOST = 3


@dataclass(frozen=True, slots=True)
class Line:
    """All operations on one time line, cell after cell."""

    cell_N: Ints
    kind_N: Ints
    start_N: Floats
    end_N: Floats
    cells: int

    @classmethod
    def of(cls, cell_N: Ints, kind_N: Ints, start_N: Floats, duration_N: Floats) -> Line:
        """Lay out operations, which must be sorted by cell and start."""
        cells = int(cell_N[-1]) + 1
        first_C = np.searchsorted(cell_N, np.arange(cells))
        begin_C = start_N[first_C]
        span_C = np.maximum.reduceat(start_N + duration_N, first_C) - begin_C
        offset_C = np.concatenate([[0.0], np.cumsum(span_C)[:-1]])
        moved_N = start_N - begin_C[cell_N] + offset_C[cell_N]
        return cls(cell_N, kind_N, moved_N, moved_N + duration_N, cells)

    def beyond(self, chosen_N: Bools) -> tuple[Floats, Floats]:
        """Seconds of each operation beyond all chosen earlier ones of its cell, and the gap before it (N)."""
        ends_N = np.where(chosen_N, self.end_N, -np.inf)
        before_N = np.concatenate([[-np.inf], np.maximum.accumulate(ends_N)[:-1]])
        first_N = np.concatenate([[True], self.cell_N[1:] != self.cell_N[:-1]])
        gap_N = np.where(first_N, 0.0, self.start_N - before_N).clip(min=0.0)
        gap_N[~np.isfinite(gap_N)] = 0.0
        beyond_N = (self.end_N - np.maximum(self.start_N, before_N)).clip(min=0.0)
        return np.where(chosen_N, beyond_N, 0.0), gap_N

    def per_cell(self, value_N: Floats) -> Floats:
        """Sums by cell (C)."""
        return np.bincount(self.cell_N, value_N, self.cells).astype(np.float64)


class Parts(NamedTuple):
    """Seconds of each cell's step by part (C); they add up to the step."""

    data_C: Floats
    host_C: Floats
    compute_C: Floats
    communication_C: Floats


def parts(line: Line, lead_N: Floats, waiting_N: Bools) -> Parts:
    """Split each step into its parts.

    Args:
        lead_N: for the first operation of a cell, seconds since the end of the rank's previous step; else 0.
        waiting_N: the gap before this operation is waiting for other ranks, not host time.
    """
    compute_N = line.kind_N == Kind.COMPUTE
    own_N = line.kind_N != Kind.COMMUNICATION
    data_N = compute_N | (line.kind_N == Kind.DATA)
    computed_C, fetched_C, own_C, all_C = (
        line.per_cell(line.beyond(chosen_N)[0]) for chosen_N in (compute_N, data_N, own_N, np.ones_like(own_N))
    )
    gap_N = line.beyond(np.ones_like(own_N))[1] + lead_N
    return Parts(
        data_C=fetched_C - computed_C,
        host_C=own_C - fetched_C + line.per_cell(np.where(waiting_N, 0.0, gap_N)),
        compute_C=computed_C,
        communication_C=all_C - own_C + line.per_cell(np.where(waiting_N, gap_N, 0.0)),
    )


def exposed(line: Line) -> Floats:
    """Seconds of each operation that do not overlap with own work of its rank (N); 0 for own work."""
    own_N = line.kind_N != Kind.COMMUNICATION
    if not own_N.any():
        return line.end_N - line.start_N
    start_O, end_O = line.start_N[own_N], np.maximum.accumulate(line.end_N[own_N])
    opens_O = np.concatenate([[True], start_O[1:] > end_O[:-1]])
    open_I = start_O[opens_O]
    close_I = np.concatenate([end_O[:-1][opens_O[1:]], end_O[-1:]])
    done_I = np.cumsum(close_I - open_I)
    edges = np.stack([open_I, close_I], 1).ravel()
    worked = np.stack([np.concatenate([[0.0], done_I[:-1]]), done_I], 1).ravel()
    hidden_N = np.interp(line.end_N, edges, worked) - np.interp(line.start_N, edges, worked)
    return np.where(own_N, 0.0, (line.end_N - line.start_N - hidden_N).clip(min=0.0))


def spread(key_N: Ints, value_N: Floats) -> float:
    """Sum over all keys of the largest less the smallest value."""
    order_N = np.argsort(key_N, kind="stable")
    first_K = np.flatnonzero(np.concatenate([[True], np.diff(key_N[order_N]) != 0]))
    value_N = value_N[order_N]
    return float(np.sum(np.maximum.reduceat(value_N, first_K) - np.minimum.reduceat(value_N, first_K)))


def waits_in_gaps(key_N: Ints, duration_N: Floats, gap_N: Floats) -> bool:
    """Whether waiting is recorded as the gap before an operation, not inside it.

    Args:
        key_N: equal for the same operation on several ranks (for send/recv: of one rank in one step).
        duration_N, gap_N: seconds.
    """
    return spread(key_N, duration_N) < WAITING_IN_GAPS * spread(key_N, gap_N)


class Grouped(NamedTuple):
    """Statistics of groups of operations (G), in the order of their keys."""

    key_G: Ints
    calls_G: Ints
    sum_G: Floats
    median_G: Floats
    tail_G: Floats
    """Mean of the slower half."""
    min_G: Floats
    max_G: Floats
    stddev_G: Floats


def grouped(key_N: Ints, value_N: Floats) -> Grouped:
    """Statistics of values by key."""
    order_N = np.lexsort((value_N, key_N))
    key_N, value_N = key_N[order_N], value_N[order_N]
    first_G = np.flatnonzero(np.concatenate([[True], np.diff(key_N) != 0])) if len(key_N) else np.empty(0, np.int64)
    calls_G = np.diff(np.append(first_G, len(key_N)))
    end_G = first_G + calls_G
    total = np.concatenate([[0.0], np.cumsum(value_N)])
    squares = np.concatenate([[0.0], np.cumsum(value_N**2)])
    sum_G = total[end_G] - total[first_G]
    mean_G = sum_G / calls_G
    slower_G = (calls_G + 1) // 2
    return Grouped(
        key_G=key_N[first_G],
        calls_G=calls_G,
        sum_G=sum_G,
        median_G=(value_N[first_G + (calls_G - 1) // 2] + value_N[first_G + calls_G // 2]) / 2,
        tail_G=(total[end_G] - total[end_G - slower_G]) / slower_G,
        min_G=value_N[first_G],
        max_G=value_N[end_G - 1],
        stddev_G=np.sqrt(((squares[end_G] - squares[first_G]) / calls_G - mean_G**2).clip(min=0.0)),
    )
