"""docs/rerun.md: its code runs, and it names every parameter with its default."""

from __future__ import annotations

import inspect
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rankwatch.rerun import RerunDataIterator, RerunErrorInjector, RerunStateMachine, messages

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "rerun.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


class Checkpoints:
    """One checkpoint in memory, with the methods that the page's loop calls."""

    def __init__(self) -> None:
        self.kept: tuple[Any, Any, int, Any] | None = None

    def load(self, model: torch.nn.Module, optimizer: Any, machine: RerunStateMachine) -> int:
        if self.kept is None:
            return 0
        weights, _, done, state = self.kept
        model.load_state_dict(weights)
        machine.load_state_dict(state)
        return int(done)

    def save(self, model: torch.nn.Module, optimizer: Any, done: int, state: Any) -> None:
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        self.kept = weights, optimizer.state_dict(), done, state


def test_the_loop_of_the_page_trains_and_leaves_with_the_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {}
    exec(BLOCKS[0], names)
    train: Callable[..., None] = names["train"]
    checkpoints = Checkpoints()

    def run(bad: int | None, device: str) -> int:
        def loader(first: int) -> Any:
            return (torch.full((2, 3), math.nan if n == bad else float(n)) for n in range(first, 100))

        monkeypatch.setenv("LOCAL_RANK", device)
        model = torch.nn.Linear(3, 1)
        try:
            train(model, torch.optim.SGD(model.parameters(), lr=1e-3), loader, checkpoints, 5)
        except SystemExit as asked:
            return int(asked.code or 0)
        return 0

    assert run(None, "0") == 0
    assert checkpoints.kept is None
    assert run(3, "0") == 16
    assert checkpoints.kept is not None
    assert checkpoints.kept[2] == 3, "the step that is to be run again"
    assert run(3, "0") == 16, "the same device"
    assert run(3, "1") == 17, "another device, the same NaN: it is in the data"


def test_the_other_blocks_run() -> None:
    """In a process of their own: one of them replaces a module for good."""
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(BLOCKS[1:]) + "\nassert machine.error_injector.at == (1, 120)"],
        env={"PYTHONPATH": str(ROOT / "telemetry")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "documented",
    [
        RerunStateMachine,
        RerunStateMachine.validate_result,
        RerunStateMachine.validate_loss,
        RerunDataIterator,
        RerunErrorInjector,
    ],
    ids=lambda each: each.__qualname__,
)
def test_the_reference_has_every_parameter(documented: Callable[..., Any]) -> None:
    """The manual's Python API is made of signatures and docstrings."""
    arguments = inspect.cleandoc(documented.__doc__ or "").partition("Args:\n")[2].partition("\n\n")[0]
    named = [each for each in inspect.signature(documented).parameters if each != "self"]
    assert re.findall(r"^    (\w+): ", arguments, re.MULTILINE) == named
    assert f".{documented.__qualname__.partition('.')[0]}\n" in (ROOT / "docs" / "python-api.md").read_text()


def test_every_sentence_that_a_rank_may_state_has_its_line_in_the_runbook() -> None:
    runbook = (ROOT / "docs" / "runbook.md").read_text()
    section = runbook.split("### wrong_result\n")[1].split("\n### ")[0]
    verdicts = {text.split(":")[0] for text in messages.VERDICTS.values()}
    assert {verdict for verdict in verdicts if f"| *{verdict}* |" not in section} == set()
    for part in ("**Means**", "**Confirm**", "**Do**", "**Do not**"):
        assert part in section
