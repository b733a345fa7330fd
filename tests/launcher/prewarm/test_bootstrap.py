"""What is done in a rank before the first line of its script, and where it is not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.conftest import Launcher
from rankwatch_launcher.options import stand_in
from rankwatch_launcher.prewarm.bootstrap import AUTO, HOOK, STAND_IN, Bootstrap

SCRIPT = """
import os, subprocess, sys
import nvidia_resiliency_ext.fault_tolerance as ft
print("the rank has", ft.RankMonitorClient.__module__, flush=True)
seen = "import os; print('its child has', os.environ.get('PYTHONPATH', 'none'))"
subprocess.run([sys.executable, "-c", seen], check=True)
"""


def test_nothing_is_changed_where_nothing_is_asked() -> None:
    assert Bootstrap().environment({"PYTHONPATH": "/a", "X": "1"}) == {"PYTHONPATH": "/a", "X": "1"}


@pytest.mark.parametrize(("before", "after"), [({}, str(HOOK)), ({"PYTHONPATH": "/a"}, f"{HOOK}{os.pathsep}/a")])
def test_python_finds_our_folder_first(before: dict[str, str], after: str) -> None:
    made = Bootstrap(auto=True, stand_in="nvrx").environment(before)
    assert (made["PYTHONPATH"], made[AUTO], made[STAND_IN]) == (after, str(os.getpid()), "nvrx")


@pytest.mark.parametrize(("text", "name"), [("nvrx", "nvrx"), (" NVRX ", "nvrx"), ("none", ""), ("", "")])
def test_a_stand_in_is_named(text: str, name: str) -> None:
    assert stand_in(text) == name


def test_another_package_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"can stand in for nvrx \(nvidia-resiliency-ext\), not for 'dlrover'"):
        stand_in("dlrover")


@pytest.mark.parametrize("standby", [False, True])
def test_imports_of_nvidias_package_find_rankwatch_in_the_rank_and_nowhere_else(
    start: Callable[..., Launcher], tmp_path: Path, standby: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    more = ["--standby"] if standby else []
    launcher = start("--nproc-per-node", "1", "--stand-in", "nvrx", *more, str(script), env={"PYTHONPATH": ""})
    assert launcher.wait() == 0, launcher.output
    assert "the rank has rankwatch.integrations.nvrx.fault_tolerance" in launcher.output
    assert "its child has none" in launcher.output
