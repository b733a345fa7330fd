"""``rankwatch logs`` with real ranks of two launchers: the log of a rank holds that rank's lines, over a restart."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from e2e.training import PATIENCE, Training
from rankwatch.cli.logs import logs
from support.forked_ranks import run_command
from support.ports import free_port
from support.processes import without
from support.waiting import wait_for

pytestmark = pytest.mark.timeout(300)

MAIN = "import sys; from rankwatch.cli.main import main; sys.exit(main(sys.argv[1:]))"
TALKS = """
import os, sys, time
rank, attempt, folder = os.environ["RANK"], os.environ["RANKWATCH_ATTEMPT"], sys.argv[1]
number = 0
while not os.path.exists(os.path.join(folder, "finish")):
    print(f"rank {rank} attempt {attempt} line {number}", flush=True)
    number += 1
    time.sleep(0.05)
    if attempt == "1" and os.path.exists(os.path.join(folder, "crash")):
        if rank == "3":
            raise ValueError("bad batch")
        time.sleep(0.3)
        raise RuntimeError("Connection closed by peer [127.0.0.1]:4242")
"""


@pytest.fixture
def talking(watched: Training) -> Training:
    """Two launchers with two ranks each that print all the time."""
    script = watched.folder / "talks.py"
    script.write_text(TALKS)
    place = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", watched.job)
    assert watched.api is not None
    flags = ("--monitor", str(watched.api.base_url), "--job-id", watched.job, "--no-node-check", "--no-standby")
    for _ in range(2):
        command = [*run_command(), "--nnodes", "2", "--nproc-per-node", "2", *place, *flags]
        watched.start([*command, "--max-restarts", "1", str(script), str(watched.folder)])
    watched.until("all ranks run", lambda: watched.summary().get("world_size") == 4)
    return watched


def asked(watched: Training, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, list[str], str]:
    assert watched.api is not None
    code = logs([watched.job, "--monitor", str(watched.api.base_url), *flags])
    printed = capsys.readouterr()
    return code, printed.out.splitlines(), printed.err


def lines_of(lines: list[str], rank: int) -> list[str]:
    return [line for line in lines if line.startswith(f"[rank {rank}] ")]


def test_lines_of_ranks_over_a_restart(talking: Training, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def all_talk() -> list[str]:
        code, lines, _ = asked(talking, capsys, "--tail", "3")
        return lines if code == 0 and all(lines_of(lines, rank) for rank in range(4)) else []

    lines = talking.until("all ranks talk", all_talk)
    for rank in range(4):
        own = rf"\[rank {rank}\] rank {rank} attempt 1 line \d+"
        assert all(re.fullmatch(own, each) for each in lines_of(lines, rank))
    found = (0, ["rank 3 attempt 1 line 0", "rank 3 attempt 1 line 1"], "")
    talking.until("it has printed two", lambda: asked(talking, capsys, "--rank", "3", "--grep", "line [01]$") == found)

    followed = tmp_path / "followed"
    assert talking.api is not None
    url = str(talking.api.base_url)
    with followed.open("wb") as out:
        follower = subprocess.Popen(
            [sys.executable, "-c", MAIN, "logs", talking.job, "--monitor", url, "-f", "--tail", "1"],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=without(("RANKWATCH_",)),
        )
    try:
        wait_for(lambda: "[rank 2]" in followed.read_text(), "the follower shows ranks", PATIENCE)
        (talking.folder / "crash").touch()
        talking.until("attempt 2 runs", lambda: talking.summary()["attempt"] == 2)
        wait_for(lambda: "[rank 3] rank 3 attempt 2 line" in followed.read_text(), "it follows attempt 2", PATIENCE)
        assert "[rank 3] ValueError: bad batch" in followed.read_text()

        code, lines, _ = asked(talking, capsys, "--attempt", "1", "--rank", "3", "--tail", "0")
        assert code == 0
        own = [each for each in lines if each.startswith("rank 3 attempt 1")]
        assert own == [f"rank 3 attempt 1 line {n}" for n in range(len(own))]
        assert lines[-1] == "ValueError: bad batch"
        assert not any("rank 2" in each or "attempt 2" in each for each in lines)

        code, lines, _ = asked(talking, capsys, "--errors")
        assert code == 0
        assert "rank 3" in lines[1]
        assert "ValueError: bad batch" in lines[1]
        incident: dict[str, Any] = talking.incident(closed=False)
        crash = incident["crash"]
        assert [(each["ranks"], each["text"]) for each in crash["errors"]] == [([3], "ValueError: bad batch")]
        assert set(crash["lost_peer"]) <= {0, 1, 2}

        assert talking.finish() == [0, 0]
        assert follower.wait(PATIENCE) == 0
        code, lines, errors = asked(talking, capsys, "--rank", "0")
        assert "has ended" in errors
        assert re.search(r"tail -n 200 \S+/attempt_2/rank_0\.\*log", errors)
    finally:
        follower.kill()
        follower.wait()


def test_a_launcher_that_is_stopped_is_stated(talking: Training, capsys: pytest.CaptureFixture[str]) -> None:
    talking.until("all ranks talk", lambda: len(asked(talking, capsys, "--tail", "1")[1]) == 4)
    ranks = {n["launcher_pid"]: n["ranks"] for n in talking.summary()["nodes"]}
    launcher = next(each for each in talking.launchers if 3 in ranks[each.process.pid])
    os.kill(launcher.process.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        code, lines, errors = asked(talking, capsys, "--tail", "1")
        assert time.monotonic() - began < PATIENCE
        assert code == 0
        assert {line.split("]")[0] for line in lines} == {"[rank 0", "[rank 1"} or ranks[launcher.process.pid] != [2, 3]
        assert all(f"rank {rank}: the launcher on" in errors for rank in ranks[launcher.process.pid])
    finally:
        os.kill(launcher.process.pid, signal.SIGCONT)
    assert talking.finish() == [0, 0]
