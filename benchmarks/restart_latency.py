"""P10: from a rank's exit to the restart begun, with the monitor up and with the monitor away.

    python benchmarks/restart_latency.py [--kills N] [--json FILE]

A launcher runs two ranks (without torch, so that their own start does not hide the launcher's part). Rank 1 kills
itself with SIGKILL in every attempt and writes down when; the launcher takes the other rank's stack, kills it, meets
again and starts new processes. The figure is the time from the kill to the start of the first new process, by the
kernel's clock.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import _service
import _table


def rank(folder: Path, kills: int) -> None:
    """What each rank runs: states when its process began, then rank 1 dies once rank 0 is there too."""
    import rankwatch

    rankwatch.init()
    attempt, number = int(os.environ["RANKWATCH_ATTEMPT"]), os.environ["RANK"]
    (folder / f"started-{attempt}-{number}").write_text(str(_started()))
    with rankwatch.step():
        if attempt <= kills:
            if number == "1":
                _service.wait_for("the other rank", lambda: (folder / f"started-{attempt}-0").exists() or None)
                (folder / f"killed-{attempt}").write_text(str(time.clock_gettime(time.CLOCK_BOOTTIME)))
                os.kill(os.getpid(), 9)
            time.sleep(60)


def _started() -> float:
    """When this process began, in seconds since boot; the kernel counts it in hundredths."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(folder: Path, kills: int, monitor: str) -> dict[str, float]:
    """Run a job that is killed ``kills`` times; return the spread of its restarts."""
    command = [sys.executable, "-m", "rankwatch", "run", "--standalone", "--nproc-per-node", "2", "--monitor", monitor]
    command += ["--max-restarts", str(kills), __file__, "--as-rank", str(kills)]
    with _service.process(command, folder / "run.log", BENCH_FOLDER=str(folder)) as running:
        _service.wait_for("the job's end", lambda: running.poll() is not None or None, 30 + 10.0 * kills)
    if running.returncode != 0:
        sys.exit(f"the job failed:\n{(folder / 'run.log').read_text()[-3000:]}")
    figures = []
    for attempt in range(1, kills + 1):
        killed = float((folder / f"killed-{attempt}").read_text())
        begun = min(float((folder / f"started-{attempt + 1}-{r}").read_text()) for r in (0, 1))
        figures.append(begun - killed)
    return _table.spread(figures)


def main() -> None:
    """Run the benchmark."""
    asked = _table.arguments(__doc__, kills=(20, "restarts for each row"))
    rows = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with _service.monitor(folder) as url:
            rows["monitor up"] = measure(_fresh(folder / "up"), asked.kills, url)
        rows["monitor away"] = measure(_fresh(folder / "away"), asked.kills, url)
    _table.report(rows, "exit → new process, s", asked.json)


def _fresh(folder: Path) -> Path:
    folder.mkdir()
    return folder


if __name__ == "__main__":
    if "--as-rank" in sys.argv:
        rank(Path(os.environ["BENCH_FOLDER"]), int(sys.argv[-1]))
    else:
        main()
