"""Under the real launcher and monitor: 17 ends the job and 16 moves it, both with the rank's own words."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.training import HOST, Training
from support.console import said
from support.forked_ranks import run_command
from support.monitor_fixtures import monitor
from support.monitor_process import RunningMonitor
from support.waiting import wait_for

__all__ = ["monitor"]

pytestmark = pytest.mark.timeout(240)

SCRIPT = Path(__file__).with_name("training.py")


@pytest.fixture
def job(tmp_path: Path, request: pytest.FixtureRequest, monitor: RunningMonitor) -> Iterator[Training]:
    training = Training(tmp_path, re.sub(r"\W+", "-", request.node.name).strip("-"))
    training.follow(monitor.url)
    try:
        yield training
    finally:
        training.close()


def wrong_results(job: Training) -> list[dict[str, Any]]:
    return [each for each in job.incidents() if each["kind"] == "wrong_result"]


def command(job: Training, *flags: str, script: list[str]) -> list[str]:
    assert job.api is not None
    launcher = [*run_command(), "--monitor", str(job.api.base_url), "--job-id", job.job, *flags]
    return [*launcher, str(SCRIPT), "--folder", str(job.folder), "--watched", *script]


def test_a_transient_error_ends_the_job_for_an_operator_to_look(job: Training) -> None:
    script = ["--inject", "transient_error,rank=1,step=4"]
    launcher = job.start(command(job, "--nproc-per-node", "2", script=script))
    assert launcher.wait() == 17, launcher.printed()
    (incident,) = wait_for(lambda: wrong_results(job), "the monitor has received it")
    pattern = rf"Rank 1 on {re.escape(HOST)} \(launcher \d+\), step 4: transient error: the loss is NaN \("
    assert re.match(pattern, incident["reason"]), incident["reason"]
    assert incident["reason"].endswith("the job ends with exit code 17 for manual inspection.")
    (culprit,) = incident["culprits"]
    assert (culprit["rank"], culprit["class"]) == (1, "wrong_result")
    summary = job.summary()
    assert (summary["state"], summary["attempt"], summary["restarts"]) == ("failed", 1, 0)
    assert "it rejected a result, so the job is not restarted automatically" in said(launcher.printed())
    assert {line["code"] for lines in job.reported().values() for line in lines if line["event"] == "exit"} == {17}


def two_nodes() -> list[str]:
    """Flags of launchers on one host that stand for two nodes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "rerun"]
    return [*place, "--rdzv-endpoint", f"127.0.0.1:{port}"]


@pytest.mark.long
def test_a_reproducible_result_moves_the_ranks_to_other_nodes(job: Training) -> None:
    """Without a spare, every rank moves on by one node."""
    flags = two_nodes()
    for _ in range(2):
        job.start(command(job, *flags, script=["--inject", "persistent_error,rank=1,step=4"]))
    codes = [launcher.wait() for launcher in job.launchers]
    printed = "\n".join(launcher.printed() for launcher in job.launchers)
    assert codes == [17, 17], printed
    starts = [line for line in job.reported()[1] if line["event"] == "start"]
    assert [(line["attempt"], line["step"]) for line in starts] == [(1, 0), (2, 4)]
    assert starts[0]["launcher"] != starts[1]["launcher"], "the rank was moved"
    assert "elsewhere: to tell a faulty device from a correct result" in said(printed)
    first = f"(launcher {starts[0]['launcher']}), step 4: "

    def reported(what: str) -> bool:
        """In an incident of its own, or in that of the exit, whichever the monitor received first."""
        return any(f"{first}{what}" in incident["reason"] for incident in job.incidents())

    wait_for(lambda: reported("reproducible: "), "the monitor has received why the ranks were moved")
    wait_for(lambda: reported("persistent error: the loss is NaN"), "the monitor has received the verdict")
    wait_for(lambda: wrong_results(job), "there is an incident of it")
    assert job.summary()["restarts"] == 1


@pytest.mark.long
def test_a_spare_takes_the_place_of_the_node_that_is_to_be_judged(job: Training) -> None:
    """Although another launcher sees its rank end first: the one whose rank rejected the result has the word."""
    flags = [*two_nodes(), "--spares", "1"]
    for _ in range(3):
        job.start(command(job, *flags, script=["--inject", "persistent_error,rank=1,step=4", "--linger", "0.5"]))
    codes = [launcher.wait() for launcher in job.launchers]
    printed = "\n".join(launcher.printed() for launcher in job.launchers)
    assert codes == [17, 17, 17], printed
    first, second = ([line["launcher"] for line in job.reported()[rank] if line["event"] == "start"] for rank in (0, 1))
    assert len(first) == len(second) == 2, "one restart was enough"
    assert first[0] == first[1], "a rank that is not suspected stays"
    assert second[0] != second[1] != first[0], "the spare runs the step again"
