"""P11: from the deadline of a section to the verdict, with default settings, through real processes.

    python benchmarks/detection_latency.py [--hangs N] [--json FILE]

A launcher runs two ranks (without torch: the path is the same, and starts faster). One of them stays in its step
beyond the limit again and again: first its main thread sleeps, then the whole process is stopped by SIGSTOP, so that
its launcher must speak in its name. The rank writes down by the wall clock when it entered the step; the figure is
the monitor's ``detected`` less that and less the limit. Nothing is acted upon (``--on-hang log``), so that one run
gives many hangs.
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
import requests

LIMIT = 1.5
REST = 1.2
"""Seconds a hang lasts beyond its limit: longer than any latency worth measuring."""


def rank() -> None:
    """What each rank runs: steps of 20 ms; rank 1 hangs once a file exists, and prints when it entered the step."""
    import rankwatch

    folder = Path(os.environ["BENCH_FOLDER"])
    rankwatch.init()
    while not (folder / "stop").exists():
        order = folder / "hang"
        reported = os.environ["RANK"] == "1" and order.exists()
        with rankwatch.step():
            if reported:
                entered = time.time()
                kind = order.read_text()
                order.unlink()
                (folder / "entered").write_text(f"{entered} {os.getpid()}")
                if kind == "sleep":
                    time.sleep(LIMIT + REST)
                else:
                    # Stopped from outside while it is here; the loop only ends once it was.
                    while not (folder / "resumed").exists():
                        time.sleep(0.001)
                    (folder / "resumed").unlink()
            else:
                time.sleep(0.02)
    rankwatch.shutdown()


def one(folder: Path, job: str, kind: str, seen: int) -> float:
    """Provoke one hang; return the seconds from its deadline to the verdict."""
    unfinished = folder / "hang.tmp"
    unfinished.write_text(kind)
    unfinished.rename(folder / "hang")
    mark = folder / "entered"
    text = _service.wait_for("the hang", lambda: (mark.exists() and mark.read_text()) or None)
    mark.unlink()
    entered, pid = float(text.split()[0]), int(text.split()[1])
    if kind == "stop":
        os.kill(pid, 19)
    try:
        incidents = _service.wait_for("the verdict", lambda: more_than(seen, job))
    finally:
        if kind == "stop":
            (folder / "resumed").touch()
            os.kill(pid, 18)
    newest = f"{job}/incidents/{incidents[0]['id']}"
    _service.wait_for("the end of the incident", lambda: _service.get(newest)["closed_at"])
    return float(incidents[0]["timeline"]["detected"]) - entered - LIMIT


def more_than(seen: int, job: str) -> list[dict[str, Any]] | None:
    """The incidents of a job once there are more than ``seen``, the newest first."""
    incidents = (_service.get(f"{job}/incidents") or {"incidents": []})["incidents"]
    return incidents if len(incidents) > seen else None


def main() -> None:
    """Run the benchmark."""
    asked = _table.arguments(__doc__, hangs=(20, "hangs of each kind"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with _service.monitor(folder) as url:
            command = [sys.executable, "-m", "rankwatch", "run", "--standalone", "--nproc-per-node", "2"]
            command += ["--monitor", url, "--job-id", "latency", "--on-hang", "log"]
            command += ["--section-timeout", f"step={LIMIT}", __file__, "--as-rank"]
            job = f"{url}/api/v1/jobs/latency"
            with _service.process(command, folder / "run.log", BENCH_FOLDER=name):
                _service.wait_for("the ranks", lambda: (_service.get(job) or {}).get("iteration"))
                rows, seen = {}, 0
                for kind, words in (("sleep", "main thread sleeps"), ("stop", "process stopped (SIGSTOP)")):
                    figures = []
                    for _ in range(asked.hangs):
                        figures.append(one(folder, job, kind, seen))
                        seen = len(requests.get(f"{job}/incidents", timeout=5).json()["incidents"])
                    rows[words] = _table.spread(figures)
                (folder / "stop").touch()
    _table.report(rows, "deadline → verdict, s", asked.json)


if __name__ == "__main__":
    rank() if "--as-rank" in sys.argv else main()
