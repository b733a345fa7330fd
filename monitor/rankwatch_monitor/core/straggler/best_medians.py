"""The best medians that each device ever had: what individual scores compare a rank with.

They are keyed by the device and the coordinates that decide which work it does (:func:`device_key`), never by the
rank's number, as ranks move between devices. Shapes: R ranks, D devices, K kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from rankwatch.contract.statistics import SectionWindow
from rankwatch_monitor.core.events import RankIdentity
from rankwatch_monitor.core.ranks import Floats, Ints
from rankwatch_monitor.core.straggler.table import Table

MAX_SECTIONS: Final = 32
MAX_KERNELS: Final = 512
"""Different sections and kernels of one job that are compared; further ones are ignored."""


def device_key(identity: RankIdentity) -> str:
    """The key of a device's best medians: the device, and the coordinates that decide which work it does."""
    device = identity.device or f"{identity.host}/{identity.local_rank}"
    return f"{device} {identity.pipeline_parallel},{identity.tensor_parallel},{identity.expert_parallel}"


class BestMedians:
    """The best medians each device ever had, of kernels and of sections: one row a device."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        """By :func:`device_key`."""
        self.kernels = Table(("median",), MAX_KERNELS)
        self.sections = Table(("median",), MAX_SECTIONS)

    def improve_sections(self, row: int, sections: Mapping[str, SectionWindow]) -> None:
        """Take in the section medians of one device."""
        columns = self.sections.columns(sections)
        self.sections.grow(row + 1)
        self.sections.improve(row, columns, [section.median for section in sections.values()])

    def improve_kernels(self, names: Sequence[str], median_RK: Floats, device_R: Ints) -> None:
        """Take in the kernel medians of all ranks."""
        known_R = np.flatnonzero(device_R >= 0)
        columns = [self.kernels.index(name) for name in names]
        self.kernels.grow(len(self.rows))
        kept = [(k, column) for k, column in enumerate(columns) if column is not None]
        if not kept or not len(known_R):
            return
        from_K, to_K = (np.array(each) for each in zip(*kept, strict=True))
        best_DK, cells = self.kernels["median"], np.ix_(device_R[known_R], to_K)
        best_DK[cells] = np.fmin(best_DK[cells], median_RK[np.ix_(known_R, from_K)])

    def of_ranks(self, table: Table, names: Sequence[str], device_R: Ints) -> Floats:
        """The medians of each rank's device in the order of ``names``; shape (R, names)."""
        found_RK: Any = np.full((len(device_R), len(names)), np.nan, dtype=np.float32)
        columns = [table.index(name) for name in names]  # adds new names
        best_DK = table["median"]
        known_R = (device_R >= 0) & (device_R < len(best_DK))
        for column, kept in enumerate(columns):
            if kept is not None:
                found_RK[known_R, column] = best_DK[device_R[known_R], kept]
        best_RK: Floats = found_RK
        return best_RK

    def drop_unused(self, device_R: Ints) -> Ints:
        """Drop the older half of the devices no rank runs on now; return the new row of each rank's device."""
        used = set(device_R[device_R >= 0].tolist())
        unused = [row for row in self.rows.values() if row not in used]
        dropped = set(unused[: max(1, len(unused) // 2)]) if unused else set()
        kept = [(key, row) for key, row in self.rows.items() if row not in dropped]
        for table in (self.kernels, self.sections):
            table.keep([row for _, row in kept])
        self.rows = {key: new for new, (key, _) in enumerate(kept)}
        moved = {old: new for new, (_, old) in enumerate(kept)}
        return np.array([moved.get(int(row), -1) for row in device_R], dtype=np.int64)

    def merge(self, other: BestMedians) -> dict[int, int]:
        """Take in the medians of another one; return the row here of each row there."""
        moved = {row: self.rows.setdefault(key, len(self.rows)) for key, row in other.rows.items()}
        for mine, theirs in ((self.kernels, other.kernels), (self.sections, other.sections)):
            mine.grow(len(self.rows))
            median_DK = theirs["median"]
            for column, name in enumerate(theirs.names):
                if (own := mine.index(name)) is None:
                    continue
                for row, to in moved.items():
                    if row < len(median_DK):
                        mine["median"][to, own] = np.fmin(mine["median"][to, own], median_DK[row, column])
        return moved
