"""Time to make the straggler report: inside training with its collectives there, in the monitor here.

Both sides get as many kernels and sections of as many ranks. Theirs is ``ReportGenerator.generate_report``, which all
ranks call in their training loop and leave together; its first call, which agrees on names, is left out. Ours is what
the monitor does when the windows of all ranks are there: it judges them and scores all kernels and sections. Their
kernel statistics come from CUPTI, which needs a GPU, so both sides are given made-up ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import _service
import _table  # noqa: F401 - tests/ is on the path, where the simulator is
from _recovery_run import FOREIGN

from rankwatch.contract.policy import Policy
from rankwatch_monitor.core import straggler_detector
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.incident.lifecycle import advance
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.replay.player import NO_HANG_DETECTION
from support.simulator.straggler_plan import StragglerPlan
from support.simulator.straggler_scene import START, StragglerScene

SCRIPT = Path(__file__).with_name("reporting_ranks.py")
KERNELS, SECTIONS = 100, 5
SECONDS = 300


def ours(ranks: int, rounds: int) -> dict[str, float]:
    """Milliseconds of a report in the monitor, of the wall clock and of CPU time. Training waits for none of it."""
    plan = StragglerPlan(world=ranks, kernels=KERNELS, kernel_every=1, windows=rounds + 3, window=8)
    job = Job(plan.job_id, START, policy=Policy().changed(NO_HANG_DETECTION))
    wall, cpu = [], []
    for window, (at, reports) in enumerate(StragglerScene(plan).windows()):
        used, began = time.process_time(), time.perf_counter()
        for report in reports:
            apply(job, report, at)
        straggler_detector.score_now(job, advance(job, at))
        if window >= 3:  # the first ones make room
            wall.append(1000 * (time.perf_counter() - began))
            cpu.append(1000 * (time.process_time() - used))
    return {"report, ms": median(wall), "CPU of all, ms": median(cpu), "training waits, ms": 0.0}


def theirs(python: Path, ranks: int, rounds: int) -> dict[str, float]:
    """The same for the other side, in as many real processes over gloo; ``training waits`` is the rank that waits most.

    Raises:
        RuntimeError: its ranks do not make reports; the end of what they wrote is in the words.
    """
    with tempfile.TemporaryDirectory(prefix="versus-reports-") as name:
        command = [str(python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command += [str(SCRIPT), "--folder", name, "--rounds", str(rounds)]
        command += ["--kernels", str(KERNELS), "--sections", str(SECTIONS)]
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}
        own = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "TMPDIR": name}
        log = Path(name) / "log"
        with log.open("wb") as out:
            running = subprocess.Popen(
                command,
                env=inherited | own,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=partial(_service.end_with, os.getpid()),
            )
            try:
                running.wait(SECONDS)
            except subprocess.TimeoutExpired:
                pass
            finally:
                _end(running)
        reported: list[dict[str, Any]] = [json.loads(file.read_text()) for file in Path(name).glob("rank-*.json")]
        if len(reported) < ranks:
            raise RuntimeError(f"{len(reported)} of {ranks} ranks made reports; {_first_error(log)}")
    return {
        "report, ms": median(next(each["wall"] for each in reported if each["rank"] == 0)),
        "CPU of all, ms": sum(median(each["cpu"]) for each in reported),
        "training waits, ms": median([max(waits) for waits in zip(*(each["wall"] for each in reported), strict=True)]),
    }


def _first_error(log: Path) -> str:
    """What a rank wrote of its end, before torchrun's own lines about it."""
    printed = [line for line in log.read_text(errors="replace").splitlines() if "Error" in line]
    return printed[0][:500] if printed else "their log has no error"


def _end(running: subprocess.Popen[bytes]) -> None:
    """End a launcher and its ranks: torchrun passes SIGTERM on, and is given a moment for it."""
    if running.poll() is None:
        running.terminate()
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            sys.stderr.write("torchrun does not end when asked; it is killed\n")
            os.killpg(running.pid, 9)
            running.wait()
