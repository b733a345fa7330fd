"""Derives the process groups of an operation table, and the duration of each transfer without waiting.

A table names no process groups. Those of a collective follow from its end times, since all members end together: if
the ends on all stages coincide, it is one group of all participating ranks; else each stage has its own. A send or a
receive is between two neighbouring stages of one replica.

A receive that began early contains waiting for a sender that may not wait at all. So the transfer lasts from the later
of both beginnings to the end of the receive, for which clocks synchronised by NTP suffice. Without a partner it is the
operation's own duration.

Shapes: N operations; M those that communicate; P pairs of a send and its receive.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rankwatch.contract.statistics import CollectiveWindow
from rankwatch_monitor.core.ranks import Floats, Ints
from rankwatch_monitor.replay.traces.parts import Kind, grouped, spread
from rankwatch_monitor.replay.traces.table import OperationTable

TOGETHER: Final = 0.05
"""A collective whose ends on all stages lie within this fraction of the step is one group."""


def is_pair(optype: str) -> bool:
    """Whether an operation is point to point between two stages, not a collective."""
    return "send" in optype.lower() or "recv" in optype.lower()


def turns(cell_N: Ints) -> Ints:
    """The index of each operation in its cell, from 0; sorted by cell."""
    first = np.flatnonzero(np.concatenate([[True], np.diff(cell_N) != 0]))
    return np.arange(len(cell_N)) - np.repeat(first, np.diff(np.append(first, len(cell_N))))


def collectives(table: OperationTable, exposed_N: Floats) -> dict[int, dict[str, CollectiveWindow]]:
    """Time of each cell in the collectives of each process group, by cell and group.

    Args:
        exposed_N: seconds of each that do not overlap with own work.
    """
    chosen = np.flatnonzero(table.kind_N == Kind.COMMUNICATION)
    if not len(chosen):
        return {}
    together = _together(table, chosen)
    triple = np.stack([table.type_N[chosen], table.stage_N[chosen], table.dp_rank_N[chosen]], 1)
    kinds, kind_M = np.unique(triple, axis=0, return_inverse=True)
    last = int(table.stage_N.max())
    names = [
        table.types[code] if code in together else _group(table.types[code], stage, dp, last)
        for code, stage, dp in kinds.tolist()
    ]
    texts, group_of = np.unique(np.array(names), return_inverse=True)
    key_M = table.cell_N[chosen] * len(texts) + group_of[kind_M.ravel()]
    busy, shown = grouped(key_M, table.duration_N[chosen]), grouped(key_M, exposed_N[chosen])
    transfer = grouped(key_M, _transfers(table)[chosen])
    found: dict[int, dict[str, CollectiveWindow]] = {}
    columns = (busy.calls_G, busy.sum_G, shown.sum_G, transfer.min_G)
    for key, *values in zip(busy.key_G.tolist(), *(column.tolist() for column in columns), strict=True):
        cell, group = divmod(key, len(texts))
        found.setdefault(cell, {})[str(texts[group])] = CollectiveWindow(*values)
    return found


def _together(table: OperationTable, chosen: Ints) -> set[int]:
    """The types of collectives that are one group over all participating stages."""
    found: set[int] = set()
    span = float(np.median(_spans(table)))
    for code in np.unique(table.type_N[chosen]).tolist():
        if is_pair(table.types[code]):
            continue
        of_type = chosen[table.type_N[chosen] == code]
        turn = turns(table.cell_N[of_type])
        most = int(turn.max()) + 1
        end = table.start_N[of_type] + table.duration_N[of_type]
        _, at = np.unique(table.step_N[of_type] * most + turn, return_inverse=True)
        apart, begun = spread(at, end), spread(at, table.start_N[of_type])
        stages = int(table.stage_N.max()) + 2
        within = spread(at * stages + table.stage_N[of_type] + 1, end)
        instances = int(at.max()) + 1
        if apart <= max(TOGETHER * min(begun, span * instances), 2 * within):
            found.add(int(code))
    return found


def _spans(table: OperationTable) -> Floats:
    """Seconds of each cell from its first start to its last end."""
    first_C = np.flatnonzero(np.concatenate([[True], np.diff(table.cell_N) != 0]))
    end_C: Floats = np.maximum.reduceat(table.start_N + table.duration_N, first_C) - table.start_N[first_C]
    return end_C


def _transfers(table: OperationTable) -> Floats:
    """Seconds of each operation without waiting for its partner (N)."""
    transfer_N = table.duration_N.copy()
    lasts = int(table.stage_N.max()) + 1
    for way, ahead in (("forward", 1), ("backward", -1)):
        sends, receives = (
            np.flatnonzero(np.isin(table.type_N, _codes(table, f"{way}-{op}"))) for op in ("send", "recv")
        )
        # Where rows are missing, operations cannot be paired by their order.
        sends, receives = _complete(table, sends), _complete(table, receives)
        if not len(sends) or not len(receives):
            continue
        keys = [
            np.stack(
                [
                    table.step_N[ops],
                    table.dp_rank_N[ops],
                    table.tp_rank_N[ops],
                    (table.stage_N[ops] + shift) % lasts,
                    turns(table.cell_N[ops]),
                ],
                axis=1,
            )
            for ops, shift in ((sends, ahead), (receives, 0))
        ]
        _, number = np.unique(np.concatenate(keys), axis=0, return_inverse=True)
        send_of = np.full(int(number.max()) + 1, -1)
        number = number.ravel()
        send_of[number[: len(sends)]] = sends
        partner_P = send_of[number[len(sends) :]]
        receives, partner_P = receives[partner_P >= 0], partner_P[partner_P >= 0]
        began_P = np.maximum(table.start_N[receives], table.start_N[partner_P])
        ended_P = table.start_N[receives] + table.duration_N[receives]
        between_P = np.clip(ended_P - began_P, 0.0, table.duration_N[receives])
        transfer_N[receives] = transfer_N[partner_P] = between_P
    return transfer_N


def _complete(table: OperationTable, ops: Ints) -> Ints:
    """The operations of those cells that hold as many of them as most do."""
    if not len(ops):
        return ops
    calls_C = np.bincount(table.cell_N[ops], minlength=int(table.cell_N[-1]) + 1)
    usual = int(np.argmax(np.bincount(calls_C[calls_C > 0])))
    return ops[calls_C[table.cell_N[ops]] >= usual]


def _codes(table: OperationTable, name: str) -> list[int]:
    return [code for code, optype in enumerate(table.types) if optype.lower().replace("_", "-") == name]


def _group(optype: str, stage: int, dp_rank: int, last: int) -> str:
    """The process group of an operation: a pair of neighbouring stages, or all ranks of a stage."""
    name = optype.lower()
    if stage < 0:
        return "send-recv" if is_pair(name) else optype
    if not is_pair(name):
        return f"{optype}/stage{stage}"
    forward, backward = name.find("forward"), name.find("backward")
    if forward < 0 and backward < 0:
        return f"send-recv/stage{stage}"
    # An operation with both (forward-send-backward-recv) has one neighbour, which its first half determines.
    first_forward = backward < 0 or 0 <= forward < backward
    sends = "send" in name and ("recv" not in name or name.find("send") < name.find("recv"))
    other = (stage + (1 if first_forward == sends else -1)) % (last + 1)
    replica = f"/dp{dp_rank}" if dp_rank >= 0 else ""
    return f"send-recv/stage{min(stage, other)}-{max(stage, other)}{replica}"
