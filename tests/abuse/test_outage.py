"""A node of a job loses its network for a while: real ranks with gloo, each node in a network namespace of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.namespaces import Network, networked
from support.waiting import wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

TRAIN = """
import os, sys, time, torch, torch.distributed as dist, rankwatch
from pathlib import Path
HERE = Path(__file__).parent
dist.init_process_group("gloo"); rankwatch.init()
rank, attempt = dist.get_rank(), os.environ["RANKWATCH_ATTEMPT"]
print(f"<rank {rank} begins attempt {attempt}>", flush=True)
step = 0
while True:
    with rankwatch.step(step):
        time.sleep(0.05)
        over = torch.tensor(float((HERE / "finish").exists()))
        dist.all_reduce(over)
    (HERE / f"step{rank}").write_text(str(step))
    step += 1
    if over.item() > 0:
        break
"""


class Job:
    """One launcher with one rank in each namespace; the first holds the rendezvous store."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network, self.folder = network, folder
        (folder / "train.py").write_text(TRAIN)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *flags: str) -> None:
        first = self.network.names[0]
        for name in self.network.names:
            command = ["ip", "netns", "exec", self.network.namespace(name), sys.executable, "-m", "rankwatch", "run"]
            command += ["--nnodes", str(len(self.network.names)), "--nproc-per-node", "1", "--rdzv-backend", "c10d"]
            command += ["--rdzv-id", "outage", "--rdzv-endpoint", f"{self.network.address(first)}:29400"]
            command += ["--rdzv-conf", f"is_host={int(name == first)}", "--local-addr", self.network.address(name)]
            command += flags
            command += [str(self.folder / "train.py")]
            env = os.environ | {
                "GLOO_SOCKET_IFNAME": "net0",
                "OMP_NUM_THREADS": "1",
                "XDG_STATE_HOME": str(self.folder),
            }
            with (self.folder / f"{name}.log").open("wb") as log:
                self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, env=env)

    def printed(self, *names: str) -> str:
        files = [self.folder / f"{name}.log" for name in names or self.network.names]
        return "\n".join(file.read_text(errors="replace") for file in files if file.exists())

    def step(self, rank: int) -> int:
        file = self.folder / f"step{rank}"
        return int(file.read_text() or 0) if file.exists() else -1

    def until_past(self, step: int, timeout: float = 120.0) -> None:
        try:
            wait_for(lambda: min(map(self.step, range(len(self.network.names)))) > step, "they train", timeout)
        except AssertionError:
            raise AssertionError(self.printed()[-8000:]) from None

    def finish(self) -> list[int]:
        (self.folder / "finish").touch()
        return [process.wait(60) for process in self.processes.values()]

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def network() -> Iterator[Network]:
    yield from networked("a", "b")


@pytest.fixture
def job(network: Network, tmp_path: Path) -> Iterator[Job]:
    made = Job(network, tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("seconds", [12, 20, 30, 60])
@pytest.mark.parametrize("cut", ["a", "b"])
def test_an_outage_that_the_ranks_survive_costs_nothing(job: Job, cut: str, seconds: int) -> None:
    job.start()
    job.until_past(20)
    job.network.cut(cut)
    since = time.monotonic()
    wait_for(lambda: time.monotonic() - since > seconds, "the outage passes", seconds + 10)
    there = max(job.step(0), job.step(1))
    job.network.mend(cut)
    job.until_past(there + 20)
    # The launchers look for each other less often than the ranks step.
    wait_for(lambda: "store responds again" in job.printed("b"), "the store is seen again", 60.0)
    wait_for(lambda: "in sight again" in job.printed(), "the node is seen again", 60.0)
    assert job.finish() == [0, 0], job.printed()
    said = job.printed()
    assert re.findall(r"<rank \d begins attempt (\d)>", said) == ["1", "1"]
    assert len(re.findall(r"store has not responded for", job.printed("b"))) == 1
    assert len(re.findall(r"store responds again", job.printed("b"))) == 1
    assert len(re.findall(r"out of sight", job.printed("a"))) == len(re.findall(r"in sight again", said)) == 1
