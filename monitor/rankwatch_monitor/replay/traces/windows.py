"""Converts an operation table to the windows of a job: each step of the table becomes one window of each rank.

The operations yield the parts of the step, the collectives by process group, kernel statistics by kind of operation,
and coordinates in the parallel layout: the reports that a rank would send, so that the same core evaluates them.

Shapes: N operations, C cells (one step of one rank each).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from rankwatch.contract.enums import Part
from rankwatch.contract.semconv import STEP_SECTION
from rankwatch.contract.statistics import KernelStatistics, SectionWindow
from rankwatch_monitor.core.events import RankIdentity, RankReport, WindowReport
from rankwatch_monitor.core.ranks import Bools, Floats, Ints
from rankwatch_monitor.replay.traces import kineto
from rankwatch_monitor.replay.traces.groups import collectives, is_pair, turns
from rankwatch_monitor.replay.traces.parts import (
    WAITING_IN_GAPS,
    Kind,
    Line,
    Parts,
    exposed,
    grouped,
    parts,
    spread,
    waits_in_gaps,
)
from rankwatch_monitor.replay.traces.read import Rows, TableError, read_rows
from rankwatch_monitor.replay.traces.table import OperationTable

START: Final = 1_700_000_000.0
"""Unix seconds assigned to the start of a table without unix times."""
UNITS: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_EPOCH: Final = (1e9, 4e9)
"""Unix seconds from 2001 to 2096: the unit that puts all times in this range is the unit of the table."""
_USUAL_STEP: Final = 3.0
_LONG_OPERATION: Final = 5.0
_LONG_STEP: Final = 2000.0
"""Seconds: a typical step, and upper bounds of the median operation and the median step."""
MIN_STEP: Final = 1e-3
"""Seconds: minimum duration of a step, so that time advances even if operations take none."""

WORDS: Final[dict[Kind, tuple[str, ...]]] = {
    Kind.COMMUNICATION: (
        *("send", "recv", "receive", "sync", "reduce", "gather", "scatter", "all_to_all", "all-to-all", "alltoall"),
        *("broadcast", "barrier", "nccl", "p2p", "comm"),
        # Clipping needs the norm over all ranks, so it ends on all of them together.
        *("clip", "grad-norm", "grad_norm"),
    ),
    Kind.COMPUTE: ("compute", "forward", "backward", "optimizer", "matmul", "gemm", "attention"),
    Kind.DATA: ("data", "load", "input", "fetch", "get-batch", "get_batch", "batch-generator"),
    Kind.HOST: ("gc", "host", "python", "cpu"),
}
"""Kinds by words in the name of an operation; the first match counts."""


def kind_of(optype: str) -> Kind | None:
    """The kind of an operation by its name; None if no word matches."""
    name = optype.lower().replace("async", "")
    if "kernel" in name and "nccl" not in name:
        return Kind.COMPUTE  # reduce_kernel and the like
    return next((kind for kind, words in WORDS.items() if any(word in name for word in words)), None)


def read(path: str | Path, time_unit: str | None = None) -> OperationTable:
    """Read a table of operations.

    Args:
        path: CSV, .csv.gz or parquet; or traces of PyTorch's profiler, a file or a folder.
        time_unit: of ``start_ts`` and ``duration``: s, ms, us or ns; None: derived from their magnitude.

    Raises:
        TableError: it cannot be read; the message gives the reason.
        OSError: the file cannot be opened.
    """
    if time_unit is not None and time_unit not in UNITS:
        raise TableError(f"--time-unit is one of {', '.join(UNITS)}, not {time_unit!r}")
    profiled = kineto.is_trace(Path(path))
    rows = kineto.read_traces(Path(path)) if profiled else read_rows(Path(path))
    step_N, rank_N = rows.whole("step"), rows.whole("rank")
    order_N = np.lexsort((rows.numbers["start_ts"], rank_N, step_N))
    step_N, rank_N = step_N[order_N], rank_N[order_N]
    cell_N = np.cumsum(np.concatenate([[0], (np.diff(step_N) != 0) | (np.diff(rank_N) != 0)])).astype(np.int64)
    if profiled:
        unit, notes = kineto.UNIT, ["traces of PyTorch's profiler: what a step launched is part of it"]
        if len(np.unique(rank_N)) == 1:
            notes.append("there is one rank to compare: give the folder with the traces of all ranks")
    else:
        unit, reason = (time_unit, "set by --time-unit") if time_unit else _unit(rows, order_N, cell_N)
        notes = [f"times are taken as {unit}: {reason}"]
    optype, host = rows.texts["optype"], rows.texts.get("host")
    kinds = [kind_of(name) for name in optype.words]
    code_N = optype.code_N[order_N]
    if unknown := sorted({optype.words[code] for code in np.unique(code_N) if kinds[code] is None}):
        notes.append(
            f"taken for computation, as their names are unknown: {', '.join(name or '(none)' for name in unknown)}"
        )
    kind_of_type = np.array([Kind.COMPUTE if kind is None else kind for kind in kinds], np.int64)
    table = OperationTable(
        path=rows.path,
        notes=tuple(notes),
        rank_N=rank_N,
        step_N=step_N,
        type_N=code_N,
        types=optype.words,
        kind_N=kind_of_type[code_N],
        start_N=rows.numbers["start_ts"][order_N] * UNITS[unit],
        duration_N=rows.numbers["duration"][order_N] * UNITS[unit],
        dp_rank_N=rows.whole("dp_rank")[order_N],
        tp_rank_N=rows.whole("tp_rank")[order_N],
        stage_N=rows.whole("stage")[order_N],
        host_N=np.zeros_like(code_N) if host is None else host.code_N[order_N],
        hosts=("",) if host is None else host.words,
        cell_N=cell_N,
    )
    missing_C = _missing(table) > 0
    if not missing_C.any():
        return table
    note = (
        f"computations are missing in {np.count_nonzero(missing_C)} of {len(missing_C)} steps of single ranks: these "
        "are estimated by the others, and what is found is less certain"
    )
    return replace(table, notes=(*table.notes, note), certainty=1.0 - float(np.mean(missing_C > 0)))


def _unit(rows: Rows, order_N: Ints, cell_N: Ints) -> tuple[str, str]:
    """The unit of a table's times by their magnitude, and the reason for it."""
    start_N, duration_N = rows.numbers["start_ts"], rows.numbers["duration"]
    earliest, latest = float(np.min(start_N)), float(np.max(start_N))
    first_C = np.searchsorted(cell_N, np.arange(int(cell_N[-1]) + 1))
    start_N, end_N = start_N[order_N], (start_N + duration_N)[order_N]
    span = float(np.median(np.maximum.reduceat(end_N, first_C) - start_N[first_C]))
    usual = float(np.median(duration_N[duration_N > 0])) if np.any(duration_N > 0) else 0.0

    def likely(unit: str) -> bool:
        return span * UNITS[unit] <= _LONG_STEP and usual * UNITS[unit] <= _LONG_OPERATION

    for unit, scale in UNITS.items():
        if _EPOCH[0] <= earliest * scale <= latest * scale <= _EPOCH[1] and likely(unit):
            return unit, "so start_ts are unix times between 2001 and 2096"
    whole = bool(np.all(duration_N == np.floor(duration_N)) and np.any(duration_N > 0))
    units = list(UNITS)[1:] if whole else list(UNITS)
    found = min(
        (unit for unit in units if likely(unit)), key=lambda unit: _distance_to_usual(span * UNITS[unit]), default="ns"
    )
    return found, f"then a step takes {span * UNITS[found]:.3g} s, the likeliest (override with --time-unit)"


def _distance_to_usual(step: float) -> float:
    """How far a step of so many seconds is from :data:`_USUAL_STEP`, in powers of ten."""
    return abs(float(np.log10(max(step, 1e-12) / _USUAL_STEP)))


# Windows --------------------------------------------------------------------------------------------------------------


def windows(table: OperationTable) -> Iterator[tuple[float, list[RankReport]]]:
    """The reports of all ranks, step by step, with their arrival times (unix seconds)."""
    first_C = np.searchsorted(table.cell_N, np.arange(int(table.cell_N[-1]) + 1))
    line = Line.of(table.cell_N, table.kind_N, table.start_N, table.duration_N)
    begin_C = table.start_N[first_C]
    end_C = np.maximum.reduceat(table.start_N + table.duration_N, first_C)
    step_C, rank_C = table.step_N[first_C], table.rank_N[first_C]
    lead_C = _leads(step_C, rank_C, begin_C, end_C)
    lead_N = np.zeros(len(table))
    lead_N[first_C] = lead_C
    waiting_N = _waiting(table, line.beyond(np.ones(len(table), bool))[1] + lead_N)
    if _begin_together(step_C, begin_C, lead_C):
        waiting_N[first_C] = True
    split = _completed(table, line, lead_N, waiting_N)
    step_seconds_C = split.data_C + split.host_C + split.compute_C + split.communication_C
    kernels_C, collectives_C = _kernels(table), collectives(table, exposed(line))
    stage_of, dp_of, tp_of = (
        _coordinate(table.rank_N, value_N) for value_N in (table.stage_N, table.dp_rank_N, table.tp_rank_N)
    )
    host_of = {int(rank): table.hosts[code] for rank, code in zip(rank_C, table.host_N[first_C], strict=True)}
    world = int(table.rank_N.max()) + 1
    for at, cells in _times(step_C, begin_C, end_C):
        reports = []
        for cell in cells:
            rank, seconds = int(rank_C[cell]), float(step_seconds_C[cell])
            identity = RankIdentity(
                job_id=table.path.name,
                rank=rank,
                local_rank=rank,
                world_size=world,
                host=host_of[rank],
                instance=f"{table.path.name}/{rank}",
                data_parallel=dp_of[rank],
                tensor_parallel=tp_of[rank],
                pipeline_parallel=stage_of[rank],
            )
            window = WindowReport(
                iteration=int(step_C[cell]),
                steps=1,
                sections={STEP_SECTION: SectionWindow(1, seconds, seconds, seconds, seconds)},
                parts={
                    Part.DATA: float(split.data_C[cell]),
                    Part.HOST: float(split.host_C[cell]),
                    Part.COMPUTE: float(split.compute_C[cell]),
                    Part.COMMUNICATION: float(split.communication_C[cell]),
                },
                collectives=collectives_C.get(cell, {}),
            )
            reports.append(
                RankReport(
                    identity,
                    iteration=int(step_C[cell]),
                    window=window,
                    kernels=kernels_C.get(cell),
                    kernel_source="table" if cell in kernels_C else "none",
                )
            )
        yield at, reports


def _completed(table: OperationTable, line: Line, lead_N: Floats, waiting_N: Bools) -> Parts:
    """The parts of each step. A missing row leaves a gap that is not the host's: its computation is put back."""
    missing_C = _missing(table)
    split = parts(line, lead_N, waiting_N | (missing_C > 0)[table.cell_N])
    found_C = np.minimum(missing_C, split.communication_C)
    return split._replace(compute_C=split.compute_C + found_C, communication_C=split.communication_C - found_C)


def _times(step_C: Ints, begin_C: Floats, end_C: Floats) -> Iterator[tuple[float, range]]:
    """The arrival time of each step's reports, and its cells.

    Gaps between steps are removed: tables often hold single steps of a long run, and the time between them is neither
    evaluated nor counted as cost.
    """
    first_S = np.flatnonzero(np.concatenate([[True], np.diff(step_C) != 0]))
    begin_S, end_S = np.minimum.reduceat(begin_C, first_S), np.maximum.reduceat(end_C, first_S)
    start = float(begin_S[0]) if begin_S[0] >= _EPOCH[0] else START
    bound_S = [*first_S.tolist(), len(step_C)]
    for index, at in enumerate((start + np.cumsum(np.maximum(end_S - begin_S, MIN_STEP))).tolist()):
        yield at, range(bound_S[index], bound_S[index + 1])


def _leads(step_C: Ints, rank_C: Ints, begin_C: Floats, end_C: Floats) -> Floats:
    """Seconds between each step of a rank and its previous one, if the table has that; else 0."""
    order_C = np.lexsort((step_C, rank_C))
    step, rank = step_C[order_C], rank_C[order_C]
    lead = np.zeros(len(order_C))
    follows = (rank[1:] == rank[:-1]) & (step[1:] == step[:-1] + 1)
    lead[1:] = np.where(follows, begin_C[order_C][1:] - end_C[order_C][:-1], 0.0).clip(min=0.0)
    lead_C = np.empty_like(lead)
    lead_C[order_C] = lead
    return lead_C


def _begin_together(step_C: Ints, begin_C: Floats, lead_C: Floats) -> bool:
    """Whether all ranks begin a step together regardless of when each finished the previous one, so early ranks wait.

    A pipeline's last stage finishes before the first; the time until its next step begins is not its own work.
    """
    before_C = begin_C - lead_C
    return spread(step_C, begin_C) < WAITING_IN_GAPS * spread(step_C, before_C)


def _waiting(table: OperationTable, gap_N: Floats) -> Bools:
    """Whether the gap before each operation is waiting for other ranks (N)."""
    communicates_N = table.kind_N == Kind.COMMUNICATION
    staged = len(np.unique(table.stage_N)) > 1
    passes_on = any(is_pair(table.types[code]) for code in np.unique(table.type_N))
    if not communicates_N.any() or (staged and not passes_on):
        return np.ones(len(table), bool)  # the table does not show what the rank waited for
    waiting_N = np.zeros(len(table), bool)
    for code in np.unique(table.type_N[communicates_N]):
        of_type_N = np.flatnonzero(table.type_N == code)
        if is_pair(table.types[code]):
            key = table.cell_N[of_type_N]
        else:
            turn = turns(table.cell_N[of_type_N])
            stage, step = table.stage_N[of_type_N] + 1, table.step_N[of_type_N]
            key = (step * (int(stage.max()) + 1) + stage) * (int(turn.max()) + 1) + turn
        waiting_N[of_type_N] = waits_in_gaps(key, table.duration_N[of_type_N], gap_N[of_type_N])
    return waiting_N


def _missing(table: OperationTable) -> Floats:
    """Seconds of computation of each cell (C) whose rows are missing: another rank has more of them in that step."""
    chosen = np.flatnonzero(table.kind_N == Kind.COMPUTE)
    types = len(table.types)
    missing_C = np.zeros(int(table.cell_N[-1]) + 1)
    if not len(chosen):
        return missing_C
    found = grouped(table.cell_N[chosen] * types + table.type_N[chosen], table.duration_N[chosen])
    cell_G, type_G = np.divmod(found.key_G, types)
    step_G = table.step_N[np.searchsorted(table.cell_N, cell_G)]
    _, at_G = np.unique(step_G * types + type_G, return_inverse=True)
    most = np.zeros(int(at_G.max()) + 1, np.int64)
    np.maximum.at(most, at_G, found.calls_G)
    seconds_G = (most[at_G] - found.calls_G) * found.sum_G / found.calls_G
    return missing_C + np.bincount(cell_G, seconds_G, len(missing_C))


def _coordinate(rank_N: Ints, value_N: Ints) -> dict[int, int]:
    """Each rank's coordinate; the smallest if a rank has several (virtual stages)."""
    rank, at = np.unique(rank_N, return_inverse=True)
    least = np.full(len(rank), np.iinfo(np.int64).max)
    np.minimum.at(least, at, value_N)
    return dict(zip(rank.tolist(), least.tolist(), strict=True))


def _kernels(table: OperationTable) -> dict[int, dict[str, KernelStatistics]]:
    """Statistics of each type of computation, by stage, for each cell."""
    chosen = np.flatnonzero(table.kind_N == Kind.COMPUTE)
    stages, types = int(table.stage_N.max()) + 2, len(table.types)
    name_N = table.type_N[chosen] * stages + table.stage_N[chosen] + 1
    found = grouped(table.cell_N[chosen] * (stages * types) + name_N, table.duration_N[chosen])
    names = {
        int(name): f"{table.types[name // stages]}{f'/stage{name % stages - 1}' if name % stages else ''}"
        for name in np.unique(name_N)
    }
    kernels: dict[int, dict[str, KernelStatistics]] = {}
    mean_G = found.sum_G / found.calls_G
    columns = (found.calls_G, found.median_G, found.tail_G, mean_G, found.min_G, found.max_G, found.stddev_G)
    for key, *values in zip(found.key_G.tolist(), *(column.tolist() for column in columns), strict=True):
        cell, name = divmod(key, stages * types)
        kernels.setdefault(cell, {})[names[name]] = KernelStatistics(*values)
    return kernels
