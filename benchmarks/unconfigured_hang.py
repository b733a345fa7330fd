"""P12: a hang without any configuration, from its beginning to the incident and to the stacks, through real processes.

    python benchmarks/unconfigured_hang.py [--hangs N] [--json FILE]

A launcher runs two ranks (without torch: the path is the same, and starts faster) with no limit set anywhere. After 40
steps of 50 ms one of them stays in its step. The rank writes down by the wall clock when that was; the figures are the
incident's ``detected`` and ``captured`` less that. Every hang is one of a fresh job, since a job that has seen one has
learned from it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import _service
import _table

STEPS = 40
STEP_SECONDS = 0.05


def rank() -> None:
    """What each rank runs: steps of 50 ms; rank 1 stays in one of them and states since when."""
    import rankwatch

    rankwatch.init()
    for step in range(10**9):
        with rankwatch.step():
            if step == STEPS and os.environ["RANK"] == "1":
                Path(os.environ["BENCH_FOLDER"], "hung").write_text(str(time.time()))
                time.sleep(3600)
            time.sleep(STEP_SECONDS)


def one(folder: Path, url: str, number: int) -> tuple[float, float]:
    """Provoke one hang; return the seconds from it to the incident and to the stacks of both ranks."""
    mark, job = folder / "hung", f"{url}/api/v1/jobs/unconfigured-{number}"
    mark.unlink(missing_ok=True)
    command = [sys.executable, "-m", "rankwatch", "run", "--standalone", "--nproc-per-node", "2"]
    command += ["--monitor", url, "--job-id", f"unconfigured-{number}", __file__, "--as-rank"]
    with _service.process(command, folder / f"run-{number}.log", BENCH_FOLDER=str(folder)):
        began = float(_service.wait_for("the hang", lambda: (mark.exists() and mark.read_text()) or None))
        incident = _service.wait_for("the stacks", lambda: captured(job))
    assert [c["rank"] for c in incident["culprits"]] == [1], incident["reason"]
    timeline = incident["timeline"]
    return float(timeline["detected"]) - began, float(timeline["captured"]) - began


def captured(job: str) -> dict[str, Any] | None:
    """The job's incident, once its stacks are in."""
    incidents = (_service.get(f"{job}/incidents") or {"incidents": []})["incidents"]
    return incidents[0] if incidents and incidents[0]["timeline"]["captured"] else None


def main() -> None:
    """Run the benchmark."""
    asked = _table.arguments(__doc__, hangs=(5, "hangs, each in a job of its own"))
    with tempfile.TemporaryDirectory() as name, _service.monitor(Path(name)) as url:
        figures = [one(Path(name), url, number) for number in range(asked.hangs)]
    rows = {
        "hang → incident": _table.spread([found for found, _ in figures]),
        "hang → stacks of both ranks": _table.spread([stacks for _, stacks in figures]),
    }
    _table.report(rows, "a hang without a configured limit, s", asked.json)


if __name__ == "__main__":
    rank() if "--as-rank" in sys.argv else main()
