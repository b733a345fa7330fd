"""No limit is configured: the job teaches its own; a hang is suspected, confirmed and acted on; the file is kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.story import WHOLE, assert_blamed, assert_in_order
from e2e.training import FAULT, RESUMED, STEPS, Training
from rankwatch.contract import ft_state

pytestmark = pytest.mark.timeout(240)

WINDOW = 3.0
QUICK = ("--learned-minimum", "2", "--confirmation-window", f"{WINDOW:g}")
"""The shortest learned limit and the window are 10 s and 60 s by default; what is learned stays the same."""
TO_THE_END = ("--steps", str(STEPS))


def limits_of(training: Training) -> dict[str, dict[str, Any]]:
    return {row["section"]: row for row in training.summary()["timeouts"] if row["section"]}


def test_a_hang_without_any_configuration(watched: Training) -> None:
    launcher = watched.run(*QUICK, ranks=2, script=TO_THE_END, inject=f"rank=1,step={FAULT},kind=hang")
    assert launcher.wait() == 0, launcher.printed()
    incident = watched.incident()
    assert_blamed(incident, 1, "behind")
    assert (incident["kind"], incident["confirmed"]) == ("section_overrun", True)
    assert incident["section"] in ("step", "data", "backward"), (
        "the innermost one: of the culprit, or of a waiting rank"
    )
    assert "has made no progress in section" in incident["reason"]
    assert "over its learned limit of" in incident["reason"]
    assert_in_order(incident, *WHOLE)
    times = incident["timeline"]
    assert times["decided"] - times["detected"] >= WINDOW
    assert watched.steps("start") == {rank: [(1, 0), (2, RESUMED)] for rank in range(2)}
    assert watched.summary()["state"] == "finished"


@pytest.mark.long
def test_a_rank_that_goes_on_by_itself_is_left_alone(watched: Training) -> None:
    pause = f"rank=1,step={FAULT},kind=hang,seconds=6"
    launcher = watched.run("--learned-minimum", "2", ranks=2, script=TO_THE_END, inject=pause)
    assert launcher.wait() == 0, launcher.printed()
    incident = watched.incident()
    assert (incident["confirmed"], incident["outcome"]) == (False, "the ranks went on by themselves")
    assert incident["stack_groups"], "it shows where they stood"
    assert watched.summary()["attempt"] == 1


@pytest.mark.long
def test_what_was_learned_is_kept_beside_the_checkpoints_and_used_by_the_next_run(watched: Training) -> None:
    file = watched.folder / ft_state.FILE_NAME
    first = watched.run(*QUICK, "--ft-state", str(file), ranks=2, script=("--steps", "250"))
    assert first.wait() == 0, first.printed()
    kept = ft_state.read(json.loads(file.read_text()))
    assert {"step", "data", "backward", "checkpointing"} <= set(kept.sections)
    assert all(seconds >= 2 for seconds in kept.sections.values())
    assert "setup" not in kept.sections, "it did not load a checkpoint"

    changed = ft_state.write(ft_state.LearnedTimeouts({"step": 77.0}), {}, None)
    file.write_text(json.dumps(changed))
    (watched.folder / "checkpoint").unlink()
    second = watched.run("--section-timeout", "step=5", "--ft-state", str(file), ranks=2)
    watched.until_running(2)
    watched.until(
        "the loaded limit is in force, before the configured one",
        lambda: limits_of(watched).get("step", {}).get("loaded") == 77.0,
    )
    row = limits_of(watched)["step"]
    assert (row["configured"], row["source"]) == (5.0, "loaded") or row["source"] == "learned"
    assert row["in_force"] > 5.0
    assert watched.finish()[-1] == 0, second.printed()
