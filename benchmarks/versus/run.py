"""Rankwatch and nvidia-resiliency-ext 0.4.1 (its CPU parts), measured in one run, taking turns.

    python benchmarks/versus/run.py [--nvrx VENV | --nvrx none] [--parts calls,memory,reports,recovery] [--json FILE]
                                     [--write docs/versus.md]

``--write`` puts the figures of a run of all parts into the document, in place of those that are there.
``--nvrx`` names its virtual environment, which is made there when the place is empty; without it, one is made in a
temporary folder and removed. ``none`` leaves it out. What cannot be had or needs a GPU is stated in words, and the rest
is measured.

calls     what a section (entered and left) and a heartbeat cost the training thread, with both sides' monitors running;
          then what 1 ms steps suffer when all that watches is stopped for 3 s, and when it is killed
memory    processes and memory beyond torchrun, for a rank and for a node (see benchmarks/memory.py)
reports   time to make the straggler report of 8 and 16 ranks with 100 kernels and 5 sections, and what training waits
recovery  a rank killed or hung, to the first new step of all (see benchmarks/recovery.py)

CPU times and ratios hold on a busy machine; seconds of the wall clock want a quiet one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import _recovery_run  # noqa: E402 - the benchmarks are scripts, not a package
import _table  # noqa: E402
import document  # noqa: E402
import environment  # noqa: E402
import job  # noqa: E402
import memory  # noqa: E402
import reports  # noqa: E402
import side_by_side  # noqa: E402
from environment import Peer  # noqa: E402

PARTS = ("calls", "memory", "reports", "recovery")
NEEDS_A_GPU = (
    "not compared, since it needs a GPU: how NVRx times kernels (CUPTI); its Detector.generate_report as a whole,\n"
    "which synchronises the device first; its checks of GPU and NIC health"
)
RECOVERY_ARMS = ("torchrun, own store", "ft_launcher", _recovery_run.TUNED, _recovery_run.COLD, _recovery_run.PREWARMED)

Part = dict[str, dict[str, Any]]
"""Rows with their figures."""


def calls(asked: Namespace, peer: Peer, folder: Path) -> Part:
    arms = [job.rankwatch(), *([job.nvrx(peer.launcher)] if peer.launcher else [])]
    found = side_by_side.measure(arms, asked.ranks, asked.rounds, asked.batches, asked.stop, folder)
    rows: Part = {}
    for what in found["calls"][job.RANKWATCH]:
        rows[what] = _compared({side: figures[what] for side, figures in found["calls"].items()})
    for event in ("stopped", "killed"):
        for what in found[event][job.RANKWATCH]:
            rows[f"monitor {event}: {what}"] = {side: figures[what] for side, figures in found[event].items()}
    return rows


def footprint(asked: Namespace, peer: Peer, folder: Path) -> Part:
    seen = memory.measure(memory.arms(peer.launcher), asked.ranks, asked.rounds, asked.seconds, folder)
    return dict(memory.rows(seen))


def report_time(asked: Namespace, peer: Peer, folder: Path) -> Part:  # noqa: ARG001 - one signature for all parts
    rows: Part = {}
    for ranks in (int(each) for each in asked.report_ranks.split(",")):
        sides = {job.RANKWATCH: reports.ours(ranks, asked.reports)}
        if peer.python is not None:
            print(f"reports of {ranks} ranks", file=sys.stderr, flush=True)
            sides[job.NVRX] = reports.theirs(peer.python, ranks, asked.reports)
        for what in sides[job.RANKWATCH]:
            rows[f"{ranks} ranks: {what}"] = _compared({side: figures[what] for side, figures in sides.items()})
    return rows


def recovery(asked: Namespace, peer: Peer, folder: Path) -> Part:
    """By the benchmark that has this for its own subject.

    Raises:
        RuntimeError: it failed.
    """
    target = folder / "recovery.json"
    command = [
        sys.executable,
        str(HERE.parent / "recovery.py"),
        "--json",
        str(target),
        "--only",
        ";".join(RECOVERY_ARMS),
    ]
    command += ["--runs", str(asked.rounds), "--ranks", str(asked.ranks)]
    command += ["--nvrx", peer.launcher] if peer.launcher else []
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise RuntimeError(f"benchmarks/recovery.py ended with code {done.returncode}; its output stands above")
    figures: Part = json.loads(target.read_text())["figures"]
    return figures


MEASURES: dict[str, Callable[[Namespace, Peer, Path], Part]] = dict(
    zip(PARTS, (calls, footprint, report_time, recovery), strict=True)
)


def _compared(sides: dict[str, float]) -> dict[str, float]:
    """Both sides' figures and how many times more the other one takes, where that means something."""
    ours, theirs = sides[job.RANKWATCH], sides.get(job.NVRX)
    return {**sides, **({"times": theirs / ours} if theirs is not None and ours > 0 else {})}


def show(name: str, rows: Part) -> None:
    """Print one part, what is in words below it."""
    words = {row: {side: value for side, value in each.items() if isinstance(value, str)} for row, each in rows.items()}
    _table.show({row: each for row, each in rows.items() if not words[row]}, name)
    for row, said in words.items():
        for side, value in said.items():
            if value:
                print(f"{row}, {side}: {value}")


def _command() -> str:
    """This run's command as it is typed in the repository; where an environment lies is of no interest to a reader."""
    words = sys.argv[1:]
    folders = [
        i for i, word in enumerate(words) if i and words[i - 1] in ("--nvrx", "--json") and word != environment.LEFT_OUT
    ]
    return " ".join(
        ["python benchmarks/versus/run.py", *(Path(w).name if i in folders else w for i, w in enumerate(words))]
    )


def main() -> None:
    """Run the side by side."""
    asked = _table.arguments(
        __doc__,
        nvrx=("", "virtual environment of nvidia-resiliency-ext; none: leave it out"),
        pip=("", "further words for pip install where it is made, another index for instance"),
        parts=(",".join(PARTS), "parts to measure"),
        ranks=(2, "ranks of the jobs"),
        rounds=(5, "rounds of calls, memory and recovery"),
        batches=(2000, "batches of 10 calls in a round, on each rank"),
        stop=(3.0, "seconds that monitors are stopped"),
        seconds=(20.0, "seconds of training before memory is read"),
        reports=(50, "straggler reports"),
        report_ranks=("8,16", "numbers of ranks that make reports"),
        write=(None, "document that gets the figures"),
    )
    parts = [part for part in asked.parts.split(",") if part]
    if unknown := [part for part in parts if part not in PARTS]:
        sys.exit(f"there is no part {unknown[0]!r}: --parts takes some of {','.join(PARTS)}")
    with tempfile.TemporaryDirectory(prefix="versus-") as name:
        peer = environment.peer(asked.nvrx, Path(name), asked.pip.split())
        print(f"{_table.machine()}\ncommand: {' '.join(sys.argv)}\nthe other side: {peer.words}\n{NEEDS_A_GPU}")
        figures: dict[str, Part] = {}
        failed: dict[str, str] = {}
        for part in parts:
            folder = Path(name) / part
            folder.mkdir()
            try:
                figures[part] = MEASURES[part](asked, peer, folder)
            except (TimeoutError, RuntimeError) as error:
                failed[part] = str(error)
                print(f"\n{part} could not be measured: {error}", flush=True)
                continue
            show(part, figures[part])
    about = {"machine": _table.machine(), "command": _command(), "peer": peer.words, "not": NEEDS_A_GPU}
    reported = {**about, "failed": failed, "figures": figures}
    _table.write(asked.json, **reported)
    if figures:
        text = document.figures(reported, datetime.now(UTC).date().isoformat())
        _table.replace_between(asked.write, document.BEGIN, f"\n{text}\n", document.END)
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
