"""P13b: from a rank's death to the first new step of all ranks, beside torchrun, and the time to the very first step.

    python benchmarks/standby_restart.py [--ranks N] [--kills N] [--pause S] [--starts N] [--json FILE]

The ranks meet over gloo and step together. When an attempt has stepped for a pause, rank 1 writes down the time and
kills itself with SIGKILL; every attempt writes down its first step. The rows run the same script, one after the other:
torchrun, ``rankwatch run`` as it is by default, and ``--no-standby``. ``--pause`` belongs to the default, whose workers
are prewarmed meanwhile; the other rows have nothing to wait for, and pause for 3 s.

Then jobs without a fault are started by turns, by default and with ``--no-standby``: prewarming must not cost the first
start anything.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import _service
import _table

BY_DEFAULT, COLD = ["rankwatch", "run"], ["rankwatch", "run", "--no-standby"]
SHORT_PAUSE = 3.0


def rank(folder: Path, kills: int, pause: float) -> None:
    """What each rank runs: steps that all ranks take together, and rank 1's death."""
    import torch
    import torch.distributed as dist

    import rankwatch

    rankwatch.init()
    dist.init_process_group("gloo")
    attempt, own = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), dist.get_rank()
    begun, step = time.monotonic(), 0
    going = torch.ones(1)
    while going.item() == 1.0:
        with rankwatch.step(step):
            if own == 1:
                going.fill_(float(attempt < kills or step == 0))
            dist.broadcast(going, 1)
        if step == 0:
            (folder / f"step-{attempt}-{own}").write_text(str(time.time()))
        step += 1
        if own == 1 and attempt < kills and time.monotonic() - begun > pause:
            (folder / f"killed-{attempt}").write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02)
    # Without an interpreter that shuts down: gloo's threads sometimes abort it there.
    os._exit(0)


def run(folder: Path, launcher: list[str], ranks: int, kills: int, pause: float) -> float:
    """Run a job that is killed ``kills`` times; return the seconds to its very first step."""
    folder.mkdir()
    command = [sys.executable, "-m", *launcher, "--standalone", "--nproc-per-node", str(ranks)]
    command += ["--max-restarts", str(3 * kills), __file__, "--as-rank", str(kills), str(pause)]
    environment = {"BENCH_FOLDER": str(folder), "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    environment["RANKWATCH_STANDBY"] = "auto"
    began = time.time()
    with _service.process(command, folder / "run.log", **environment) as running:
        _service.wait_for("the job's end", lambda: running.poll() is not None or None, 300 + (120 + pause) * kills)
    log = (folder / "run.log").read_text()
    if running.returncode != 0:
        sys.exit(f"the job failed:\n{log[-3000:]}")
    warm = log.count("starts from a prewarmed worker")
    if launcher == BY_DEFAULT and warm < ranks * kills:
        print(f"{warm} of {ranks * kills} ranks started from prewarmed workers; a longer --pause helps")
    return last_step(folder, 0, ranks) - began


def last_step(folder: Path, attempt: int, ranks: int) -> float:
    """When the last rank had its first step."""
    return max(float((folder / f"step-{attempt}-{r}").read_text()) for r in range(ranks))


def restarts(folder: Path, launcher: list[str], ranks: int, kills: int, pause: float) -> list[float]:
    """Seconds from each death to the first step of the last rank after it."""
    run(folder, launcher, ranks, kills, pause)
    deaths = [float((folder / f"killed-{attempt}").read_text()) for attempt in range(kills)]
    return [last_step(folder, attempt + 1, ranks) - death for attempt, death in enumerate(deaths)]


def main() -> None:
    """Run the benchmark."""
    asked = _table.arguments(
        __doc__,
        ranks=(2, "ranks of the job"),
        kills=(9, "restarts for each row"),
        pause=(25.0, "seconds that an attempt steps before its end, by default"),
        starts=(9, "pairs of jobs without a fault"),
    )
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        for row, launcher in (("torchrun", ["torch.distributed.run"]), ("default", BY_DEFAULT), ("no standby", COLD)):
            pause = asked.pause if launcher == BY_DEFAULT else SHORT_PAUSE
            found[row] = restarts(Path(name) / row, launcher, asked.ranks, asked.kills, pause)
        for row, launcher in [("first start, default", BY_DEFAULT), ("first start, no standby", COLD)] * asked.starts:
            at = Path(name) / f"{row} {len(found.setdefault(row, []))}"
            found[row].append(run(at, launcher, asked.ranks, 0, 0.0))
    _table.report({row: _table.spread(figures) for row, figures in found.items()}, "s", asked.json)
    median = {row: statistics.median(figures) for row, figures in found.items()}
    print(f"default / torchrun: {median['default'] / median['torchrun']:.2f}")
    if asked.starts:
        ratio = median["first start, default"] / median["first start, no standby"]
        print(f"first start, default / no standby: {ratio:.3f}")


if __name__ == "__main__":
    if "--as-rank" in sys.argv:
        rank(Path(os.environ["BENCH_FOLDER"]), int(sys.argv[-2]), float(sys.argv[-1]))
    else:
        main()
