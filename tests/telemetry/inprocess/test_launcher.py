"""Under the real launcher and monitor: what the wrapper mends is an incident, the rest restarts the ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.training import Launcher, Training
from support.forked_ranks import run_command
from support.monitor_process import running_monitor
from support.ports import free_port
from telemetry.inprocess.conftest import FAST, SCRIPT, Job

pytest.importorskip("rankwatch_launcher")


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    with running_monitor(tmp_path / "monitor") as monitor:
        folder = tmp_path / "job"
        folder.mkdir()
        made = Training(folder, "in-process")
        made.follow(monitor.url)
        try:
            yield made
        finally:
            made.close()


def start(training: Training, faults: list[Any], ranks: int = 2, **given: Any) -> Job:
    printed = Job(training.folder / "ranks")
    printed.folder.mkdir()
    text = json.dumps({"options": FAST | given.pop("options", {}), "faults": faults, "flags": ["init"], **given})
    assert training.api is not None
    flags = ["--nproc-per-node", str(ranks), "--monitor", str(training.api.base_url), "--job-id", training.job]
    training.start([*run_command(), *flags, str(SCRIPT), str(printed.folder), text])
    return printed


@pytest.mark.long
def test_a_restart_in_the_process_is_an_incident_and_no_restart_of_the_ranks(training: Training) -> None:
    printed = start(training, [[0, 0, 2, "exception"]], steps=40)
    assert training.launchers[0].wait() == 0, training.launchers[0].printed()
    assert len(printed.printed(0, "start")) == len(printed.printed(1, "start")) == 1
    assert printed.printed(1, "result")[0]["value"] == "1 of 2 in iteration 1"
    incident = training.incident(closed=False)
    assert "ank 0 raised TestError: as told in step 2; the training function was restarted" in incident["reason"]


@pytest.mark.long
def test_the_death_of_a_rank_without_a_reserve_goes_to_the_launcher(training: Training) -> None:
    printed = start(training, [[1, 0, 2, "kill"]])
    assert training.launchers[0].wait() == 0, training.launchers[0].printed()
    assert [len(printed.printed(rank, "start")) for rank in (0, 1)] == [2, 2]
    assert printed.printed(0, "result")[-1]["value"] == "0 of 2 in iteration 0"


@pytest.mark.long
@pytest.mark.parametrize("how", ["kill", "exit"])
def test_a_reserve_takes_the_place_of_a_dead_rank_and_the_launcher_lets_the_others_go_on(
    training: Training, how: str
) -> None:
    printed = start(training, [[0, 0, 2, how]], ranks=3, options={"active_world_size": 2}, steps=40)
    assert training.launchers[0].wait() == 0, training.launchers[0].printed()
    assert [len(printed.printed(rank, "start")) for rank in range(3)] == [1, 1, 1], training.launchers[0].printed()
    assert [printed.printed(rank, "result")[0]["value"] for rank in (1, 2)] == [
        "1 of 2 in iteration 1",
        "0 of 2 in iteration 1",
    ]
    assert "the other ranks continue, a reserve rank takes its place" in training.launchers[0].printed()
    (incident,) = training.incidents()
    assert incident["kind"] == "restarted_in_process", incident


@pytest.mark.long
def test_a_second_death_finds_no_reserve_and_goes_to_the_launcher(training: Training) -> None:
    faults = [[0, 0, 2, "kill"], [1, 1, 2, "kill"]]
    printed = start(training, faults, ranks=3, options={"active_world_size": 2}, steps=40)
    assert training.launchers[0].wait() == 0, training.launchers[0].printed()
    assert [len(printed.printed(rank, "start")) for rank in range(3)] == [2, 2, 2]
    assert printed.printed(0, "result")[-1]["value"] == "0 of 2 in iteration 0"


@pytest.mark.long
def test_when_all_give_up_the_launcher_restarts_for_that_reason(training: Training) -> None:
    printed = start(training, [[1, 0, 2, "exception"]], options={"max_restarts": 0}, steps=40)
    assert training.launchers[0].wait() == 0, training.launchers[0].printed()
    assert [len(printed.printed(rank, "start")) for rank in (0, 1)] == [2, 2]
    reasons = [incident["reason"] for incident in training.incidents()]
    assert any("no in-process restart is possible: max_restarts (0) is used up" in why for why in reasons)


@pytest.mark.long
def test_a_rank_whose_place_was_taken_is_parked_so_that_its_exit_restarts_no_rank(training: Training) -> None:
    printed = start(
        training, [[0, 0, 2, "exception"]], ranks=3, unhealthy=[[0, 0]], options={"active_world_size": 2}, steps=40
    )
    assert training.launchers[0].wait() == 0, training.launchers[0].printed()
    assert [len(printed.printed(rank, "start")) for rank in range(3)] == [1, 1, 1]
    assert [printed.printed(rank, "result")[0]["value"] for rank in range(3)] == [
        None,
        "1 of 2 in iteration 1",
        "0 of 2 in iteration 1",
    ]
    assert "rank 0 is parked until the job ends" in training.launchers[0].printed()


class Elastic:
    """Launchers of one rank each that meet by c10d; rank 0 of the first attempt waits in its third step."""

    def __init__(self, training: Training, nnodes: str) -> None:
        self.training, self.printed = training, Job(training.folder / "ranks")
        self.printed.folder.mkdir()
        assert training.api is not None
        given = {"options": FAST, "faults": [[0, 0, 2, "dawdle"]], "flags": ["init"], "steps": 20}
        place = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "elastic"]
        place += ["--rdzv-conf", "last_call_timeout=1", "--no-node-check", "--no-standby", "--node-timeout", "5"]
        watched = ["--monitor", str(training.api.base_url), "--job-id", training.job]
        self._command = [*run_command(), "--nnodes", nnodes, "--nproc-per-node", "1", *place, *watched]
        self._command += [str(SCRIPT), str(self.printed.folder), json.dumps(given)]

    def start(self) -> Launcher:
        return self.training.start(self._command)

    def nodes(self) -> dict[int, dict[str, Any]]:
        """What the monitor knows of the launchers, by process."""
        return {node["launcher_pid"]: node for node in self.training.summary().get("nodes", ())}

    def until_dawdles(self) -> None:
        self.training.until("rank 0 waits", lambda: self.printed.printed(0, "fault"))

    def assert_both_finish(self, *launchers: Launcher) -> None:
        assert [each.wait() for each in launchers] == [0] * len(launchers), launchers[0].printed()
        values = [self.printed.printed(rank, "result")[-1]["value"] for rank in (0, 1)]
        assert values == ["0 of 2 in iteration 0", "1 of 2 in iteration 0"]


@pytest.mark.long
def test_ranks_of_a_node_that_joins_late_meet_those_that_were_restarted(training: Training) -> None:
    job = Elastic(training, "1:2")
    first = job.start()
    job.until_dawdles()
    second = job.start()
    job.assert_both_finish(first, second)
    assert training.summary()["attempt"] == 2


@pytest.mark.long
def test_ranks_of_a_spare_that_steps_in_meet_those_that_were_restarted(training: Training) -> None:
    job = Elastic(training, "2")
    first = job.start()
    training.until("it holds the store", lambda: "1 of at least 2 nodes are ready" in first.printed())
    launchers = [first, job.start(), job.start()]
    job.until_dawdles()
    spare = training.until("one is a spare", lambda: [p for p, node in job.nodes().items() if node["role"] == "spare"])
    victim = next(each for each in launchers[1:] if each.process.pid not in spare)
    victim.process.kill()
    job.assert_both_finish(*(each for each in launchers if each is not victim))
