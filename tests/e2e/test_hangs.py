"""A rank that does not go on: found, named with a reason, its stack kept, all ranks restarted from the checkpoint."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import pytest

from e2e.story import WHOLE, assert_blamed, assert_in_order, functions, stack_of
from e2e.training import FAULT, HOST, RESUMED, STEP_LIMIT, STEPS, Training
from support.console import events, shown

pytestmark = pytest.mark.timeout(240)

LIMIT = ("--section-timeout", f"step={STEP_LIMIT}")
TO_THE_END = ("--steps", str(STEPS))
NUMBERED = (
    r"it has not entered 'all_reduce' number \d+ of group 'default_pg', "
    r"in which 3 ranks wait(; the newest that it has entered there is number \d+)?"
)
BEHIND = "it is behind within the same step, and the 3 other ranks wait for it"
OLDER = tuple(map(int, version("torch").split(".")[:2])) < (2, 11)
"""Without the numbers of gloo's collectives; see docs/torch.md."""


def assert_restarted(training: Training, ranks: int) -> None:
    """One restart: every rank went on with the step of the checkpoint and came to the end."""
    assert training.steps("start") == {rank: [(1, 0), (2, RESUMED)] for rank in range(ranks)}
    assert training.steps("end") == {rank: [(2, STEPS)] for rank in range(ranks)}
    job = training.summary()
    assert (job["state"], job["attempt"], job["restarts"], job["iteration"]) == ("finished", 2, 1, STEPS - 1)
    assert (job["incidents"], job["open_incidents"]) == (1, 0)


def assert_accounted(training: Training, incident: dict[str, Any]) -> None:
    """The ledger accounts for each second of the run, and the report shows it."""
    api = training.api
    assert api is not None
    line, shown = incident["timeline"], api.read(f"/jobs/{training.job}/goodput")
    spent, (row,) = shown["buckets"], shown["incidents"]

    job = api.job(training.job)
    assert sum(spent.values()) == pytest.approx(job["ended_at"] - job["started_at"], rel=0.005)
    assert STEP_LIMIT - 2 < spent["hang"] <= line["detected"] - line["since"] + 0.01
    assert spent["handling"] == pytest.approx(line["restarted"] - line["detected"], abs=0.1)
    assert spent["restart"] == pytest.approx(line["first_step"] - line["restarted"], abs=0.1)
    assert spent["startup"] > 0
    assert spent["lost_steps"] > 0
    assert spent["productive"] > 0
    assert spent["unseen"] == spent["down"] == spent["stalled"] == 0
    assert 0 < shown["ratio"] < 1

    assert row["lost_steps_s"] == pytest.approx(spent["lost_steps"], abs=0.01)
    took = sum(each["end"] - each["begin"] for each in row["phases"])
    assert took + row["lost_steps_s"] == pytest.approx(row["cost"]["seconds"], abs=0.01)
    assert row["steps_lost"] == FAULT - RESUMED

    done = subprocess.run(
        [sys.executable, "-m", "rankwatch", "report", training.job, "--monitor", str(api.base_url)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert f"JOB {job['name']}" in words
    assert "is FINISHED" in words
    assert " ".join(incident["reason"].split()) in words
    assert f" of training lost ({FAULT - RESUMED} steps)" in words
    assert "rankwatch_injected_hang" in words


def test_a_rank_that_hangs_is_found_named_and_restarted(watched: Training) -> None:
    launcher = watched.run(*LIMIT, ranks=4, script=TO_THE_END, inject=f"rank=2,step={FAULT},kind=hang")
    assert launcher.wait() == 0, launcher.printed()
    incident = watched.incident()
    assert_blamed(incident, 2, "behind")
    assert (incident["kind"], incident["section"], incident["limit"]) == ("section_overrun", "step", STEP_LIMIT)
    assert STEP_LIMIT < incident["elapsed"] < STEP_LIMIT + 10
    assert re.fullmatch(
        rf"Rank 2 on {re.escape(HOST)} has been in section 'step' for [\d.]+ s, over its "
        rf"configured limit of {STEP_LIMIT} s( \([123] others? too\))?: ({BEHIND if OLDER else NUMBERED})\.",
        incident["reason"],
    ), incident["reason"]
    assert (incident["action"], incident["action_reason"]) == ("restart", "the policy is to restart")
    assert_in_order(incident, *WHOLE)
    # A learned limit of a section inside the step may have raised the suspicion before.
    assert incident["timeline"]["decided"] - incident["timeline"]["since"] >= STEP_LIMIT
    assert incident["steps_lost"] == FAULT - RESUMED
    assert incident["outcome"].startswith(f"attempt 2 resumed at step {RESUMED}")
    assert f"{FAULT - RESUMED} steps were lost" in incident["outcome"]

    culprit = stack_of(incident, 2)
    assert culprit["is_culprit"]
    assert culprit["ranks"] == [2]
    assert functions(culprit)[0] == "rankwatch_injected_hang"
    assert "train" in functions(culprit)
    for rank in (0, 1, 3):
        waiting = stack_of(incident, rank)
        assert "all_reduce" in functions(waiting)
        assert not waiting["is_culprit"]
    assert incident["stack_errors"] == []

    assert_restarted(watched, 4)
    assert_accounted(watched, incident)
    told = shown(launcher.printed())
    words = [each.word for each in told if each.word]
    assert [word for word in words if word != "SUSPECT"] == ["HANG", "BACK", "DONE"], launcher.printed()
    assert told[0].text.startswith("a fault will be injected")
    assert told[1].text.startswith(f"watching {watched.job}: http://")
    (hang,) = events(launcher.printed(), "HANG")
    assert hang.startswith("rank 2 "), "the culprit comes first"
    assert len({each.text for each in told}) == len(told), "nothing is told twice"
    assert all(len(row) <= 100 for each in told[2:] for row in each.rows)
    assert all(len(each.rows) <= 2 for each in told if each.word)


@pytest.mark.parametrize(
    ("fault", "culprit_class", "reason", "function", "process_state"),
    [
        ("gil", "gil_held", r"no Python thread of it has for [\d.]+ s: something holds its GIL", "held_gil", "alive"),
        pytest.param(
            *("stop", "stopped", r"its process is stopped by a signal \(state T\), so it cannot run", "", "stopped"),
            marks=pytest.mark.long,
        ),
    ],
    ids=["gil", "stop"],
)
def test_a_rank_that_cannot_speak_is_spoken_for(
    watched: Training, fault: str, culprit_class: str, reason: str, function: str, process_state: str
) -> None:
    launcher = watched.run(*LIMIT, script=TO_THE_END, inject=f"rank=1,step={FAULT},kind={fault}")
    assert launcher.wait() == 0, launcher.printed()
    incident = watched.incident()
    assert_blamed(incident, 1, culprit_class)
    assert (incident["kind"], incident["section"], incident["limit"]) == ("section_overrun", "step", STEP_LIMIT)
    assert re.search(reason, incident["reason"]), incident["reason"]
    assert incident["action"] == "restart"
    assert_in_order(incident, *WHOLE)
    assert incident["steps_lost"] == FAULT - RESUMED
    culprit = stack_of(incident, 1)
    assert (culprit["is_culprit"], culprit["process_state"]) == (True, process_state)
    assert function in functions(culprit)[0]
    assert "carry_out" in functions(culprit)
    assert "all_reduce" in functions(stack_of(incident, 0))
    assert_restarted(watched, 2)


def test_a_healthy_job_raises_nothing(watched: Training) -> None:
    """The silent twin of all the others: the same job, the same limits, no fault."""
    launcher = watched.run(*LIMIT, "--silence-timeout", "10", script=TO_THE_END)
    assert launcher.wait() == 0, launcher.printed()
    job = watched.summary()
    assert (job["state"], job["reason"], job["attempt"], job["restarts"]) == ("finished", "", 1, 0)
    assert (job["incidents"], job["iteration"], job["instrumented"]) == (0, STEPS - 1, True)
    assert watched.api is not None
    assert [rank["state"] for rank in watched.api.ranks(watched.job)] == ["finished", "finished"]
    assert watched.steps("end") == {0: [(1, STEPS)], 1: [(1, STEPS)]}
    assert "restarting" not in launcher.printed()
