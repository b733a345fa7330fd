"""Why ranks crash, and crashes that no restart mends: real launchers and scripts that know nothing of Rankwatch."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.conftest import FakeMonitor, Launcher
from rankwatch_launcher.outcome import CODE_DO_NOT_REQUEUE
from support.console import events

Start = Callable[..., Launcher]

CRASH = """
import os, pathlib, sys, time
def collate(batch):
    raise ValueError("bad batch")
there = pathlib.Path(sys.argv[1])
if os.environ["RANK"] == "1":
    try:
        collate(3)
    finally:
        there.touch()
while not there.exists():
    time.sleep(0.01)
raise RuntimeError("Connection closed by peer")
"""


@pytest.mark.parametrize("flags", [[], ["--auto"]], ids=["plain", "auto"])
def test_the_exception_of_the_culprit_is_the_reason_and_its_traceback_is_evidence(
    start: Start, monitor: FakeMonitor, tmp_path: Path, flags: list[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(CRASH)
    launch = ("--monitor", monitor.url, "--max-restarts", "0", "--nproc-per-node", "2", *flags)
    launcher = start(*launch, str(script), str(tmp_path / "there"))
    assert launcher.wait() == 1, launcher.output
    (failed,) = monitor.events("failed")
    assert re.match(r"rank 1 on \S+ exited with code 1: ValueError: bad batch", failed["reason"])
    crash = next(e for e in monitor.events("exited") if e["rank"] == 1)
    assert (crash["message"], crash["final"]) == ("ValueError: bad batch", False)
    stacks = {stack["rank"]: stack for body in monitor.of("evidence") for stack in body["stacks"]}
    assert (stacks[1]["method"], stacks[1]["error"]) == ("traceback", "ValueError: bad batch")
    assert [frame["function"] for frame in stacks[1]["frames"]] == ["collate", "<module>"]
    assert "in collate (train.py:4) < <module> (train.py:8)" in " ".join(events(launcher.output, "CRASH"))
    assert "PYTHONPATH" not in launcher.output


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemError('wrong --config')", "SystemError: wrong --config"),
    ],
    ids=["import", "exception"],
)
def test_a_start_that_fails_on_all_ranks_uses_up_no_restart(
    start: Start, monitor: FakeMonitor, tmp_path: Path, body: str, message: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(body)
    launcher = start("--monitor", monitor.url, "--nproc-per-node", "2", str(script))
    assert launcher.wait() == CODE_DO_NOT_REQUEUE, launcher.output
    assert (monitor.events("restarting"), {e["attempt"] for e in monitor.events("started")}) == ([], {1})
    exits = [(e["message"], e["final"]) for e in monitor.events("exited")]
    assert exits == [(message, True), (message, True)]


def test_a_failure_of_the_start_that_may_pass_is_restarted(start: Start, monitor: FakeMonitor, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n    raise OSError(5, 'io')")
    launcher = start("--monitor", monitor.url, "--nproc-per-node", "2", str(script))
    assert launcher.wait() == 0, launcher.output
    assert {e["final"] for e in monitor.events("exited")} == {False}
