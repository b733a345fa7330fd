"""A real job with its own monitor: its last lines, and what its record answers the morning after."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.conftest import wait_for
from launcher.test_runs import CRASH_ONCE, Script, Start
from support.console import events, shown

WATCHED = "while FIRST and not Path('go').exists():\n    time.sleep(0.01)\n" + CRASH_ONCE
"""The crash comes once the monitor is there, which starts together with ranks that have torch imported already."""
COMMAND = "import sys; from rankwatch.cli.{0} import {1}; sys.exit({1}(sys.argv[1:]))"


def ask(folder: Path, module: str, function: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "XDG_STATE_HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", COMMAND.format(module, function), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_job_is_asked_about_when_it_is_over(start: Start, script: Script, tmp_path: Path) -> None:
    arguments = ("--verbose", "--job-id", "team run", "--nproc-per-node", "2", "--max-restarts", "2")
    launcher = start(*arguments, script(WATCHED))
    wait_for(lambda: "connected to the monitor" in launcher.output or launcher.process.poll() is not None)
    (tmp_path / "go").touch()
    assert launcher.wait(200) == 0, launcher.output
    record = tmp_path / "rankwatch" / "jobs" / "team%20run.db"
    assert record.is_file()
    assert record.with_suffix(".log").is_file()
    (done,) = events(launcher.output, "DONE")
    assert "1 restart" in done
    assert "rankwatch report 'team run'" in done
    assert shown(launcher.output)[-1].text.startswith("restarted at ")

    found = ask(tmp_path, "report", "report", "team run")
    assert found.returncode == 0, found.stderr
    assert "exited with code 3" in found.stdout
    assert str(record) in found.stderr
    asked = ask(tmp_path, "status.command", "status", "team run", "--json")
    assert asked.returncode == 0, asked.stderr
    job = json.loads(asked.stdout)["job"]
    assert (job["state"], job["restarts"], job["world_size"]) == ("finished", 1, 2)
