"""Tables over ranks and names grow without being copied for each name."""

from __future__ import annotations

import tracemalloc

from rankwatch_monitor.core.straggler.best_medians import MAX_KERNELS
from rankwatch_monitor.core.straggler.table import Table


def test_the_first_report_of_a_large_job_makes_room_for_its_names_at_once() -> None:
    table = Table(("median", "tail", "total"), MAX_KERNELS)
    table.grow(10_000)
    tracemalloc.start()
    table.put(9_999, {f"kernel_{number}": (number, number, number) for number in range(100)})
    kept, highest = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert highest < 1.1 * kept, "columns were copied while it grew"
    assert table["median"][9_999].tolist() == list(range(100))
