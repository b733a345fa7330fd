"""Two real ranks over gloo: one rejects a result, both run the step again, across a checkpoint and a resume."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.forked import ForkedPopen

SCRIPT = Path(__file__).with_name("training.py")
SOURCE = Path(__file__).parents[3] / "telemetry"
PATIENCE = 100.0


class Job:
    """A job of two ranks, run as often as a test wants."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self.runs = 0

    def train(self, *arguments: str, devices: tuple[str, str] = ("board A", "board B")) -> list[int]:
        """Run it until it ends; the ranks' exit codes."""
        self.runs += 1
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("RANKWATCH_", "SLURM_"))}
        clean |= {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
        started = []
        for rank, device in enumerate(devices):
            store = self.folder / f"store-{self.runs}"
            command = [sys.executable, str(SCRIPT), "--folder", str(self.folder), "--store", str(store)]
            with self.log(rank).open("ab") as log:
                variables = {**clean, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                started.append(
                    ForkedPopen([*command, "--device", device, *arguments], env=variables, stdout=log, stderr=log)
                )
        self._processes += started
        return [process.wait(PATIENCE) for process in started]

    def log(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.log"

    def reported(self, rank: int, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in (self.folder / f"rank-{rank}.jsonl").read_text().splitlines()]
        return [line for line in lines if line["event"] == event]

    def printed(self) -> str:
        return "".join(self.log(rank).read_text() for rank in range(2))

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    try:
        yield job
    finally:
        job.close()


def test_a_transient_error_on_one_rank_ends_both_and_they_go_on_from_its_checkpoint(job: Job) -> None:
    assert job.train("--inject", "transient_error,rank=1,step=4") == [17, 17], job.printed()
    for rank in range(2):
        ran = [(line["step"], len(line["losses"]) // 2) for line in job.reported(rank, "ran")]
        assert ran == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 2)], "both ranks ran the rejected step twice"
        first, again = job.reported(rank, "ran")[-1]["losses"][:2], job.reported(rank, "ran")[-1]["losses"][2:]
        assert first == again, "bit for bit, with dropout and two microbatches"
    assert "(board B), step 4: transient error: the loss is NaN (" in job.log(1).read_text()
    assert "transient error" not in job.log(0).read_text(), "a rank that found nothing accuses none"
    assert job.train() == [0, 0], job.printed()
    assert [line["step"] for line in job.reported(1, "ran")][5:] == [4, 5, 6, 7]


def test_a_persistent_error_is_found_on_another_device(job: Job) -> None:
    fault = ["--bad-device", "board B"]
    assert job.train(*fault) == [16, 16], job.printed()
    assert "(board B), step 4: reproducible: the loss is NaN (nan)" in job.log(1).read_text()
    assert job.train(*fault, devices=("board A", "board C")) == [17, 17], job.printed()
    assert "(board B), step 4: persistent error: the loss is NaN (nan), but on another" in job.log(1).read_text()
    for rank in range(2):
        before, after = job.reported(rank, "ran")[-2:]
        assert before["step"] == after["step"] == 4
        assert before["losses"] == after["losses"] * 2, "another process ran the same step, bit for bit"
    assert job.reported(1, "start")[-1]["step"] == 4


@pytest.mark.long
def test_ranks_with_different_errors_in_one_step(job: Job) -> None:
    """One rank's was settled in place; that another one asks for a resume is no reason to judge it once more."""
    errors = ["--inject", "transient_error,rank=0,step=4", "--inject", "correct_result,rank=1,step=4"]
    assert job.train(*errors) == [16, 16], job.printed()
    assert job.train(devices=("board C", "board D")) == [17, 17], job.printed()
    assert "step 4: correct result: " in job.log(1).read_text()
    assert "step 4: transient error: " in job.log(0).read_text()
    assert not re.search("step 4: (correct|persistent)", job.log(0).read_text()), "one verdict is enough"


@pytest.mark.long
def test_one_faulty_device_that_is_found_is_enough(job: Job) -> None:
    """Its NaN has spread to a rank that is resumed on its own device again, as where one spare took one place."""
    errors = ["--inject", "correct_result,rank=0,step=4", "--inject", "persistent_error,rank=1,step=4"]
    assert job.train(*errors) == [16, 16], job.printed()
    assert job.train(devices=("board A", "board C")) == [17, 17], job.printed()
    assert "step 4: still no verdict: " in job.log(0).read_text()
    assert "step 4: persistent error: " in job.log(1).read_text()


@pytest.mark.long
def test_without_re_runs_nothing_is_agreed_on(job: Job) -> None:
    """A rank that computes NaN ends by itself: its peer, which asks nothing, is left in its own collective."""
    assert job.train("--mode", "disabled", "--bad-data", "1")[1] == 1
    assert "ResultRejectedError: rank 1 on " in job.log(1).read_text()
    assert "step 1: rejected: the loss is NaN (nan); the rank ends" in job.log(1).read_text()
