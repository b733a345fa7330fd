"""The last log lines of ranks that fail: real launchers, and ranks that print and raise."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.conftest import FakeMonitor, Launcher
from rankwatch.contract.messages import LOGS_UNSENT

Start = Callable[..., Launcher]

TALKS = """
import os, sys, time
rank = os.environ["RANK"]
print(f"rank {rank} reads shard 7", flush=True)
for step in range(40):
    print(f"rank {rank} step {step}", file=sys.stderr)
if rank == "1":
    raise ValueError("bad batch")
time.sleep(600)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TALKS)
    return path


def logs(monitor: FakeMonitor) -> list[dict[str, Any]]:
    return [log for body in monitor.of("evidence") for log in body["logs"]]


def test_the_end_of_a_failed_ranks_own_log_is_sent_with_its_path(
    start: Start, monitor: FakeMonitor, script: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "logs"
    flags = ("--max-restarts", "0", "--nproc-per-node", "2", "--log-dir", str(kept), "--tee", "3")
    launcher = start("--monitor", monitor.url, *flags, str(script))
    assert launcher.wait() == 1, launcher.output
    stderr, stdout = logs(monitor)
    (file,) = kept.glob("*/attempt_0/1/stderr.log")
    assert (stderr["rank"], stderr["stream"], stderr["path"], stderr["shared"]) == (1, "stderr", str(file), False)
    assert len(stderr["lines"]) == 20
    assert stderr["lines"][-1] == "ValueError: bad batch"
    assert "rank 1 step 39" in stderr["lines"]
    assert (stdout["stream"], stdout["lines"]) == ("stdout", ["rank 1 reads shard 7"])
    assert stderr["host"] == monitor.of("nodes")[0]["host"]
    facts = monitor.of("nodes")[0]["facts"]
    assert (facts["rank_logs"], facts["run_logs"]) == (str(kept), str(file.parents[2]))
    assert facts["monitor"] == monitor.url
    line = monitor.of("nodes")[0]["launch"]
    assert line == f"cd {tmp_path} && rankwatch run --monitor {monitor.url} {shlex.join((*flags, str(script)))}"


def test_without_one_the_end_of_the_launchers_own_log_is_sent_as_shared(
    start: Start, monitor: FakeMonitor, script: Path
) -> None:
    flags = ("--max-restarts", "0", "--nproc-per-node", "2", "--keep-output-mib", "0")
    launcher = start("--monitor", monitor.url, *flags, str(script))
    assert launcher.wait() == 1, launcher.output
    (log,) = logs(monitor)
    assert (log["rank"], log["stream"], log["shared"]) == (1, "stderr", True)
    assert "ValueError: bad batch" in log["lines"]
    assert Path(log["path"]).read_text() == launcher.output
    assert monitor.of("nodes")[0]["facts"]["log"] == log["path"]
    assert not any(line.startswith("[rankwatch]") and "ended" in line for line in log["lines"])


@pytest.mark.parametrize(("flags", "env"), [(["--no-send-logs"], {}), ([], {"RANKWATCH_SEND_LOGS": "false"})])
def test_no_line_leaves_the_node_where_logs_are_not_to_be_sent(
    start: Start, monitor: FakeMonitor, script: Path, tmp_path: Path, flags: list[str], env: dict[str, str]
) -> None:
    ours = (*flags, "--max-restarts", "0", "--nproc-per-node", "2", "--log-dir", str(tmp_path / "logs"), "--tee", "3")
    launcher = start("--monitor", monitor.url, *ours, str(script), env=env)
    assert launcher.wait() == 1, launcher.output
    assert monitor.of("evidence"), "stacks are sent as before"
    assert logs(monitor) == []
    assert monitor.of("nodes")[0]["facts"][LOGS_UNSENT] == "true"
    assert monitor.of("nodes")[0]["launch"] == ""
    assert "reads shard 7" not in json.dumps(monitor.of("evidence"))


@pytest.mark.parametrize("crashes", [False, True])
def test_folders_for_logs_that_hold_nothing_do_not_stay(
    start: Start, monitor: FakeMonitor, script: Path, tmp_path: Path, crashes: bool
) -> None:
    if not crashes:
        script.write_text("print('done')")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    redirected = ("--redirects", "3") if crashes else ()
    flags = ("--max-restarts", "0", "--nproc-per-node", "2", "--no-standby", *redirected)
    launcher = start("--monitor", monitor.url, *flags, str(script), env={"TMPDIR": str(temporary)})
    assert launcher.wait() == int(crashes), launcher.output
    assert any(temporary.glob("torchelastic_*")) is crashes, "what ranks printed stays"
    assert len(list(temporary.rglob("stderr.log"))) == (2 if crashes else 0)
