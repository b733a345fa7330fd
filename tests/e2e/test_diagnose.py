"""``rankwatch diagnose`` at jobs that plain torchrun started: hung, asleep, crashing again and again, healthy."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from support.ports import free_port
from support.processes import MARK, end_marked, without
from support.starters import command, job_name
from support.waiting import wait_for

BEGIN = """
import os, sys, threading, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, value = dist.get_rank(), torch.ones(1)
def ready():
    print(f"READY {rank}", flush=True)
"""
HANGS = """
for step in range(1000):
    if step == 20:
        ready()
        if rank == 1:
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
    dist.barrier()
"""
SLEEPS = """
for step in range(1000):
    if step == 20:
        ready()
        if rank == 1:
            time.sleep(3600)
    dist.all_reduce(value)
"""
CRASHES = """
import os, time
import torch
print("READY", os.environ["RANK"], flush=True)
time.sleep(1.0 if os.environ["RANK"] == "1" else 600.0)
raise ValueError("no data")
"""
"""Without a process group: torchrun's own restarts of gloo jobs hang now and then."""
SLOW = """
def load():
    time.sleep(0.2)
for step in range(4000):
    if step == 20:
        ready()
    if rank == 1:
        load()
    dist.all_reduce(value)
"""
HEALTHY = """
for step in range(4000):
    if step == 20:
        ready()
    dist.all_reduce(value)
    time.sleep(0.05)
    if rank == 0:
        value.fill_(float(os.path.exists(sys.argv[1])))
    dist.broadcast(value, 0)
    if value.item():
        break
dist.barrier()
"""
DIFFER = """
pair = dist.new_group([0, 1])
ready()
if rank == 1:
    dist.all_reduce(value, group=pair) if sys.argv[2:] else dist.barrier()
dist.all_reduce(value)
"""
"""Rank 1 is in another collective than the others; with an argument more in the same one of some ranks."""


ACCUSED = f"""
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from support import fake_ras
other, pids = dist.new_group([0, 1]), [None, None]
dist.all_gather_object(pids, os.getpid())
if rank == 0:
    answer = fake_ras.json_answer([fake_ras.json_rank(r, pid, AllReduce=8 - r) for r, pid in enumerate(pids)])
    fake_ras.serve(lambda in_json: answer, port=int(os.environ["NCCL_RAS_ADDR"].rpartition(":")[2]))
ready()
dist.barrier(other if rank == 1 else None)
"""
"""Both ranks wait in the same function, and NCCL's RAS knows which is behind."""


class Job:
    """A job, ended with everything that it started."""

    def __init__(
        self,
        folder: Path,
        script: str,
        *flags: str,
        arguments: Sequence[str] = (),
        start: str = "torchrun",
        ranks: int = 2,
    ) -> None:
        self.stop, self.log, self.mark, port = folder / "stop", folder / "log", uuid4().hex, free_port()
        train, words = folder / "train.py", [str(self.stop), *arguments]
        train.write_text(script if script is CRASHES else BEGIN + script)
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command(start, ranks, port, train, folder, flags=flags, arguments=words),
                env=without(("RANKWATCH_", "TORCH"))
                | {MARK: self.mark, "OMP_NUM_THREADS": "1", "NCCL_RAS_ADDR": f"localhost:{free_port()}"},
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.name = job_name(start, port, self.process.pid)

    def printed(self, text: str) -> int:
        assert self.process.poll() is None, self.log.read_text()
        return self.log.read_text().count(text)

    def diagnosed(self, *flags: str) -> tuple[int, dict[str, Any]]:
        ask = [sys.executable, "-P", "-m", "rankwatch", "diagnose", "--json", "--job", self.name, *flags]
        done = subprocess.run(ask, capture_output=True, text=True, timeout=100, check=False)
        found = json.loads(done.stdout)
        assert len(found["jobs"]) == 1, f"{found}\n{done.stderr}\n{self.log.read_text()}"
        return done.returncode, found["jobs"][0]


Start = Callable[..., Job]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    jobs: list[Job] = []

    def begin(script: str, *flags: str, ranks: int = 2, **more: Any) -> Job:
        jobs.append(Job(tmp_path, script, *flags, ranks=ranks, **more))
        wait_for(lambda: jobs[-1].printed("READY") >= ranks, "the ranks are up", 100.0)
        return jobs[-1]

    yield begin
    for job in jobs:
        job.process.kill()
        job.process.wait()
        end_marked(job.mark)


def named(found: dict[str, Any]) -> list[int]:
    return [culprit["rank"] for culprit in found["culprits"]]


def test_the_rank_that_hangs_in_a_lock_is_named(start: Start) -> None:
    code, found = start(HANGS).diagnosed()
    assert (code, found["verdict"], named(found)) == (3, "trouble", [1]), found["reason"]
    assert [group["ranks"] for group in found["groups"]] == [[0], [1]]
    assert found["ranks"][0]["log"]["shared"]


def test_the_rank_in_another_call_of_all_ranks_is_named(start: Start) -> None:
    code, found = start(DIFFER, ranks=3).diagnosed()
    assert (code, found["verdict"], named(found)) == (3, "trouble", [1]), found["reason"]


def test_of_ranks_in_different_groups_it_is_said_which_stand_where(start: Start) -> None:
    code, found = start(DIFFER, ranks=3, arguments=["of a group"]).diagnosed()
    assert (code, found["verdict"], named(found)) == (3, "trouble", []), found["reason"]
    calls = {tuple(ranks["first"]): made["among"] for made, ranks in found["why_none"]["why"]["calls"]}
    assert calls == {(0, 2): None, (1,): {"ranks": 2, "group": "", "peer": -1}}


def test_where_all_wait_alike_the_rank_that_nccl_accuses_is_named(start: Start) -> None:
    code, found = start(ACCUSED).diagnosed()
    assert (code, found["verdict"], named(found)) == (3, "trouble", [1]), found["reason"]
    assert found["culprits"][0]["cause"]["kind"] == "nccl_behind"
    (answer,) = found["nccl"]
    assert (answer["version"], answer["accused"], answer["witness"]) == ("2.28.9", [1], "agrees")


def test_a_rank_that_sleeps_is_waited_for_and_may_go_on(start: Start) -> None:
    code, found = start(SLEEPS).diagnosed()
    assert (code, found["verdict"], named(found)) == (4, "unknown", [1]), found["reason"]
    wait = found["culprits"][0]["cause"]["wait"]
    assert wait["kind"] == "timed"


def test_a_job_that_crashes_again_and_again_is_in_trouble(start: Start) -> None:
    job = start(CRASHES, "--max-restarts", "50")
    wait_for(lambda: job.printed("READY 1") >= 3, "it is restarted", 100.0)

    def told() -> tuple[int, dict[str, Any]] | None:
        code, found = job.diagnosed()
        return (code, found) if code != 4 else None  # all ranks were just starting, so that none could be read

    code, found = wait_for(told, "the ranks can be read", 100.0)
    assert (code, found["verdict"]) == (3, "trouble"), found["reason"]
    assert named(found) in ([], [1]), found["reason"]  # it may have been between two crashes


def test_a_healthy_job_is_called_so_and_goes_on(start: Start) -> None:
    job = start(HEALTHY)
    code, found = job.diagnosed()
    assert (code, found["verdict"], named(found)) == (0, "healthy", []), found["reason"]
    code, found = job.diagnosed("--native")
    assert (code, found["verdict"], named(found)) == (0, "healthy", []), found["reason"]
    assert all(any(".so" in frame["file"] for frame in rank["native"]) for rank in found["ranks"])
    job.stop.touch()
    assert job.process.wait(100) == 0, job.log.read_text()


def test_the_late_rank_of_a_slow_job_is_named_with_what_it_does_meanwhile(start: Start) -> None:
    code, found = start(SLOW).diagnosed("--slow", "12")
    (late,) = found["slowness"]["late"]
    assert (code, found["verdict"], late["rank"]) == (3, "slow", 1), found["reason"]
    assert late["rows"][0]["function"] == "load"
    assert late["rows"][0]["own"] > 0.5 > late["rows"][0]["peers"]
