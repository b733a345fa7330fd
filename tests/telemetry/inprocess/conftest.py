"""Real ranks inside the wrapper, started as srun would: nothing restarts them, nothing ends the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from support.forked import ForkedPopen
from support.ports import free_port
from support.processes import MARK, end_marked, marked
from support.waiting import wait_for

if find_spec("torch") is None:  # only the ranks import it: what has it here looks like a rank to `rankwatch diagnose`
    pytest.skip("without torch", allow_module_level=True)

SCRIPT = Path(__file__).with_name("ranks.py")
PATIENCE = 100.0
FAST = {
    "soft_timeout": 3.0,
    "hard_timeout": 6.0,
    "barrier_timeout": 30.0,
    "completion_timeout": 30.0,
    "heartbeat_interval": 1.0,
    "heartbeat_timeout": 20.0,
    "monitor_thread_interval": 0.2,
    "monitor_process_interval": 0.2,
    "termination_grace_time": 0.5,
}
FOREIGN = ("RANKWATCH_", "OTEL_", "TORCHELASTIC_", "PET_", "SLURM_", "RANK", "WORLD_SIZE", "MASTER_", "GROUP_RANK")


class Job:
    """Some ranks and what they print."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, uuid4().hex
        self.processes: list[subprocess.Popen[bytes]] = []
        self.port = free_port()

    def start(self, world: int, faults: list[Any] | None = None, nodes: list[str] | None = None, **given: Any) -> None:
        options = FAST | given.pop("options", {})
        text = json.dumps({"options": options, "faults": faults or [], **given})
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        shared = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port)}
        for rank in range(world):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1", MARK: self.mark}
            if nodes:
                own["GROUP_RANK"] = nodes[rank]
            with (self.folder / f"{rank}.log").open("wb") as log:
                process = ForkedPopen(
                    [sys.executable, str(SCRIPT), str(self.folder), text],
                    env=inherited | shared | own,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self.processes.append(process)

    def printed(self, rank: int, event: str | None = None) -> list[dict[str, Any]]:
        file = self.folder / f"rank-{rank}.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        return [line for line in found if event in (None, line["event"])]

    def ends(self) -> list[int]:
        """The exit codes, once all have ended."""
        wait_for(lambda: all(p.poll() is not None for p in self.processes), f"all ranks end\n{self.logs()}", PATIENCE)
        return [p.returncode for p in self.processes]

    def results(self) -> dict[int, str | None]:
        return {
            rank: lines[0]["value"] for rank in range(len(self.processes)) if (lines := self.printed(rank, "result"))
        }

    def why(self, rank: int) -> str:
        lines = self.printed(rank, "gave_up")
        assert lines, self.logs()
        return str(lines[0]["why"])

    def log(self, rank: int) -> str:
        return (self.folder / f"{rank}.log").read_text(errors="replace")

    def logs(self) -> str:
        return "\n".join(f"--- rank {rank}\n{self.log(rank)[-3000:]}" for rank in range(len(self.processes)))

    def close(self) -> None:
        ended = all(p.poll() is not None for p in self.processes)
        try:
            if ended:
                wait_for(lambda: not marked(self.mark), "watchdogs and store end with their ranks")
        finally:
            end_marked(self.mark)
            for process in self.processes:
                process.kill()
                process.wait()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.close()
