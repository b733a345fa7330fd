"""Two launchers on one host: one job, one monitor, one ruling."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from launcher.conftest import FakeMonitor, Launcher
from support.console import events, restarts
from support.ports import free_port

Start = Callable[..., Launcher]
Script = Callable[[str], str]

STEPS = """
own = Own()
meet()
for step in range(3):
    own.pulse()
    together()
    own.done(step)
"""
END = """
say(f"sum {together():g}")
finish()
"""


@pytest.fixture(params=["c10d", pytest.param("static", marks=pytest.mark.long)])
def pair(request: pytest.FixtureRequest, start: Start) -> Callable[..., list[Launcher]]:
    """Start two launchers of two ranks each, by either rendezvous."""

    def begin(*arguments: str) -> list[Launcher]:
        port = free_port()
        common = ["--nnodes", "2", "--nproc-per-node", "2", "--rdzv-id", "pair"]
        if request.param == "c10d":
            common += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
            return [start(*common, *arguments) for _ in range(2)]
        common += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
        return [start(*common, "--node-rank", str(n), *arguments) for n in range(2)]

    return begin


def test_an_order_restarts_all_nodes_once(
    pair: Callable[..., list[Launcher]], script: Script, monitor: FakeMonitor
) -> None:
    body = STEPS + "if FIRST and RANK == 3:\n    threading.Event().wait()\n" + END
    launchers = pair("--monitor", monitor.url, script(body))
    monitor.until(lambda: len(monitor.events("started")) == 4)
    seen = lambda: {o["rank"] for b in monitor.of("observations") for o in b["ranks"] if o["iteration"] == 2}  # noqa: E731
    monitor.until(lambda: 3 in seen())
    capture = monitor.order("capture", 1, incident_id="i1")
    monitor.until(lambda: len(monitor.acks(capture)) == 2)
    assert {s["rank"] for body in monitor.of("evidence") for s in body["stacks"]} == {0, 1, 2, 3}
    restart = monitor.order("restart", 1, incident_id="i1")
    for launcher in launchers:
        assert launcher.wait(90) == 0, launcher.output
    # A launcher that learns of the restart from the other one before its own order comes has nothing left to do.
    assert sorted(a["state"] for a in monitor.acks(restart)) in (["done", "done"], ["done", "superseded"])
    assert {e["attempt"] for e in monitor.events("started")} == {1, 2}
    for launcher in launchers:
        assert "(1 of 3)" in restarts(launcher.output)[0]
    assert sum(launcher.output.count("attempt 2: sum 4") for launcher in launchers) == 4


def test_a_crash_on_one_node_ends_the_attempt_on_both_with_the_same_words(
    pair: Callable[..., list[Launcher]], script: Script, monitor: FakeMonitor
) -> None:
    body = STEPS + "if RANK == 3:\n    os._exit(5)\n" + "threading.Event().wait()\n"
    launchers = pair("--monitor", monitor.url, "--max-restarts", "1", script(body))
    for launcher in launchers:
        assert launcher.wait(90) == 1, launcher.output
        assert len(events(launcher.output, "CRASH")) == 2
        assert ["(1 of 1)" in line for line in restarts(launcher.output)] == [True]
    assert len({e["reason"] for e in monitor.events("restarting")}) == 1
    assert {e["reason"].partition("; ")[2] for e in monitor.events("failed")} == {
        "the only restart is used up (--max-restarts)"
    }
    survivors = {s["rank"] for b in monitor.of("evidence") if b["attempt"] == 1 for s in b["stacks"] if s["method"]}
    assert survivors == {0, 1, 2}


@pytest.fixture
def store_and_guest(start: Start, script: Script, monitor: FakeMonitor) -> tuple[Launcher, Launcher]:
    """Two launchers of one rank each that does nothing; the first one holds the rendezvous store."""
    path = script("signal.pause()\n")
    common = [
        "--nnodes",
        "2",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        f"127.0.0.1:{free_port()}",
        "--rdzv-id",
        "x",
    ]
    pair = [start(*common, "--rdzv-conf", f"is_host={is_host}", "--monitor", monitor.url, path) for is_host in (1, 0)]
    monitor.until(lambda: len(monitor.events("started")) == 2)
    return pair[0], pair[1]


def test_a_stop_reaches_a_launcher_that_waits_for_the_other(
    store_and_guest: tuple[Launcher, Launcher], monitor: FakeMonitor
) -> None:
    stays, gone = store_and_guest
    gone.process.kill()
    gone.process.wait()
    # The rank that is left crashes, so its launcher waits for a peer that never comes.
    (pid,) = [e["pid"] for e in monitor.events("started") if f"-{stays.process.pid}-" in e["node"]]
    os.kill(pid, signal.SIGKILL)
    monitor.until(lambda: monitor.events("restarting"))
    monitor.order("stop", 0, reason="nobody will come")
    assert stays.wait() == 1, stays.output
    assert events(stays.output, "STOP") == ["nobody will come"]
    assert monitor.acks(1)[-1]["detail"] == "no rank ran"


def test_when_the_host_of_the_store_dies_the_others_end_with_words(
    store_and_guest: tuple[Launcher, Launcher], monitor: FakeMonitor
) -> None:
    host, guest = store_and_guest
    host.process.kill()
    assert guest.wait() == 1, guest.output
    assert "the rendezvous store at 127.0.0.1" in monitor.events("failed")[0]["reason"]
    assert "Traceback" not in guest.output
