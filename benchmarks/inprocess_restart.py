"""From a rank's exception to the first new step: within the process, by the launcher, and from a warm standby.

    python benchmarks/inprocess_restart.py [--faults N] [--pause S] [--json FILE]

Two ranks meet over gloo and step together. When they have stepped for ``--pause`` seconds, rank 1 writes down the time
and raises; after each restart every rank writes down its first step. The three rows run the same training function, one
after the other: inside :class:`rankwatch.inprocess.Wrapper`, under ``rankwatch run``, and under ``rankwatch run
--standby``. Times depend on the machine and on what else it does; the ratios of one run are the result.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import _service
import _table


def rank(folder: Path, faults: int, pause: float, wrapped: bool) -> None:
    """What each rank runs."""
    import torch
    import torch.distributed as dist

    from rankwatch import inprocess

    def train() -> None:
        dist.init_process_group("gloo")
        number = inprocess.iteration() if wrapped else int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        own, begun, going, first = dist.get_rank(), time.monotonic(), torch.ones(1), True
        while going.item() == 1.0:
            if own == 1:
                going.fill_(float(number < faults or first))
            dist.broadcast(going, 1)
            if first:
                (folder / f"step-{number}-{own}").write_text(str(time.time()))
                first = False
            if own == 1 and number < faults and time.monotonic() - begun > pause:
                (folder / f"fault-{number}").write_text(str(time.time()))
                raise RuntimeError("on purpose")
            time.sleep(0.02)

    if wrapped:
        inprocess.Wrapper(max_restarts=faults)(train)()
    else:
        train()
    # Without an interpreter that shuts down: gloo's threads sometimes abort it there.
    os._exit(0)


def measure(folder: Path, row: str, faults: int, pause: float) -> dict[str, float]:
    """Run a job with so many faults; return the spread from each to the first step after it."""
    folder.mkdir()
    flags = ["--standby"] if row == "standby" else []
    command = [sys.executable, "-m", "rankwatch", "run", *flags, "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", str(3 * faults), "--max-no-progress", "0"]
    command += [__file__, "--as-rank", row, str(faults), str(pause)]
    with _service.process(command, folder / "run.log", BENCH_FOLDER=str(folder), OMP_NUM_THREADS="1") as running:
        _service.wait_for("the job's end", lambda: running.poll() is not None or None, 300 + (120 + pause) * faults)
    log = (folder / "run.log").read_text()
    if running.returncode != 0:
        sys.exit(f"the job failed:\n{log[-3000:]}")
    warm = log.count("starts from the standby")
    if row == "standby" and warm < 2 * faults:
        print(f"{warm} of {2 * faults} ranks came from the standby; a longer --pause helps")
    figures = []
    for number in range(faults):
        raised = float((folder / f"fault-{number}").read_text())
        figures.append(max(float((folder / f"step-{number + 1}-{r}").read_text()) for r in (0, 1)) - raised)
    return _table.spread(figures)


def main() -> None:
    """Run the benchmark."""
    asked = _table.arguments(
        __doc__, faults=(5, "restarts for each row"), pause=(30.0, "seconds that the ranks step before each fault")
    )
    with tempfile.TemporaryDirectory() as name:
        rows = {
            row: measure(Path(name) / row, row, asked.faults, asked.pause) for row in ("in-process", "fresh", "standby")
        }
    for figures in rows.values():
        figures["x"] = figures["p50"] / rows["in-process"]["p50"]
    _table.report(rows, "exception → first new step, s", asked.json)


if __name__ == "__main__":
    if "--as-rank" in sys.argv:
        rank(Path(os.environ["BENCH_FOLDER"]), int(sys.argv[-2]), float(sys.argv[-1]), sys.argv[-3] == "in-process")
    else:
        main()
