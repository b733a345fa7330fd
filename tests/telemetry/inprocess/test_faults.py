"""Each kind of fault, on real ranks: what is mended in the process, and what goes to the next layer."""

from __future__ import annotations

import signal

import pytest

from telemetry.inprocess.conftest import Job


def test_an_exception_restarts_all_ranks_in_the_same_processes(job: Job) -> None:
    job.start(2, [[1, 0, 2, "exception"]], flags=["init", "twice"])
    assert job.ends() == [0, 0], job.logs()
    assert job.results() == {0: "0 of 2 in iteration 1", 1: "1 of 2 in iteration 1"}
    for rank in (0, 1):
        first, second, again, _ = job.printed(rank, "enter")
        assert (first["iteration"], second["iteration"]) == (0, 1)
        assert first["pid"] == second["pid"]
        assert first["port"] != second["port"]
        assert again["iteration"] == 0, "a second call begins again"
        assert job.printed(rank, "open")[0]["count"] == 0, "a section stayed open"
        assert job.printed(rank, "result")[0]["rank"] == str(rank), "the environment is as it was"
    assert "rank 1 raised TestError: as told in step 2; the training function was restarted" in job.log(0)


@pytest.mark.long
def test_all_that_a_process_survives_one_after_the_other(job: Job) -> None:
    kinds = ["async_exception", "sleep", "absent", "swallow"]
    # No process is killed here, however long a busy machine takes to wake one.
    job.start(2, [[1, iteration, 2, kind] for iteration, kind in enumerate(kinds)], options={"hard_timeout": 25.0})
    assert job.ends() == [0, 0], job.logs()
    assert job.results() == {0: "0 of 2 in iteration 4", 1: "1 of 2 in iteration 4"}
    assert [line["kind"] for line in job.printed(1, "fault")] == kinds
    assert len({line["pid"] for line in job.printed(1, "enter")}) == 1
    assert "made no progress for 3 s" in job.log(0)


@pytest.mark.long
@pytest.mark.parametrize("kinds", [("kill", "stop", "term", "exit"), ("gil", "segfault", "abort", "int")])
def test_reserves_take_the_places_of_processes_that_end(job: Job, kinds: tuple[str, ...]) -> None:
    # Rank 0 first, which trains and has started the store; then whoever took its place.
    victims = [0, 2, 3, 4]
    faults = [[victim, iteration, 2, kind] for iteration, (victim, kind) in enumerate(zip(victims, kinds, strict=True))]
    job.start(6, faults, options={"active_world_size": 2})
    codes = job.ends()
    ends = {"kill": -signal.SIGKILL, "stop": -signal.SIGKILL, "term": -signal.SIGTERM, "exit": 3}
    ends |= {"segfault": -signal.SIGSEGV, "abort": -signal.SIGABRT, "gil": -signal.SIGTERM}
    for victim, kind in zip(victims, kinds, strict=True):
        assert codes[victim] == ends.get(kind, codes[victim]) != 0, job.logs()
    assert job.results() == {1: "1 of 2 in iteration 4", 5: "0 of 2 in iteration 4"}, job.logs()
    assert codes[1] == codes[5] == 0
    assert [line["iteration"] for line in job.printed(5, "enter")] == [4], "a reserve waits until it is needed"
    if "stop" in kinds:
        assert "made no progress until its hard timeout" in job.log(victims[kinds.index("stop")])


@pytest.mark.long
def test_with_no_reserve_all_give_up_and_state_why(job: Job) -> None:
    job.start(2, [[1, 0, 2, "kill"]])
    assert job.ends() == [1, -signal.SIGKILL]
    assert "rank 1 is lost: its process died" in job.why(0)
    assert "without rank 1 too few are left" in job.why(0)


@pytest.mark.long
def test_the_world_shrinks_where_that_is_allowed(job: Job) -> None:
    job.start(3, [[0, 0, 2, "kill"]], options={"assignment": "ShiftRanks"})
    assert job.ends() == [-signal.SIGKILL, 0, 0], job.logs()
    assert job.results() == {1: "0 of 2 in iteration 1", 2: "1 of 2 in iteration 1"}


@pytest.mark.long
def test_a_rank_with_too_many_faults_gives_its_place_to_a_reserve(job: Job) -> None:
    faults = [[1, 0, 2, "exception"], [1, 1, 2, "exception"], [2, 2, 2, "exception"]]
    job.start(3, faults, options={"active_world_size": 2, "max_rank_faults": 1})
    assert job.ends() == [0, 1, 0], job.logs()
    assert job.results() == {0: "0 of 2 in iteration 3", 2: "1 of 2 in iteration 3"}
    assert job.printed(1, "gave_up")[0]["kind"] == "FaultCounterExceededError"
    assert "it has caused 2 faults, max_rank_faults is 1" in job.why(1)
    assert len(job.printed(1, "terminate")) == 1


@pytest.mark.long
def test_with_a_sick_rank_its_whole_node_is_left_out(job: Job) -> None:
    job.start(
        4,
        [[0, 0, 2, "exception"]],
        nodes=["a", "a", "b", "b"],
        unhealthy=[[0, 0]],
        options={"active_world_size": 2, "granularity": "node"},
    )
    assert job.ends() == [1, 1, 0, 0], job.logs()
    assert job.results() == {2: "0 of 2 in iteration 1", 3: "1 of 2 in iteration 1"}
    assert "its health check raised RuntimeError: the device is sick" in job.why(0)
    assert "is excluded" in job.why(1)
