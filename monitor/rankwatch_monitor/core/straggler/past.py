"""A rank's own past: what it took while it was not behind, for ranks with too few peers to compare them with.

Shapes: R ranks, G peer groups, H nodes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from rankwatch_monitor.core.ranks import Bools, Floats, Ints
from rankwatch_monitor.core.straggler import peers
from rankwatch_monitor.core.straggler.window import Window

PAST: Final = 3
"""Windows in which a rank was not behind from which on its own past is a measure."""
FASTER: Final = 0.75
"""Times its own past below which a rank's work begins another past."""


class Past(NamedTuple):
    """What each rank took for its own work while neither it nor its node was behind; shape (R,), seconds of a step."""

    windows_R: Ints
    mean_R: Floats
    grown_R: Floats
    """By how much the newest window is more; NaN while those are too few."""
    few_R: Bools
    """It has so few peers that it is unknown which of them is unusual."""
    alone_R: Bools
    """It has none."""
    whole_H: Bools
    """Nodes that are a stage."""
    step: float

    @classmethod
    def unknown(cls, ranks: int) -> Past:
        """Of so many ranks."""
        nothing_R, no_R = np.full(ranks, np.nan), np.zeros(ranks, dtype=np.bool_)
        return cls(np.zeros(ranks, np.int64), np.zeros(ranks), nothing_R, no_R, no_R, no_R[:0], float("nan"))

    def after(self, window: Window, node_R: Ints, slowdown: float) -> Past:
        """The same with one more window."""
        work_R, late_H = window.late.work_R, window.nodes.late_H
        if np.isnan(work_R).all():
            return self
        known = self if len(self.mean_R) == len(work_R) else Past.unknown(len(work_R))
        with np.errstate(invalid="ignore"):
            behind_R = window.signal_R > slowdown
            if len(late_H):
                behind_R = behind_R | ((node_R >= 0) & (late_H > slowdown)[node_R])
        usual_R = ~np.isnan(work_R) & ~behind_R
        # A job's first windows may take many times as long: they are no past once it is faster.
        before_R = np.where(usual_R & (work_R < FASTER * known.mean_R), 0, known.windows_R)
        windows_R = before_R + usual_R
        mean_R = known.mean_R + np.where(usual_R, work_R - known.mean_R, 0.0) / np.maximum(windows_R, 1)
        size_G = np.bincount(window.group_R[window.group_R >= 0], minlength=1)
        return Past(
            windows_R,
            mean_R,
            grown_R=np.where(windows_R >= PAST, work_R - mean_R, np.nan),
            few_R=(window.group_R >= 0) & (size_G[window.group_R] <= peers.MIN_PEERS),
            alone_R=window.alone_R,
            whole_H=window.nodes.whole_H,
            step=float(np.nanmedian(window.late.step_R)),
        )
