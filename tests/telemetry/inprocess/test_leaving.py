"""Which ranks leave, which are late, and which are at fault, on real ranks."""

from __future__ import annotations

import os
import signal

import pytest

from rankwatch.inprocess import store_server
from rankwatch.inprocess.coordination import Coordination
from support.waiting import wait_for
from telemetry.inprocess.conftest import Job

pytestmark = pytest.mark.long


def test_a_reserve_that_was_taken_for_dead_leaves_when_it_comes_to_and_the_others_train_on(job: Job) -> None:
    patience = {"heartbeat_timeout": 3.0, "hard_timeout": 20.0, "barrier_timeout": 21.0, "completion_timeout": 60.0}
    job.start(3, [[0, 0, 6, "dawdle"]], options={"active_world_size": 2, **patience})
    wait_for(lambda: job.printed(0, "fault"), "the ranks train", 60.0)
    store = Coordination("127.0.0.1", job.port, f"{store_server.PREFIX}/1", 3, 10.0)
    reserve = job.processes[2].pid
    os.kill(reserve, signal.SIGSTOP)
    wait_for(store.lost, "its heartbeat is missed")
    os.kill(reserve, signal.SIGCONT)
    assert job.processes[2].wait(60) == 1
    assert "rank 2 is excluded: no heartbeat for 3 s" in job.why(2)
    (job.folder / "go").touch()
    assert job.ends() == [0, 0, 1], job.logs()
    assert job.results() == {0: "0 of 2 in iteration 0", 1: "1 of 2 in iteration 0"}


def test_a_rank_that_hangs_in_its_clean_up_is_ended_and_a_reserve_goes_on(job: Job) -> None:
    job.start(
        3,
        [[0, 0, 2, "exception"]],
        hangs_in_finalize=[[0, 0]],
        options={"active_world_size": 2, "barrier_timeout": 30.0, "heartbeat_timeout": 7.0},
    )
    assert job.ends() == [-signal.SIGTERM, 0, 0], job.logs()
    assert job.results() == {1: "1 of 2 in iteration 1", 2: "0 of 2 in iteration 1"}


def test_of_ranks_that_do_not_finish_in_time_the_late_one_is_at_fault(job: Job) -> None:
    job.start(
        3, [[0, 0, 6, "dawdle"]], options={"active_world_size": 2, "completion_timeout": 2.0, "max_rank_faults": 0}
    )
    assert job.ends() == [1, 0, 0], job.logs()
    assert job.results() == {1: "1 of 2 in iteration 1", 2: "0 of 2 in iteration 1"}
    assert "rank 0 did not finish within 2 s after rank 1; the training function was restarted" in job.log(2)


def test_the_rank_that_raised_is_at_fault_and_not_one_that_saw_its_collective_break_off_before_that(job: Job) -> None:
    job.start(2, [[1, 0, 2, "untidy"], [0, 1, 2, "restart"]], options={"last_call_wait": 2.0})
    assert job.ends() == [0, 0], job.logs()
    assert "rank 1 raised TestError: as told; the training function was restarted" in job.log(0)
    assert "rank 0 raised RankShouldRestart; the training function was restarted" in job.log(0)
