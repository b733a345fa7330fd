"""A policy that is changed while the job runs reaches the ranks: monitor, directive, launcher, slots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from e2e.training import Training
from rankwatch.contract.env import slots_file
from rankwatch.recording.shared_slots import Slots

pytestmark = pytest.mark.timeout(240)


def profiling(training: Training) -> list[dict[str, Any]]:
    """What each rank finds in its slots about profiling; nothing while it is being written."""
    found = []
    for rank, lines in training.reported().items():
        slots = Slots.open(Path(lines[-1]["slots"]) / slots_file(rank))
        try:
            handed = slots.settings()
        finally:
            slots.close()
        found.append({} if handed is None else handed[1].get("profiling", {}))
    return found


def test_profiling_is_changed_while_the_job_runs(watched: Training) -> None:
    launcher = watched.run(ranks=2)
    watched.until_running(2)
    given = {"source": "auto", "interval": 0, "ranks": "all", "report_interval": 300.0}
    watched.until("both ranks were given the defaults", lambda: each_has(watched, given))
    assert watched.api is not None
    changes = {"kernel_timings": "off", "profiling_interval": 4, "profiled_ranks": "1", "report_interval": 30}
    answer = watched.api.patch(f"/api/v1/jobs/{watched.job}/policy", json=changes)
    assert answer.status_code == 200, answer.text
    changed = {"source": "off", "interval": 4, "ranks": "1", "report_interval": 30.0}
    watched.until("both ranks were given the changes", lambda: each_has(watched, changed))

    wrong = watched.api.patch(f"/api/v1/jobs/{watched.job}/policy", json={"profiled_ranks": "first"})
    assert (wrong.status_code, "ranks are written all, none or like 0,8-15" in wrong.text) == (422, True)
    assert watched.finish() == [0], launcher.printed()


def each_has(training: Training, expected: dict[str, Any]) -> bool:
    return [{**each, **expected} == each for each in profiling(training)] == [True, True]
