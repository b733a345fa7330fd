"""P11, P12: from a hang to the verdict and to the stacks, with and without a limit, through real processes.

    python benchmarks/detection_latency.py [--hangs N] [--unconfigured N] [--json FILE]

A launcher runs two ranks (without torch: the path is the same, and starts faster). One of them stays in its step
beyond a limit again and again: first its main thread sleeps, then the whole process is stopped by SIGSTOP, so that
its launcher must speak in its name. The rank writes down by the wall clock when it entered the step; the figure is
the monitor's ``detected`` less that and less the limit. Nothing is acted upon (``--on-hang log``), so that one run
gives many hangs.

Then jobs without any limit hang after 40 steps of 50 ms, each in a job of its own, since one that has seen a hang has
learned from it; figures are the incident's ``detected`` and ``captured`` less the beginning of the step.
"""

from __future__ import annotations

import contextlib
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
STEPS, STEP_SECONDS = 40, 0.05
"""Before the hang of a job without a limit."""
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


def limited(folder: Path, url: str, hangs: int) -> dict[str, list[float]]:
    """Seconds from the limit to the verdict, by how the rank hangs."""
    job, rows, seen = f"{url}/api/v1/jobs/latency", dict[str, list[float]](), 0
    with launched(folder, url, "latency", "--on-hang", "log", "--section-timeout", f"step={LIMIT}"):
        _service.wait_for("the ranks", lambda: (_service.get(job) or {}).get("iteration"))
        for kind, words in (("sleep", "main thread sleeps"), ("stop", "process stopped (SIGSTOP)")):
            rows[f"limit → verdict, {words}"] = figures = []
            for _ in range(hangs):
                figures.append(one(folder, job, kind, seen))
                seen = len(requests.get(f"{job}/incidents", timeout=5).json()["incidents"])
        (folder / "stop").touch()
    return rows


def unlimited_rank() -> None:
    """A rank without a limit: rank 1 stays in a step and states since when."""
    import rankwatch

    rankwatch.init()
    for step in range(10**9):
        with rankwatch.step():
            if step == STEPS and os.environ["RANK"] == "1":
                Path(os.environ["BENCH_FOLDER"], "entered").write_text(str(time.time()))
                time.sleep(3600)
            time.sleep(STEP_SECONDS)


def unlimited(folder: Path, url: str, number: int) -> tuple[float, float]:
    """Seconds from a hang of a job without a limit to the incident, and to the stacks of both ranks."""
    mark, job = folder / "entered", f"{url}/api/v1/jobs/unconfigured-{number}"
    mark.unlink(missing_ok=True)
    with launched(folder, url, f"unconfigured-{number}"):
        began = float(_service.wait_for("the hang", lambda: (mark.exists() and mark.read_text()) or None))
        incident = _service.wait_for("the stacks", lambda: captured(job))
    assert [c["rank"] for c in incident["culprits"]] == [1], incident["reason"]
    return float(incident["timeline"]["detected"]) - began, float(incident["timeline"]["captured"]) - began


def captured(job: str) -> dict[str, Any] | None:
    """The job's incident, once its stacks are in."""
    incidents = more_than(0, job)
    return incidents[0] if incidents and incidents[0]["timeline"]["captured"] else None


def launched(folder: Path, url: str, job: str, *flags: str) -> contextlib.AbstractContextManager[object]:
    """A job of two ranks of this script."""
    command = [sys.executable, "-m", "rankwatch", "run", "--standalone", "--nproc-per-node", "2", "--monitor", url]
    command += ["--job-id", job, *flags, __file__, "--as-rank", *(["--limited"] if flags else [])]
    return _service.process(command, folder / f"{job}.log", BENCH_FOLDER=str(folder))


def main() -> None:
    """Run the benchmark."""
    asked = _table.arguments(
        __doc__, hangs=(20, "hangs of each kind"), unconfigured=(5, "hangs without a limit, each in a job of its own")
    )
    with tempfile.TemporaryDirectory() as name, _service.monitor(Path(name)) as url:
        rows = limited(Path(name), url, asked.hangs) if asked.hangs else {}
        found = [unlimited(Path(name), url, number) for number in range(asked.unconfigured)]
    if found:
        incidents, stacks = map(list, zip(*found, strict=True))
        rows |= {"no limit: hang → incident": incidents, "no limit: hang → stacks": stacks}
    _table.report({row: _table.spread(figures) for row, figures in rows.items()}, "s", asked.json)


if __name__ == "__main__":
    if "--as-rank" not in sys.argv:
        main()
    elif "--limited" in sys.argv:
        rank()
    else:
        unlimited_rank()
