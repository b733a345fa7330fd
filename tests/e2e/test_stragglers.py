"""Four real ranks over gloo, one of them slow in one way: it is named, with its cause; a healthy twin names no rank."""

from __future__ import annotations

import re
from typing import Any

import pytest

from e2e.training import HOST, Training

FLAGS = ("--profiling-interval", "16")
SLOW_RANK = 2
SLOWNESS = "0.06"
"""Seconds of a step, which takes 0.03 s by itself."""


def scores(watched: Training) -> dict[str, Any]:
    assert watched.api is not None
    answer = watched.api.get(f"/api/v1/jobs/{watched.job}/scores")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def begin(watched: Training, *script: str, flags: tuple[str, ...] = ()) -> None:
    watched.run(*FLAGS, *flags, ranks=4, script=script)
    watched.until_running(4)


@pytest.mark.parametrize(
    ("part", "cause"),
    [
        pytest.param("backward", "compute", marks=pytest.mark.long),
        pytest.param("host", "host", marks=pytest.mark.long),
        pytest.param("data", "data", marks=pytest.mark.long),
    ],
)
def test_a_slow_rank_is_named_with_its_cause(watched: Training, part: str, cause: str) -> None:
    begin(watched, "--slow", f"{part}={SLOWNESS}", "--slow-rank", str(SLOW_RANK))
    found = watched.until("somebody is slow", lambda: scores(watched)["stragglers"])
    (straggler,) = found
    assert (straggler["rank"], straggler["host"], straggler["cause"]) == (SLOW_RANK, HOST, cause)

    # On a busy machine one of the others may be late as well, and then it does not wait.
    words = re.compile(f"Rank {SLOW_RANK} on {HOST} is slow: [23] ranks wait ")

    def others_wait() -> dict[str, Any]:
        reported = scores(watched)
        return reported if any(words.match(each["reason"]) for each in reported["stragglers"]) else {}

    reported = watched.until("its sentence states that the others wait", others_wait)
    (straggler,) = reported["stragglers"]
    assert reported["finding"]["verdict"] == "worker"
    assert reported["finding"]["reason"] == straggler["reason"]
    late = {row["rank"]: row["lateness_share"] or 0.0 for row in reported["ranks"]}
    assert max(late, key=lambda rank: late[rank]) == SLOW_RANK
    report = watched.api.get(f"/api/v1/jobs/{watched.job}/report").text  # type: ignore[union-attr]
    assert f"Rank {SLOW_RANK} on {HOST} is slow" in " ".join(report.split())
    assert watched.incidents() == []  # by default it is stated, and nothing is done
    assert watched.finish() == [0]


@pytest.mark.long
def test_its_healthy_twin_names_no_rank(watched: Training) -> None:
    begin(watched)

    def judged() -> bool:
        reported = scores(watched)
        assert reported["stragglers"] == [], reported["stragglers"]
        iteration = watched.summary()["iteration"]
        return bool(reported["at"]) and iteration > 20 * 32

    watched.until("twenty windows were judged, twice as many as a rank is named by", judged)
    assert watched.finish() == [0]


@pytest.mark.long
def test_without_that_node_the_job_goes_on(watched: Training) -> None:
    """One launcher only: there is no other node, so the ranks are started again where they are, and it states why."""
    begin(
        watched,
        *("--slow", f"host={SLOWNESS}", "--slow-rank", str(SLOW_RANK), "--slow-on-demand"),
        flags=("--on-straggler", "restart_excluding_node"),
    )
    (watched.folder / "slow").touch()
    incident = watched.incident(closed=False)
    assert incident["kind"] == "straggler"
    assert [c["rank"] for c in incident["culprits"]] == [SLOW_RANK]
    (watched.folder / "slow").unlink()
    closed = watched.incident()
    assert closed["action"] == "restart"
    assert "no node is excluded, since none would remain without" in closed["action_reason"]
    assert closed["timeline"]["first_step"] is not None
    assert watched.finish() == [0]
