"""RankwatchCallback in a real Trainer on two ranks: seen, stopped with a checkpoint, resumed, complete."""

from __future__ import annotations

from dataclasses import fields

import pytest

from rankwatch_launcher.options import Options
from telemetry.integrations.transformers.conftest import Fit

pytestmark = pytest.mark.timeout(240)


@pytest.mark.long
def test_an_order_to_stop_saves_and_the_next_run_goes_on_and_completes(fit: Fit) -> None:
    flag = fit.folder / "finished"
    launcher = fit.launch("--finished-flag", str(flag))
    fit.until_running(2)
    expected = {"setup", "step", "optimizer", "evaluation", "checkpointing"}
    fit.until("all that it does is seen", lambda: expected <= fit.sections())
    fit.order("save_and_stop", "the test wants it")
    assert launcher.wait() == 0, launcher.printed()
    ended = {line.rpartition(" ")[2] for line in fit.lines("ends")}
    assert len(ended) == 1, f"the ranks stopped after different steps: {fit.lines('ends')}"
    (step,) = (int(each) for each in ended)
    assert fit.saved()[-1] == step, "the last checkpoint is of another step"
    assert not flag.exists(), "it was stopped, not completed"

    again = fit.launch("--finished-flag", str(flag), steps=step + 12)
    assert again.wait() == 0, again.printed()
    assert fit.lines("begins") == [f"rank {rank} begins with checkpoint-{step}" for rank in range(2)]
    assert fit.lines("ends") == [f"rank {rank} ends with step {step + 12}" for rank in range(2)]
    assert flag.exists(), "the last step has been made, so nothing is left to train"
    assert fit.summary()["iteration"] == step + 11


@pytest.mark.long
def test_a_trainer_without_the_callback_is_seen_by_auto(fit: Fit) -> None:
    if "auto" not in {option.name for option in fields(Options)}:
        pytest.skip("this launcher has no --auto")
    launcher = fit.launch("--auto", steps=30, callback=False)
    assert launcher.wait() == 0, launcher.printed()
    assert "--auto cannot follow" not in launcher.printed()
    assert {"step", "data", "forward", "backward", "optimizer", "evaluation", "checkpointing"} <= fit.sections()
    assert fit.summary()["iteration"] == 29
