"""A script that was never touched, in one process with the launcher's hook: what is seen, and what it notices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankwatch_launcher.prewarm.bootstrap import AUTO, HOOK, Bootstrap

HERE = Path(__file__).parent
STEPS = 6


def run(*command: str, parent: int | None = None, path: str = "", warnings: str = "error", **variables: str) -> str:
    """Run Python as the launcher would run a rank; return what it wrote to stdout."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("RANKWATCH_", "PYTHONPATH"))}
    environment = Bootstrap(auto=True).environment(ours | ({"PYTHONPATH": path} if path else {}))
    environment |= variables
    if parent is not None:
        environment[AUTO] = str(parent)
    done = subprocess.run(
        [sys.executable, "-u", "-W", warnings, *command], env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """What ``scenarios.py`` printed, with torch's own warnings left to itself."""
    reported: dict[str, Any] = json.loads(run(str(HERE / "scenarios.py"), warnings="default").splitlines()[-1])
    return reported


SEEN = {
    "plain": {"data": 7, "forward": 6, "backward": 6, "optimizer": 6, "step": 6},
    "in_workers": {"data": 7, "forward": 6, "backward": 6, "optimizer": 6, "step": 6},
    # A model that is called on what another has returned is an outermost one too.
    "adversarial": {"forward": 36, "backward": 18, "optimizer": 18, "step": 6},
    "accumulated": {"forward": 18, "backward": 18, "optimizer": 6, "step": 6},
    "closure": {"forward": 6, "backward": 6, "optimizer": 6, "step": 6},
    # A forward that raises is closed; its step goes on with the next one.
    "raising": {"forward": 12, "backward": 6, "optimizer": 6, "step": 6},
    "computed_again": {"forward": 6, "backward": 6, "optimizer": 6, "step": 6},
    "evaluated": {"data": 11, "forward": 6, "backward": 6, "optimizer": 6, "step": 6, "evaluation": 3},
    "evaluated_with_gradients": {
        "data": 7,
        "forward": 6,
        "backward": 6,
        "optimizer": 6,
        "step": 6,
        "evaluation": 2,
    },
    "of_no_optimizer": {"data": 7, "forward": 6, "backward": 6},
    "interrupted": {"forward": 7, "backward": 6, "optimizer": 6, "step": 6, "checkpointing": 1},
    "scripted": {"backward": 6, "optimizer": 6, "step": 6},
    "compiled": {"forward": 6, "backward": 6, "optimizer": 6, "step": 6},
    # What is compiled together with the hook's place has no forward that could be seen.
    "compiled_in_place": {"backward": 12, "optimizer": 12, "step": 12},
    "compiled_around": {"backward": 12, "optimizer": 12, "step": 12},
}


@pytest.mark.parametrize("name", SEEN)
def test_what_is_seen_of(seen: dict[str, Any], name: str) -> None:
    reported = seen["scenarios"][name]
    assert reported["sections"] == SEEN[name]
    assert reported["iteration"] == SEEN[name].get("step", 0)
    assert (reported["open"], reported["failed"]) == ([], 0)


def test_a_checkpoint_is_bracketed_and_names_no_rank(seen: dict[str, Any]) -> None:
    assert seen["scenarios"]["saved"]["sections"] == {"forward": 1, "checkpointing": 1}


def test_the_steps_go_on_where_the_optimizer_has_been(seen: dict[str, Any]) -> None:
    assert seen["scenarios"]["resumed"]["iteration"] == 501
    assert seen["scenarios"]["resumed_adversarial"]["iteration"] == 101


def test_a_script_that_counts_its_steps_is_left_to_it(seen: dict[str, Any]) -> None:
    reported = seen["scenarios"]["its_steps"]
    assert reported["iteration"] == 46
    assert reported["sections"] == {"forward": 6, "backward": 6, "optimizer": 6, "step": 6}


def test_what_goes_wrong_with_us_is_counted_and_no_more(seen: dict[str, Any]) -> None:
    assert seen["scenarios"]["broken"]["failed"] > STEPS
    assert seen["scenarios"]["broken"]["iteration"] == 0


def test_the_script_sees_nothing_of_how_it_came_about(seen: dict[str, Any]) -> None:
    assert seen["began"]["torch"] is False, "it is imported when the script likes"
    assert seen["began"]["path"][0] == str(HERE)
    assert str(HOOK) not in seen["began"]["path"]
    assert seen["environment"] == {}


def test_whether_there_is_a_torch_may_be_asked_first() -> None:
    """As transformers does when it is imported; whoever is in the way and finds nothing stays in the way."""
    script = """
import importlib.util, sys
class Old:
    def find_module(self, name, path=None):
        return None
sys.meta_path.insert(1, Old())
for _ in range(2):
    assert importlib.util.find_spec("torch") is not None
import torch
from rankwatch.integrations import autorun
print(bool(torch.nn.modules.module._has_any_global_hook()), "exec_module" in vars(torch.__spec__.loader))
"""
    assert run("-c", script, warnings="default").split() == ["True", "False"]


def test_a_process_started_by_another_is_not_the_rank() -> None:
    reported = run("-c", "import sys; print([name for name in sys.modules if 'rankwatch' in name])", parent=1)
    assert reported.strip() == "[]"


def test_the_machines_own_sitecustomize_runs_as_ever(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.theirs = 'here'")
    script = "import os, sys, sitecustomize; print(sys.theirs, sitecustomize.__file__, os.environ['PYTHONPATH'])"
    reported = run("-c", script, path=str(tmp_path))
    assert reported.split() == ["here", str(tmp_path / "sitecustomize.py"), str(tmp_path)]


def test_the_arguments_of_the_scripts_own_init_count() -> None:
    script = """
import rankwatch
from rankwatch.recording import sections, shared_slots as slots
before = sections._recorder
rankwatch.init(rank=3, world_size=8)
with rankwatch.step(7):
    pass
words = sections._recorder.words
print(words[slots.RANK], words[slots.WORLD_SIZE], words[slots.ITERATION], words is before.words)
"""
    assert run("-c", script).split() == ["3", "8", "8", "False"]
    assert run("-c", script.replace("rank=3, world_size=8", "")).split() == ["0", "1", "8", "True"]


def test_where_rankwatch_is_switched_off_nothing_is_installed() -> None:
    script = "import torch; print(bool(torch.nn.modules.module._has_any_global_hook()))"
    assert run("-c", script).strip() == "True"
    assert run("-c", script, RANKWATCH_DISABLED="1").strip() == "False"
