"""The window that is being gathered: which ranks have told theirs, and when it can be judged. Pure.

How this works
--------------
Ranks close the same windows, but tell of them at their next export. Where one of them tells none, the others' next
windows arrive while it is waited for. Then only those of one and the same step are judged together, the step of most
ranks; later ones are kept for the next window. Where no step has most of the ranks, since windows are shorter than the
time between two exports, all count as one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from rankwatch.contract.intervals import window_spread
from rankwatch_monitor.core.events import WindowReport
from rankwatch_monitor.core.ranks import Ints
from rankwatch_monitor.core.straggler.links import Transfer

GATHER: Final = 3.0
"""Seconds to wait for the windows of the other ranks."""
GATHER_GAPS: Final = 2.5
"""At scale ranks export less often: so many of their usual gaps are waited, when that is longer."""
MAX_GROUPS: Final = 4096
"""Process groups of one job whose transfers are watched."""
BY_THE_CLOCK: Final = -1


@dataclass(slots=True)
class Gathering:
    """Which ranks have told of the window that is being gathered."""

    fresh: dict[int, int] = field(default_factory=dict)
    """The step that closed each rank's window; :data:`BY_THE_CLOCK` where it counts none."""
    since: float | None = None
    overtaken: bool = False
    """A rank has told of its next window already."""
    transfers: dict[str, Transfer] = field(default_factory=dict)

    def take(self, rank: int, window: WindowReport, now: float) -> None:
        """Take in what one rank tells."""
        iteration = BY_THE_CLOCK if window.iteration is None else window.iteration
        before = self.fresh.get(rank)
        self.overtaken |= before is not None and before < iteration
        self.fresh[rank] = iteration
        if self.since is None:
            self.since = now
        for group, told in window.collectives.items():
            transfer = self.transfers.get(group)
            if transfer is None:
                if len(self.transfers) >= MAX_GROUPS:
                    continue
                transfer = self.transfers[group] = Transfer()
            transfer.take(told)

    def ready_at(self, expected: int, usual_gap: float) -> float:
        """When it can be judged (unix seconds); infinity: nothing is being gathered.

        Args:
            expected: how many ranks may be waited for.
            usual_gap: seconds between two exports of a rank.
        """
        if self.since is None:
            return np.inf
        if len(self.fresh) >= expected or (self.overtaken and 2 * len(self.fresh) > expected):
            return self.since
        return self.since + max(GATHER, GATHER_GAPS * usual_gap) + window_spread(expected)

    def closed(self) -> tuple[Ints, int | None, dict[int, int]]:
        """The ranks that are judged together, the step that closed their window, and the later windows of others."""
        count = len(self.fresh)
        rank_i = np.fromiter(self.fresh.keys(), np.int64, count)
        step_i = np.fromiter(self.fresh.values(), np.int64, count)
        steps, ranks = np.unique(step_i, return_counts=True)
        if steps[0] == BY_THE_CLOCK:
            return rank_i, None, {}
        most = int(np.argmax(ranks))
        if 2 * ranks[most] <= count:
            return rank_i, int(steps[-1]), {}
        step = int(steps[most])
        later_i = step_i > step
        return rank_i[step_i == step], step, dict(zip(rank_i[later_i].tolist(), step_i[later_i].tolist(), strict=True))
