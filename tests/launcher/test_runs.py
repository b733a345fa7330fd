"""One launcher and real ranks over gloo, watched by a monitor that only records."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.conftest import FakeMonitor, Launcher, wait_for
from rankwatch.contract.enums import ProcessState
from rankwatch_launcher.procfs import process_state
from support.console import events, restarts, shown

Start = Callable[..., Launcher]
Script = Callable[[str], str]
HOST = socket.gethostname()

CLEAN = """
meet()
say(f"sum {together():g}")
say("slots in " + os.environ["RANKWATCH_SLOTS_DIR"])
dist.barrier()
finish()
"""
CRASH_ONCE = """
meet()
together()
if FIRST and RANK == 1:
    os._exit(3)  # sys.exit() would pass by gloo, which sometimes aborts there
say(f"sum {together():g}")
finish()
"""
HANG_ONCE = """
def stuck_here():
    threading.Event().wait()
own = Own()
meet()
for step in range(3):
    own.pulse()
    together()
    own.done(step)
if FIRST and RANK == 1:
    stuck_here()
say(f"sum {together():g}")
finish()
"""


LEAVES_SLOWLY = """
import atexit, rankwatch
def waits():
    while not Path({seen!r}).exists():
        time.sleep(0.01)
atexit.register(waits)
rankwatch.init()
meet()
together()
if RANK == 1:
    sys.exit(17)
together()
"""


def test_a_clean_run_ends_with_zero_and_is_reported(start: Start, script: Script, monitor: FakeMonitor) -> None:
    launcher = start("--monitor", monitor.url, "--job-id", "j1", "--nproc-per-node", "2", script(CLEAN))
    assert launcher.wait() == 0, launcher.output
    assert "<rank 0 attempt 1: sum 2>" in launcher.output
    registration = monitor.of("nodes")[0]
    assert registration["host"] == HOST
    assert registration["local_world_size"] == 2
    assert registration["policy"] == {}
    assert {(e["rank"], e["world_size"]) for e in monitor.events("started")} == {(0, 2), (1, 2)}
    assert [e["exit_code"] for e in monitor.events("exited")] == [0, 0]
    assert len(monitor.events("finished")) == 1
    assert not launcher.slots_folder().exists()


def test_a_crash_is_restarted_and_named(start: Start, script: Script, monitor: FakeMonitor) -> None:
    launcher = start("--monitor", monitor.url, "--nproc-per-node", "2", script(CRASH_ONCE))
    assert launcher.wait() == 0, launcher.output
    assert "<rank 1 attempt 2: sum 2>" in launcher.output
    (crash,) = [e for e in monitor.events("exited") if e["rank"] == 1 and e["attempt"] == 1]
    assert crash["exit_code"] == 3
    assert f"rank 1 on {HOST} exited with code 3" == crash["reason"]
    (restart,) = monitor.events("restarting")
    assert restart["reason"] == crash["reason"]
    (crashed,) = events(launcher.output, "CRASH")
    assert crashed.startswith(crash["reason"])
    (restarted,) = restarts(launcher.output)
    assert "(1 of 3)" in restarted
    assert {e["attempt"] for e in monitor.events("started")} == {1, 2}


def test_a_rank_that_takes_its_time_to_end_is_reported_and_keeps_its_code(
    start: Start, script: Script, monitor: FakeMonitor, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    body = LEAVES_SLOWLY.format(seen=str(seen))
    launcher = start("--monitor", monitor.url, "--max-restarts", "0", "--nproc-per-node", "2", script(body))

    def leaving() -> set[int]:
        ranks = [rank for posted in monitor.of("observations") for rank in posted["ranks"]]
        return {rank["rank"] for rank in ranks if rank["leaving"] is not None}

    assert monitor.until(leaving) == {1}
    monitor.order("capture", 1, incident_id="i", deadline=5.0)
    monitor.until(lambda: monitor.of("evidence"))
    seen.touch()
    assert launcher.wait() == 17, launcher.output
    (end,) = [e for e in monitor.events("exited") if e["rank"] == 1]
    assert (end["exit_code"], end["signal"]) == (17, None)


def test_a_signal_is_named(start: Start, script: Script, monitor: FakeMonitor) -> None:
    body = "meet()\nif RANK == 0:\n    os.kill(os.getpid(), signal.SIGKILL)\ntogether()\n"
    launcher = start("--monitor", monitor.url, "--max-restarts", "0", "--nproc-per-node", "2", script(body))
    assert launcher.wait() == 1
    (failed,) = monitor.events("failed")
    assert "was killed by SIGKILL; no restart is allowed (--max-restarts 0)" in failed["reason"]
    first = next(e for e in monitor.events("exited") if e["rank"] == 0)
    assert (first["exit_code"], first["signal"]) == (None, "SIGKILL")


def test_the_budget_is_counted_and_ends(start: Start, script: Script, monitor: FakeMonitor) -> None:
    launcher = start("--monitor", monitor.url, "--max-restarts", "1", "--nproc-per-node", "1", script("sys.exit(7)\n"))
    assert launcher.wait() == 1
    assert len(monitor.events("restarting")) == 1
    (failed,) = monitor.events("failed")
    assert failed["reason"].endswith("exited with code 7; the only restart is used up (--max-restarts)")
    assert failed["reason"] == f"{failed['cause']}; {failed['why_none']}"
    assert failed["cause"].endswith("exited with code 7")
    assert failed["no_restart"] == "used_up"
    assert "exitcode  : 7" in launcher.output, "torchrun's own table of failures is shown too"


def test_an_order_to_restart_takes_evidence_first(start: Start, script: Script, monitor: FakeMonitor) -> None:
    launcher = start("--monitor", monitor.url, "--nproc-per-node", "2", script(HANG_ONCE))
    monitor.until(lambda: len(monitor.events("started")) == 2)
    monitor.until(lambda: [o for body in monitor.of("observations") for o in body["ranks"] if o["iteration"] == 2])
    capture = monitor.order("capture", 1, incident_id="i1")
    monitor.until(lambda: monitor.acks(capture))
    evidence = monitor.of("evidence")[0]
    assert (evidence["attempt"], evidence["incident_id"], evidence["directive"]) == (1, "i1", capture)
    stacks = {s["rank"]: s for s in evidence["stacks"]}
    assert "stuck_here" in [f["function"] for f in stacks[1]["frames"]], stacks
    assert "stuck_here" not in [f["function"] for f in stacks[0]["frames"]]
    restart = monitor.order("restart", 1, incident_id="i1", reason=f"rank 1 on {HOST} hangs in section step")
    assert launcher.wait() == 0, launcher.output
    assert monitor.acks(restart)[0]["state"] == "done"
    assert len(monitor.of("evidence")) == 1, "the incident's stacks were taken already"
    (event,) = monitor.events("restarting")
    assert (event["reason"], event["incident_id"]) == (f"rank 1 on {HOST} hangs in section step", "i1")
    assert events(launcher.output, "RESTART") == [f"rank 1 on {HOST} hangs in section step"]
    assert "(1 of 3)" in restarts(launcher.output)[0]
    assert "<rank 1 attempt 2: sum 2>" in launcher.output


def test_a_restart_without_a_capture_before_takes_one(start: Start, script: Script, monitor: FakeMonitor) -> None:
    launcher = start("--monitor", monitor.url, "--nproc-per-node", "2", script(HANG_ONCE))
    monitor.until(lambda: [o for body in monitor.of("observations") for o in body["ranks"] if o["iteration"] == 2])
    monitor.order("restart", 1, incident_id="i2")
    assert launcher.wait() == 0, launcher.output
    (evidence,) = monitor.of("evidence")
    assert evidence["incident_id"] == "i2"
    assert {s["method"] for s in evidence["stacks"]} == {"py-spy"}


def test_an_order_for_an_attempt_that_is_past_is_superseded(start: Start, script: Script, monitor: FakeMonitor) -> None:
    body = "meet()\nif FIRST:\n    os._exit(1)\nsignal.pause()\n"
    launcher = start("--monitor", monitor.url, "--nproc-per-node", "1", script(body))
    monitor.until(lambda: [e for e in monitor.events("started") if e["attempt"] == 2])
    late = monitor.order("restart", 1)
    monitor.until(lambda: monitor.acks(late))
    assert monitor.acks(late)[0]["state"] == "superseded"
    stop = monitor.order("stop", 2)
    assert launcher.wait() == 1
    assert monitor.acks(stop)[0]["state"] == "done"
    (event,) = monitor.events("stopped")
    assert event["reason"] == "test stop"


def test_a_restart_beyond_the_budget_is_refused(start: Start, script: Script, monitor: FakeMonitor) -> None:
    launcher = start(
        "--monitor", monitor.url, "--max-restarts", "0", "--nproc-per-node", "1", script("signal.pause()\n")
    )
    (started,) = monitor.until(lambda: monitor.events("started"))
    order = monitor.order("restart", 1)
    (ack,) = monitor.until(lambda: monitor.acks(order))
    assert ack["state"] == "refused"
    assert "no restart is left" in ack["detail"]
    assert process_state(started["pid"]) is ProcessState.ALIVE, "an order that cannot be carried out harms nothing"
    assert launcher.process.poll() is None


SAVE = """
own = Own()
for step in range(10**6):
    own.pulse()
    own.done(step)
    if step >= own.stop_at() >= 0:
        say(f"saved at {step}")
        break
    time.sleep(0.01)
"""


def test_save_and_stop_agrees_on_a_step(start: Start, script: Script, monitor: FakeMonitor) -> None:
    launcher = start("--monitor", monitor.url, "--nproc-per-node", "2", script(SAVE))
    monitor.until(lambda: monitor.events("started"))
    furthest = -1
    while True:
        # Refused while a rank has no slots yet.
        step = furthest + 500
        order = monitor.order("save_and_stop", 1, stop_step=step, deadline=30.0)
        ack = monitor.until(lambda n=order: monitor.acks(n))[0]
        furthest = ack["max_iteration"] or furthest
        if ack["state"] == "done":
            break
        assert "has no slots" in ack["detail"]
    assert launcher.wait() == 0, launcher.output
    assert launcher.output.count(f"saved at {step}>") == 2
    assert monitor.events("stopped")


def test_a_stop_step_that_has_passed_is_refused(start: Start, script: Script, monitor: FakeMonitor) -> None:
    launcher = start("--monitor", monitor.url, "--nproc-per-node", "1", script(SAVE.replace("range(", "range(50, ")))
    monitor.until(lambda: monitor.events("started"))
    wait_for(lambda: refused(monitor, monitor.order("save_and_stop", 1, stop_step=1)) is not None)
    late = monitor.order("save_and_stop", 1, stop_step=1)
    assert (refused(monitor, late) or 0) >= 49
    assert "has completed step" in monitor.acks(late)[0]["detail"]
    monitor.order("stop", 1)
    assert launcher.wait() == 1


def refused(monitor: FakeMonitor, order: int) -> int | None:
    """The furthest iteration that the refusal of an order states."""
    (ack,) = monitor.until(lambda: monitor.acks(order))
    assert ack["state"] == "refused"
    return None if ack["max_iteration"] is None else int(ack["max_iteration"])


def test_ranks_that_do_not_save_in_time_are_ended(start: Start, script: Script, monitor: FakeMonitor) -> None:
    launcher = start("--monitor", monitor.url, "--nproc-per-node", "1", script("signal.pause()\n"))
    monitor.until(lambda: monitor.events("started"))
    order = monitor.order("save_and_stop", 1, deadline=10.0)
    assert launcher.wait() == 1, launcher.output
    assert monitor.acks(order)[0]["state"] == "done"
    assert "was killed by SIGTERM before it had saved" in monitor.events("stopped")[0]["reason"]


def test_a_stopped_rank_is_spoken_for_and_seen(start: Start, script: Script, monitor: FakeMonitor) -> None:
    launcher = start("--monitor", monitor.url, "--nproc-per-node", "1", script("signal.pause()\n"))
    pid = monitor.until(lambda: monitor.events("started"))[0]["pid"]
    os.kill(pid, signal.SIGSTOP)
    spoken = monitor.until(lambda: [o for body in monitor.of("observations") for o in body["ranks"]])
    assert (spoken[0]["rank"], spoken[0]["process_state"]) == (0, "stopped")
    order = monitor.order("stop", 1)
    assert launcher.wait() == 1
    assert monitor.acks(order)


def test_settings_reach_the_slots(start: Start, script: Script, monitor: FakeMonitor) -> None:
    monitor.settings = {"limits": {"heartbeat": 5.0}}
    body = "own = Own()\nwhile True:\n    own.pulse()\n    say(own.slots.settings())\n    time.sleep(0.05)\n"
    launcher = start("--monitor", monitor.url, "--nproc-per-node", "1", script(body))
    wait_for(lambda: "{'limits': {'heartbeat': 5.0}}" in launcher.output)
    order = monitor.order("settings", 0, settings={"limits": {"heartbeat": 9.0}})
    wait_for(lambda: "{'limits': {'heartbeat': 9.0}}" in launcher.output)
    assert monitor.until(lambda: monitor.acks(order))[0]["state"] == "done"


def test_training_does_not_need_the_monitor(start: Start, script: Script, monitor: FakeMonitor) -> None:
    url = monitor.url.replace(str(monitor.port), "9")
    launcher = start("--monitor", url, "--nproc-per-node", "2", script(CRASH_ONCE))
    assert launcher.wait() == 0, launcher.output
    assert launcher.output.count("does not answer") == 1
    assert "<rank 0 attempt 2: sum 2>" in launcher.output


def test_a_monitor_that_lost_its_store_gets_everything_again(
    start: Start, script: Script, monitor: FakeMonitor
) -> None:
    launcher = start("--monitor", monitor.url, "--nproc-per-node", "1", script("signal.pause()\n"))
    monitor.until(lambda: monitor.events("started"))
    port = monitor.port
    monitor.close()
    wait_for(lambda: "does not answer" in launcher.output)
    monitor.__init__(port)  # type: ignore[misc]
    monitor.until(lambda: monitor.of("nodes") and monitor.events("started"))
    wait_for(lambda: "answers again" in launcher.output)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 1), (signal.SIGINT, 130)])
def test_a_signal_to_the_launcher_ends_the_ranks(
    start: Start, script: Script, monitor: FakeMonitor, number: signal.Signals, code: int
) -> None:
    launcher = start("--monitor", monitor.url, "--nproc-per-node", "2", script("signal.pause()\n"))
    monitor.until(lambda: len(monitor.events("started")) == 2)
    launcher.process.send_signal(number)
    assert launcher.wait(20) == code
    assert f"got {number.name}" in monitor.events("stopped")[0]["reason"]
    assert "closing signal" not in launcher.output, "torch has a line for each rank; the summary has one for all"


def test_ranks_do_not_outlive_a_killed_launcher(start: Start, script: Script, monitor: FakeMonitor) -> None:
    launcher = start("--monitor", monitor.url, "--nproc-per-node", "2", script("signal.pause()\n"))
    pids = [e["pid"] for e in monitor.until(lambda: len(monitor.events("started")) == 2 and monitor.events("started"))]
    launcher.process.kill()
    # A killed rank may stay a zombie for as long as the machine's init takes its time to reap it.
    wait_for(lambda: not any(process_state(pid) in (ProcessState.ALIVE, ProcessState.STOPPED) for pid in pids))


def test_no_monitor_is_plain_torchrun(start: Start, script: Script) -> None:
    body = "print('restarts', os.environ['TORCHELASTIC_MAX_RESTARTS'])\n"
    path = script("")
    Path(path).write_text("import os\n" + body)
    launcher = start("--no-monitor", "--nproc-per-node", "1", path)
    assert launcher.wait() == 0, launcher.output
    assert "restarts 0" in launcher.output
    assert shown(launcher.output) == []
