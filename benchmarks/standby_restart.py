"""P13c: from a rank's death to the first new step, with fresh processes and from a warm standby, beside torchrun.

    python benchmarks/standby_restart.py [--kills N] [--pause S] [--json FILE]

Two ranks meet over gloo and step together. When an attempt has stepped for ``--pause`` seconds, rank 1 writes down the
time and kills itself with SIGKILL; every attempt writes down its first step. The three rows run the same script, one
after the other: under torchrun, under ``rankwatch run``, and under ``rankwatch run --standby``. The pause gives the
standby time to park, and is the same for all.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import _service
import _table


def rank(folder: Path, kills: int, pause: float) -> None:
    """What each rank runs: steps that all ranks take together, and rank 1's death."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    attempt, own = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), dist.get_rank()
    begun = time.monotonic()
    going = torch.ones(1)
    first = True
    while going.item() == 1.0:
        if own == 1:
            going.fill_(float(attempt < kills or first))
        dist.broadcast(going, 1)
        if first:
            (folder / f"step-{attempt}-{own}").write_text(str(time.time()))
            first = False
        if own == 1 and attempt < kills and time.monotonic() - begun > pause:
            (folder / f"killed-{attempt}").write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02)
    # Without an interpreter that shuts down: gloo's threads sometimes abort it there.
    os._exit(0)


def measure(folder: Path, launcher: list[str], kills: int, pause: float) -> dict[str, float]:
    """Run a job that is killed ``kills`` times; return the spread from each death to the first step after it."""
    folder.mkdir()
    command = [
        sys.executable,
        "-m",
        *launcher,
        "--standalone",
        "--nproc-per-node",
        "2",
        "--max-restarts",
        str(3 * kills),
    ]
    command += [__file__, "--as-rank", str(kills), str(pause)]
    environment = {"BENCH_FOLDER": str(folder), "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with _service.process(command, folder / "run.log", **environment) as running:
        _service.wait_for("the job's end", lambda: running.poll() is not None or None, 300 + (120 + pause) * kills)
    log = (folder / "run.log").read_text()
    if running.returncode != 0:
        sys.exit(f"the job failed:\n{log[-3000:]}")
    if "--standby" in launcher and log.count("starts from the standby") < 2 * kills:
        print(
            f"{log.count('starts from the standby')} of {2 * kills} ranks came from the standby; a longer --pause helps"
        )
    figures = []
    for attempt in range(kills):
        killed = float((folder / f"killed-{attempt}").read_text())
        figures.append(max(float((folder / f"step-{attempt + 1}-{r}").read_text()) for r in (0, 1)) - killed)
    return _table.spread(figures)


def main() -> None:
    """Run the benchmark."""
    asked = _table.arguments(
        __doc__, kills=(5, "restarts for each row"), pause=(30.0, "seconds that an attempt steps before its end")
    )
    rows = {}
    with tempfile.TemporaryDirectory() as name:
        for row, launcher in (
            ("torchrun", ["torch.distributed.run"]),
            ("fresh", ["rankwatch", "run"]),
            ("standby", ["rankwatch", "run", "--standby"]),
        ):
            rows[row] = measure(Path(name) / row, launcher, asked.kills, asked.pause)
    _table.report(rows, "death → first new step, s", asked.json)


if __name__ == "__main__":
    if "--as-rank" in sys.argv:
        rank(Path(os.environ["BENCH_FOLDER"]), int(sys.argv[-2]), float(sys.argv[-1]))
    else:
        main()
