"""An operation table in memory, as columns. Shapes: N operations."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rankwatch_monitor.core.ranks import Floats, Ints


@dataclass(frozen=True, slots=True)
class OperationTable:
    """Operations in seconds, sorted by step, rank and start."""

    path: Path
    notes: tuple[str, ...]
    """Assumptions made while reading, one sentence each."""
    rank_N: Ints
    step_N: Ints
    type_N: Ints
    types: tuple[str, ...]
    kind_N: Ints
    start_N: Floats
    duration_N: Floats
    dp_rank_N: Ints
    tp_rank_N: Ints
    stage_N: Ints
    host_N: Ints
    hosts: tuple[str, ...]
    cell_N: Ints = field(repr=False)
    certainty: float = 1.0
    """Part of all steps of single ranks in which no computation is missing."""

    def __len__(self) -> int:
        return len(self.rank_N)

    @property
    def ranks(self) -> Ints:
        """The ranks, sorted."""
        return np.unique(self.rank_N)

    @property
    def steps(self) -> Ints:
        """The steps, sorted."""
        return np.unique(self.step_N)
