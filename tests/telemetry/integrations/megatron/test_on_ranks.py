"""The hooks on two real ranks, under the real launcher and a real monitor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.training import Training
from rankwatch.contract import ft_state
from support.forked_ranks import run_command

RANKS = Path(__file__).with_name("ranks.py")
TESTS = Path(__file__).parents[3]
QUICK = ("--learned-minimum", "2")


def run(training: Training, *flags: str, hooks: str = "rankwatch") -> Any:
    assert training.api is not None
    named = ("--nproc-per-node", "2", "--monitor", str(training.api.base_url), "--job-id", training.job)
    script = (str(RANKS), "--folder", str(training.folder), "--hooks", hooks)
    return training.start([*run_command(), *named, *flags, *script], PYTHONPATH=str(TESTS))


def calculated(training: Training) -> set[str]:
    """Sections of which the monitor has a limit that the ranks calculated."""
    assert training.api is not None
    rows = training.api.job(training.job)["timeouts"]
    return {row["section"] for row in rows if row["what"] == "section" and row["loaded"] is not None}


def a_hang_is_found_by_the_calculated_limit(training: Training, launcher: Any) -> None:
    """The limits are learned, put in force by a checkpoint, pass through ft_state.json, and find a hang."""
    training.until_running(2)
    sections = training.until(
        "the calculated limits are in force",
        lambda: {"step", "checkpointing"} <= calculated(training) and calculated(training),
    )
    assert "setup" not in sections, "no checkpoint was loaded"
    file = training.folder / "checkpoints" / ft_state.FILE_NAME
    kept = training.until(
        "they are kept", lambda: file.exists() and dict(ft_state.read(json.loads(file.read_text())).sections)
    )
    assert kept.keys() == {"step", "checkpointing"}

    (training.folder / "hang").touch()
    incident = training.incident()
    assert (incident["kind"], incident["section"], incident["culprits"][0]["rank"]) == ("section_overrun", "step", 1)
    assert incident["limit_source"] in ("learned", "loaded"), "nobody configured it"
    training.until_running(2, attempt=2)
    began = [line["limits"] for lines in training.reported().values() for line in lines if line["attempt"] == 2]
    assert [limits["step"] for limits in began] == [kept["step"]] * 2, "both ranks have loaded what was kept"
    assert training.finish() == [0], launcher.printed()
    assert training.summary()["state"] == "finished"


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_hang_in_a_step_is_found_by_the_calculated_limit(watched: Training) -> None:
    a_hang_is_found_by_the_calculated_limit(watched, run(watched, *QUICK))
