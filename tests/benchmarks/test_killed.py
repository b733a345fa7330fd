"""A benchmark that is killed leaves no process behind, whatever it was doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from support.processes import MARK, end_marked, marked
from support.waiting import wait_for

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LOAD = "load.py --ranks 64 --interval 0.5 --launchers --late --busy 1 --warm-up 300"
MEMORY = "memory.py --ranks 1 --runs 1 --seconds 300"
MEMBERSHIP = "membership.py --nodes 20 --processes 2 --calm 300"


@pytest.mark.parametrize(
    ("command", "parts", "by"),
    [
        (LOAD, ("rankwatch_monitor", "while True: pass", "_load_joining.py"), signal.SIGTERM),
        (MEMORY, ("torch.distributed.run", "_recovery_ranks.py"), signal.SIGKILL),
        (MEMBERSHIP, ("membership.py", "membership.py", "membership.py"), signal.SIGKILL),
    ],
    ids=["load", "memory", "membership"],
)
def test_a_benchmark_that_is_killed_leaves_nothing_behind(
    tmp_path: Path, command: str, parts: tuple[str, ...], by: signal.Signals
) -> None:
    mark = uuid4().hex
    script, *options = command.split(" ")
    with (tmp_path / "log").open("wb") as log:
        benchmark = subprocess.Popen(
            [sys.executable, str(BENCHMARKS / script), *options],
            env={**os.environ, MARK: mark, "TMPDIR": str(tmp_path)},
            stdout=log,
            stderr=log,
        )

    def begun() -> bool:
        assert benchmark.poll() is None, (tmp_path / "log").read_text()
        left = [line for pid, line in marked(mark).items() if pid != benchmark.pid]
        for part in parts:
            found = next((line for line in left if part in line), None)
            if found is None:
                return False
            left.remove(found)
        # torchrun forgets a rank when SIGTERM comes before Popen() has returned; one that writes is known to it.
        return script != "memory.py" or any(tmp_path.rglob("rank-*.jsonl"))

    try:
        wait_for(begun, f"{script} starts all its processes")
        benchmark.send_signal(by)
        assert benchmark.wait(30) == -by
        wait_for(lambda: not marked(mark), "all processes end")
    finally:
        benchmark.kill()
        benchmark.wait()
        end_marked(mark)
