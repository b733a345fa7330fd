"""P10, P13b: from a fault of a rank to the new process, and to the first new step of all ranks.

    python benchmarks/restart.py [--parts exit kill exception] [--ranks N] [--faults N] [--pause S] [--json FILE]

exit       to the start of the first new process by the kernel's clock, with the monitor up and away; rank 1 of two
           ranks without torch, whose own start would hide the launcher's part, kills itself
kill       to the first step of the last rank, under torchrun, ``rankwatch run`` as it is by default, and
           ``--no-standby``; the ranks meet over gloo and step together, and rank 1 kills itself
exception  the same after an exception: inside :class:`rankwatch.inprocess.Wrapper`, under ``rankwatch run
           --no-standby`` and under ``rankwatch run --standby``

``--pause`` are the seconds of steps before a fault where workers are prewarmed meanwhile; the others pause for 3 s.
Times depend on the machine and on what else it does; the ratios of one run are the result.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import _service
import _table

TORCHRUN, OURS = ["torch.distributed.run"], ["rankwatch", "run"]
WRAPPED, KILL, RAISE = "in-process", "kill", "raise"
ROWS = {
    "kill": {
        "torchrun": (KILL, TORCHRUN),
        "default": (KILL, OURS),
        "no standby": (KILL, [*OURS, "--no-standby"]),
    },
    "exception": {
        "in-process": (WRAPPED, [*OURS, "--no-standby"]),
        "fresh": (RAISE, [*OURS, "--no-standby"]),
        "standby": (RAISE, [*OURS, "--standby"]),
    },
}
"""Of each part its rows: what rank 1 does, and under which launcher."""
SHORT_PAUSE = 3.0


def bare(folder: Path, kills: int) -> None:
    """A rank without torch: states when its process began; rank 1 dies once rank 0 is there too."""
    import rankwatch

    rankwatch.init()
    attempt, number = int(os.environ["RANKWATCH_ATTEMPT"]) - 1, os.environ["RANK"]
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    (folder / f"step-{attempt}-{number}").write_text(str(ticks / os.sysconf("SC_CLK_TCK")))
    with rankwatch.step():
        if attempt < kills:
            if number == "1":
                _service.wait_for("the other rank", lambda: (folder / f"step-{attempt}-0").exists() or None)
                (folder / f"fault-{attempt}").write_text(str(time.clock_gettime(time.CLOCK_BOOTTIME)))
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)


def training(folder: Path, faults: int, pause: float, how: str) -> None:
    """A rank that steps together with the others; each attempt writes down its first step."""
    import torch
    import torch.distributed as dist

    import rankwatch
    from rankwatch import inprocess

    def train() -> None:
        dist.init_process_group("gloo")
        attempt = inprocess.iteration() if how == WRAPPED else int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        own, begun, going, step = dist.get_rank(), time.monotonic(), torch.ones(1), 0
        while going.item() == 1.0:
            with rankwatch.step(step) if how == KILL else contextlib.nullcontext():
                if own == 1:
                    going.fill_(float(attempt < faults or step == 0))
                dist.broadcast(going, 1)
            if step == 0:
                (folder / f"step-{attempt}-{own}").write_text(str(time.time()))
            step += 1
            if own == 1 and attempt < faults and time.monotonic() - begun > pause:
                (folder / f"fault-{attempt}").write_text(str(time.time()))
                if how == KILL:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise RuntimeError("on purpose")
            time.sleep(0.02)

    if how == WRAPPED:
        inprocess.Wrapper(max_restarts=faults)(train)()
    else:
        if how == KILL:
            rankwatch.init()
        train()
    # Without an interpreter that shuts down: gloo's threads sometimes abort it there.
    os._exit(0)


def measure(folder: Path, launcher: list[str], ranks: int, faults: int, rank: list[str]) -> dict[str, list[float]]:
    """Run a job with so many faults; from each the seconds to the first and to the last rank of the next attempt."""
    folder.mkdir()
    command = [sys.executable, "-m", *launcher, "--standalone", "--nproc-per-node", str(ranks)]
    command += ["--max-restarts", str(3 * faults)]
    command += ["--max-no-progress", "0"] if launcher != TORCHRUN else []
    environment = {"BENCH_FOLDER": str(folder), "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    command += [__file__, "--as-rank", str(faults), *rank]
    with _service.process(command, folder / "run.log", RANKWATCH_STANDBY="auto", **environment) as running:
        _service.wait_for("the job's end", lambda: running.poll() is not None or None, 300 + 150.0 * faults)
    log = (folder / "run.log").read_text()
    if running.returncode != 0:
        sys.exit(f"the job failed:\n{log[-3000:]}")
    if rank and rank[0] != str(SHORT_PAUSE):
        warm = log.count("starts from a prewarmed worker")
        print(f"{folder.name}: {warm} of {ranks * faults} ranks started from prewarmed workers")
    found: dict[str, list[float]] = {"first": [], "last": []}
    for fault in range(faults):
        at = float((folder / f"fault-{fault}").read_text())
        after = [float((folder / f"step-{fault + 1}-{number}").read_text()) - at for number in range(ranks)]
        found["first"].append(min(after))
        found["last"].append(max(after))
    return found


def exits(folder: Path, faults: int) -> dict[str, list[float]]:
    """The rows of ``exit``."""
    rows = {}
    with _service.monitor(folder) as url:
        launcher = [*OURS, "--no-standby", "--monitor", url]
        rows["monitor up"] = measure(folder / "up", launcher, 2, faults, [])["first"]
    rows["monitor away"] = measure(folder / "away", launcher, 2, faults, [])["first"]
    return rows


def main() -> None:
    """Run the parts."""
    asked = _table.arguments(
        __doc__,
        parts=(["exit", *ROWS], "parts to measure", {"choices": ["exit", *ROWS]}),
        ranks=(2, "ranks of the jobs of kill"),
        faults=(9, "faults for each row"),
        pause=(25.0, "seconds of steps before each fault where workers are prewarmed"),
    )
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        for part in asked.parts:
            if part == "exit":
                found |= {f"exit, {row}": each for row, each in exits(Path(name), asked.faults).items()}
                continue
            for row, (how, launcher) in ROWS[part].items():
                pause = asked.pause if row in ("default", "standby") else SHORT_PAUSE
                ranks = asked.ranks if part == "kill" else 2
                rank = [str(pause), how]
                found[f"{part}, {row}"] = measure(Path(name) / row, launcher, ranks, asked.faults, rank)["last"]
    _table.report({row: _table.spread(figures) for row, figures in found.items()}, "s after the fault", asked.json)


if __name__ == "__main__":
    if "--as-rank" in sys.argv:
        words = sys.argv[sys.argv.index("--as-rank") + 1 :]
        place = Path(os.environ["BENCH_FOLDER"])
        if len(words) == 1:
            bare(place, int(words[0]))
        else:
            training(place, int(words[0]), float(words[1]), words[2])
    else:
        main()
