"""Several launchers of one job: lost, excluded, spare; and a stop on which all of them agree. Real launchers and ranks.

The ranks import no torch, so they start fast; what torch's collectives do meanwhile is the matter of ``tests/e2e``.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.conftest import FakeMonitor, wait_for
from launcher.node_set import Nodes, Start
from rankwatch_launcher.coordination.store_file import MasterAddress, StoreFile
from support.console import events, restarts
from support.ports import free_port


@pytest.fixture
def nodes(start: Start, tmp_path: Path, monitor: FakeMonitor) -> Callable[[str], Nodes]:
    return lambda nnodes: Nodes(start, tmp_path, monitor, nnodes)


def test_a_lost_node_is_named_and_a_spare_takes_its_place(nodes: Callable[[str], Nodes], monitor: FakeMonitor) -> None:
    job = nodes("2")
    job.script()
    job.start("a")
    # The store is with the first of them, which must not be the one that is lost.
    job.until("1 of at least 2 nodes are ready", "a")
    job.start("b", "c")
    job.until("trains", count=2)
    (spare,) = [name for name in "bc" if not job.printed("begins", name)]
    (victim,) = [name for name in "bc" if name != spare]
    job.until("this node is a spare: the job has its 2 nodes", spare)
    monitor.until(lambda: [o for o in monitor.of("observations") if o["role"] == "spare"])
    job.launchers[victim].process.kill()
    job.until("attempt 2: trains", "a", spare, count=2)
    (line,) = events(job.launchers["a"].output, "CRASH")
    why = r"no heartbeat of its launcher for \d\.\d s, and its connections are closed"
    assert re.match(rf"node {job.node(victim)} on {os.uname().nodename} is lost: {why}", line), line
    assert "(1 of 3)" in restarts(job.launchers["a"].output)[0]
    (event,) = monitor.events("node_lost")
    assert (event["lost_node"], event["attempt"]) == (job.node(victim), 1)
    assert {each["min_nodes"] for each in monitor.of("nodes")} == {2}, "of a spare too"
    assert re.fullmatch(why, event["reason"])
    # Whoever comes now, in the place of the lost one, waits as a spare and disturbs nothing.
    job.start("d")
    job.until("this node is a spare", "d")
    job.finish()
    assert [job.launchers[name].wait() for name in ("a", spare, "d")] == [0, 0, 0]
    assert (job.outcome("a")["state"], job.outcome("a")["restarts"], job.outcome("d")["state"]) == (
        "finished",
        1,
        "finished",
    )
    assert job.printed("attempt 3") == []


def test_launchers_meet_by_a_file_that_holds_the_address_of_an_earlier_launch(
    start: Start, tmp_path: Path, monitor: FakeMonitor
) -> None:
    gone = MasterAddress("127.0.0.1", free_port())
    StoreFile(str(tmp_path / "store"), "nodes").claim(None, gone)
    job = Nodes(start, tmp_path, monitor, "2", by_file=True)
    job.script()
    job.start("a", "b")
    job.until("trains", count=2)
    job.finish()
    assert [launcher.wait() for launcher in job.launchers.values()] == [0, 0]
    assert StoreFile(str(tmp_path / "store"), "nodes").address() is None


def test_a_node_that_an_operator_excludes_is_parked_and_its_place_is_taken(
    nodes: Callable[[str], Nodes], monitor: FakeMonitor
) -> None:
    job = nodes("2")
    job.script()
    job.start("a", "b", "c")
    job.until("trains", count=2)
    job.until("this node is a spare")
    victim = next(name for name in "abc" if job.printed("begins", name))
    order = monitor.order("restart", 1, reason="an operator ordered restart: ECC errors", exclude=[job.node(victim)])
    job.until("attempt 2: trains", count=2)
    assert job.printed("attempt 2", victim) == []
    job.until("this node is parked: excluded: an operator ordered restart: ECC errors", victim)
    assert "done" in {a["state"] for a in monitor.acks(order)}
    job.finish()
    assert [launcher.wait() for launcher in job.launchers.values()] == [0, 0, 0]
    (excluded,) = job.outcome(next(n for n in "abc" if n != victim))["excluded"]  # type: ignore[misc]
    assert excluded[:2] == [job.node(victim), os.uname().nodename]


def test_nodes_of_one_switch_stand_together_and_a_spare_of_it_steps_in(
    nodes: Callable[[str], Nodes], monitor: FakeMonitor
) -> None:
    job = nodes("3")
    job.script()
    for name, switch in (("a", "s1"), ("b", "s2"), ("c", "s1")):
        job.start(name, RANKWATCH_TOPOLOGY_LABEL=f"rack=r1,switch={switch}")
    job.until("attempt 1: trains", count=3)

    def ranks(attempt: int) -> dict[str, int]:
        lines = job.printed(f"attempt {attempt}: begins")
        return {line[1:2]: int(line.split("rank ")[1][0]) for line in lines}

    first = ranks(1)
    assert abs(first["a"] - first["c"]) == 1
    job.start("d", RANKWATCH_TOPOLOGY_LABEL="rack=r1,switch=s1")
    job.until("this node is a spare", "d")
    job.start("e", RANKWATCH_TOPOLOGY_LABEL="rack=r1,switch=s2")
    job.until("this node is a spare", "e")
    labels = {body["topology"][-1] for body in monitor.of("nodes")}
    assert labels == {"switch=s1", "switch=s2"}
    monitor.order("restart", 1, reason="an operator ordered restart", exclude=[job.node("b")])
    job.until("attempt 2: trains", count=3)
    second = ranks(2)
    assert second == {"a": first["a"], "c": first["c"], "e": first["b"]}
    job.finish()
    assert [launcher.wait() for launcher in job.launchers.values()] == [0] * 5


def test_a_signal_to_one_launcher_stops_all_ranks_after_the_same_step(
    nodes: Callable[[str], Nodes], monitor: FakeMonitor
) -> None:
    job = nodes("2")
    job.script()
    job.start("a", "b")
    job.until("trains", count=2)
    job.launchers["b"].process.send_signal(signal.SIGTERM)
    assert [launcher.wait() for launcher in job.launchers.values()] == [0, 0], "\n".join(job.printed(""))
    steps = {line.split("saves after step ")[1] for line in job.until("saves after step", count=2)}
    assert len(steps) == 1, steps
    reason = f"preempted: the launcher on {os.uname().nodename} got SIGTERM"
    for name in "ab":
        assert (job.outcome(name)["state"], job.outcome(name)["reason"]) == ("preempted", reason)
    assert {e["reason"] for e in monitor.events("stopping")} == {reason}
    assert {e["reason"] for e in monitor.events("stopped")} == {reason}


def test_ranks_that_never_ask_whether_to_stop_are_sent_sigterm(nodes: Callable[[str], Nodes]) -> None:
    job = nodes("1")
    job.script()
    text = (job.folder / "train.py").read_text()
    (job.folder / "train.py").write_text(text.replace("if rankwatch.should_stop():", "if False:"))
    job.start("a")
    job.until("trains")
    job.launchers["a"].process.send_signal(signal.SIGTERM)
    assert job.launchers["a"].wait() == 1
    assert sum("the ranks get SIGTERM" in each for each in events(job.launchers["a"].output, "SAVE")) == 1
    assert job.outcome("a")["state"] == "preempted"


@pytest.mark.parametrize(
    ("code", "attempts", "words"),
    [
        (16, 2, "it asks to be resumed elsewhere, to tell a faulty device from a correct result"),
        (17, 1, "it rejected a result, so the job is not restarted automatically"),
    ],
)
def test_the_codes_of_the_re_run_state_machine_are_understood(
    nodes: Callable[[str], Nodes], code: int, attempts: int, words: str
) -> None:
    job = nodes("2")
    job.script(f"if RANK == 1 and step == 20: sys.exit({code})")
    job.start("a", "b", RANKWATCH_MAX_RESTARTS="1")
    assert [launcher.wait() for launcher in job.launchers.values()] == [code, code]
    assert words in str(job.outcome("a")["reason"])
    assert len(job.printed("begins")) == 2 * attempts
    if code == 16:  # without a spare, every rank moves to another node
        ranks = [job.printed(r"attempt \d: begins", name) for name in "ab"]
        assert all(re.findall(r"rank (\d) of", first) != re.findall(r"rank (\d) of", second) for first, second in ranks)


def test_a_node_on_which_all_ranks_fail_at_the_start_is_replaced_by_a_spare(nodes: Callable[[str], Nodes]) -> None:
    """It lacks what the others have, a folder that is not mounted there: the job is not over."""
    job = nodes("2")
    job.script()
    script = job.folder / "train.py"
    begin = """
import os, time
if os.environ.get("NOT_MOUNTED"):
    while not os.path.exists("go"): time.sleep(0.02)
    open("/not mounted/data.bin")
"""
    script.write_text(begin + script.read_text())
    job.start("a")
    job.until("1 of at least 2 nodes are ready", "a")
    job.start("b", NOT_MOUNTED="1")
    job.until("attempt 1: trains", "a")
    job.start("c")
    job.until("this node is a spare", "c")
    (job.folder / "go").touch()
    job.until("attempt 2: trains", "a", "c", count=2)
    assert job.printed("attempt 2", "b") == []
    job.finish()
    assert [launcher.wait() for launcher in job.launchers.values()] == [0, 0, 0]


def test_attempts_that_get_nowhere_end_with_a_code_that_states_do_not_requeue(nodes: Callable[[str], Nodes]) -> None:
    job = nodes("1")
    job.script("if step == 30: os._exit(3 + int(os.environ['TORCHELASTIC_RESTART_COUNT']))")
    (job.folder / "checkpoint").write_text("20")
    job.start("a", RANKWATCH_MAX_RESTARTS="20")
    assert job.launchers["a"].wait() == 93
    assert "no progress beyond step 30 (--max-no-progress 3)" in str(job.outcome("a")["reason"])
    assert len(job.printed("begins")) == 4


def test_attempts_that_end_alike_are_two_restarts_and_no_more(nodes: Callable[[str], Nodes]) -> None:
    job = nodes("1")
    job.script("if step == 30: os._exit(3)")
    (job.folder / "checkpoint").write_text("20")
    job.start("a", RANKWATCH_MAX_RESTARTS="20")
    assert job.launchers["a"].wait() == 93
    assert len(job.printed("begins")) == 3


def test_with_too_few_nodes_the_launcher_reports_which_are_missing_and_ends(nodes: Callable[[str], Nodes]) -> None:
    job = nodes("2")
    job.script()
    job._common += ["--rdzv-conf", "join_timeout=4"]
    job.start("a")
    assert job.launchers["a"].wait() == 1
    words = "1 of at least 2 nodes are ready; waiting for 1 more; gave up after 4 s (join_timeout)"
    assert words in str(job.outcome("a")["reason"])


def test_a_node_that_has_finished_does_not_call_a_failed_job_finished(
    nodes: Callable[[str], Nodes], tmp_path: Path
) -> None:
    job = nodes("2")
    job.script("if step == 10 and RANK == 0: sys.exit(0)\n    if step == 100 and RANK == 1: sys.exit(3)")
    job._common += ["--finished-flag", str(tmp_path / "finished"), "--complete-on-success", "--max-restarts", "0"]
    job.start("a", "b")
    assert [launcher.wait() for launcher in job.launchers.values()] == [1, 1]
    assert [job.outcome(name)["state"] for name in "ab"] == ["failed", "failed"]
    assert not (tmp_path / "finished").exists()


def test_a_rank_that_has_no_slots_cannot_follow_a_step_so_all_get_sigterm(nodes: Callable[[str], Nodes]) -> None:
    job = nodes("1")
    job.script()
    text = (job.folder / "train.py").read_text()
    (job.folder / "train.py").write_text(text.replace("rankwatch.init()", "if RANK == 0: rankwatch.init()"))
    job._common += ["--nproc-per-node", "2"]
    job.start("a")
    job.until("trains", count=2)
    job.launchers["a"].process.send_signal(signal.SIGTERM)
    assert job.launchers["a"].wait() == 1
    assert events(job.launchers["a"].output, "SAVE")


def test_a_stop_signal_that_comes_twice_at_once_is_one(nodes: Callable[[str], Nodes]) -> None:
    job = nodes("1")
    job.script()
    job.start("a")
    job.until("trains")
    for _ in range(2):  # as Slurm and a supervisor do
        job.launchers["a"].process.send_signal(signal.SIGTERM)
        job.until("got SIGTERM")
    assert job.launchers["a"].wait() == 0
    assert len(events(job.launchers["a"].output, "SAVE")) == 1
    assert len(job.printed("saves after step")) == 1


def test_the_only_node_that_is_left_out_ends_the_job_at_once(nodes: Callable[[str], Nodes]) -> None:
    job = nodes("1")
    job.script('if step == 20: rankwatch.exclude_node("ECC errors")')
    job.start("a")
    assert job.launchers["a"].wait() == 1
    assert str(job.outcome("a")["reason"]).endswith(
        "requested its node to be excluded: ECC errors; the job has no other node"
    )
    assert [node[0] for node in job.outcome("a")["excluded"]] == [job.node("a")]  # type: ignore[attr-defined]


@pytest.mark.long
def test_ranks_save_although_the_node_that_holds_the_store_runs_none(
    nodes: Callable[[str], Nodes], monitor: FakeMonitor
) -> None:
    job = nodes("2")
    # Saving takes its time: the store's holder, which has nothing to save, must not go before.
    job.script()
    text = (job.folder / "train.py").read_text()
    slow = 'say("begins to save"); time.sleep(4); say(f"saves after step {step}")'
    (job.folder / "train.py").write_text(text.replace('say(f"saves after step {step}")', slow))
    job.start("a")
    job.until("1 of at least 2 nodes are ready", "a")
    job.start("b", "c")
    job.until("trains", count=2)
    job.until("this node is a spare")
    monitor.order("restart", 1, reason="an operator ordered it", exclude=[job.node("a")])
    job.until("attempt 2: trains", count=2)
    job.until("this node is parked", "a")
    for launcher in job.launchers.values():
        launcher.process.send_signal(signal.SIGTERM)
    assert [launcher.wait() for launcher in job.launchers.values()] == [0, 0, 0], "\n".join(job.printed(""))
    assert len(job.printed("saves after step")) == 2


@pytest.mark.long
def test_a_store_that_is_held_up_for_a_moment_costs_nothing(nodes: Callable[[str], Nodes]) -> None:
    job = nodes("2")
    job.script()
    job.start("a")
    job.until("1 of at least 2 nodes are ready", "a")
    job.start("b")
    job.until("trains", count=2)
    held = job.launchers["a"].process
    held.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    wait_for(lambda: time.monotonic() - began > 8.0)  # longer than the node timeout of 5 s
    held.send_signal(signal.SIGCONT)
    wait_for(lambda: time.monotonic() - began > 15.0)
    job.finish()
    assert [launcher.wait() for launcher in job.launchers.values()] == [0, 0]
    assert job.printed("attempt 2") == [], "no node was lost"


@pytest.mark.long
def test_a_launcher_that_was_stopped_for_long_goes_on(nodes: Callable[[str], Nodes]) -> None:
    job = nodes("1")
    job.script()
    job.start("a")
    job.until("trains")
    job.launchers["a"].process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    wait_for(lambda: time.monotonic() - began > 24.0, 40.0)  # longer than a store may be silent
    job.launchers["a"].process.send_signal(signal.SIGCONT)
    wait_for(lambda: time.monotonic() - began > 28.0, 40.0)
    job.finish()
    assert job.launchers["a"].wait() == 0, job.launchers["a"].output
    assert job.printed("attempt 2") == []


@pytest.mark.long
def test_when_the_store_is_frozen_the_others_end_with_words(nodes: Callable[[str], Nodes]) -> None:
    job = nodes("2")
    job.script("while step == 50: time.sleep(1)  # as ranks do whose peers' host is frozen")
    job.start("a")
    job.until("1 of at least 2 nodes are ready", "a")
    job.start("b")
    job.until("trains", count=2)
    job.launchers["a"].process.send_signal(signal.SIGSTOP)
    try:
        assert job.launchers["b"].wait(60) == 1
    finally:
        job.launchers["a"].process.send_signal(signal.SIGCONT)
    words = "the machine that hosts it is frozen or unreachable"
    assert words in str(job.outcome("b")["reason"])
    job.launchers["a"].process.kill()


@pytest.mark.long
@pytest.mark.parametrize("frozen", ["a", "b"])
def test_ranks_that_make_progress_are_left_alone_although_a_launcher_is_frozen(
    nodes: Callable[[str], Nodes], frozen: str
) -> None:
    job = nodes("2")
    job.script()
    text = (job.folder / "train.py").read_text()
    (job.folder / "train.py").write_text(text.replace("3000", "300000"))
    job.start("a")
    job.until("1 of at least 2 nodes are ready", "a")
    job.start("b")
    job.until("trains", count=2)
    job.launchers[frozen].process.send_signal(signal.SIGSTOP)
    try:
        job.until("out of sight for" if frozen == "b" else "store has not responded for")
        began = time.monotonic()
        wait_for(lambda: time.monotonic() - began > 22.0, 40.0)  # longer than each of the timeouts
    finally:
        job.launchers[frozen].process.send_signal(signal.SIGCONT)
    job.until("is in sight again" if frozen == "b" else "store responds again")
    job.finish()
    assert [launcher.wait() for launcher in job.launchers.values()] == [0, 0], "\n".join(job.printed(""))
    assert job.printed("attempt 2") == []


@pytest.mark.long
def test_when_the_host_of_the_store_is_lost_job_retries_bring_the_whole_job_back(nodes: Callable[[str], Nodes]) -> None:
    job = nodes("2")
    job.script()
    job._common += ["--job-retries", "2"]
    job.start("a")
    job.until("1 of at least 2 nodes are ready", "a")
    job.start("b")
    job.until("trains", count=2)
    (child,) = children(job.launchers["a"].process.pid)
    os.kill(child, signal.SIGKILL)
    job.until("the rendezvous store at .* does not respond", "b")
    job.until("trains", "a", count=2)
    job.until("trains", "b", count=2)
    job.finish()
    assert [launcher.wait() for launcher in job.launchers.values()] == [0, 0]


def children(pid: int) -> list[int]:
    """The processes that a process has started and that are there."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
