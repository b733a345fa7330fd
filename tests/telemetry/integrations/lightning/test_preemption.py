"""PreemptionCallback: a signal becomes a checkpoint from which training resumes, on all ranks after the same step."""

from __future__ import annotations

import os
import signal

import pytest

from telemetry.integrations.lightning.conftest import Fit

pytestmark = pytest.mark.timeout(240)

NAME = "PreemptionCallback"
RECEIVED = "Received signal 15, initiating graceful stop"
DETECTED = "Preemption detected, saving checkpoint and exiting"


def pid_of(fit: Fit, rank: int) -> int:
    """The process of a rank: the one whose environment says so, and that is no worker of a data loader."""
    for pid, command in fit.processes().items():
        with open(f"/proc/{pid}/environ", "rb") as environ:
            told = f"\0RANK={rank}\0".encode() in b"\0" + environ.read()
        if told and "lightning_ranks.py" in command:
            return pid
    raise AssertionError(f"no process of rank {rank}: {fit.processes()}")


def stopped_together(fit: Fit, ranks: int = 2) -> int:
    """The step that all ranks ended with, of which there is a checkpoint."""
    ends = [line.partition("ends with ")[2] for line in fit.lines("ends.*")]
    assert len(ends) == ranks, fit.said()
    assert len(set(ends)) == 1, f"the ranks stopped after different steps: {ends}"
    (step,) = fit.checkpoint_steps()
    assert ends[0] == f"step {step}, should_stop=True"
    return int(step)


def test_one_process_without_any_launcher(fit: Fit) -> None:
    process = fit.start(fit.command({NAME: {}}, "--workers", "2"))
    fit.begun(1)
    process.process.send_signal(signal.SIGTERM)
    assert process.wait() == 0, process.said()
    assert RECEIVED in process.said()
    assert DETECTED in process.said()
    assert stopped_together(fit, 1) > 0


@pytest.mark.long
def test_a_signal_to_the_launcher(watched: Fit) -> None:
    launcher = watched.launch({NAME: {}})
    watched.begun()
    watched.until_running(2)
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.wait() == 0, launcher.said()
    assert DETECTED in launcher.said()
    step = stopped_together(watched)
    again = watched.launch({NAME: {}}, "--steps", str(step + 10))
    assert again.wait() == 0, again.said()
    assert {line.partition("begins with ")[2] for line in watched.lines("begins.*")} == {f"step {step}"}


@pytest.mark.long
def test_a_signal_to_one_rank_under_the_launcher(watched: Fit) -> None:
    launcher = watched.launch({NAME: {}})
    watched.begun()
    watched.until_running(2)
    os.kill(pid_of(watched, 1), signal.SIGTERM)
    assert launcher.wait() == 0, launcher.said()
    assert RECEIVED in launcher.said()
    assert DETECTED in launcher.said()
    stopped_together(watched)
    assert "preempted" in launcher.said()


@pytest.mark.long
def test_several_ranks_under_another_launcher_agree_through_their_store(fit: Fit) -> None:
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    process = fit.start([*torchrun, *fit.command({NAME: {}})])
    fit.begun()
    fit.until("it is said how they agree", lambda: "they agree on a step to stop after" in process.said())
    os.kill(pid_of(fit, 1), signal.SIGTERM)
    assert process.wait() == 0, process.said()
    assert RECEIVED in process.said()
    assert DETECTED in process.said()
    stopped_together(fit)


@pytest.mark.parametrize("wrong", [0, 4711, signal.SIGKILL])
def test_what_is_no_signal_to_catch_is_refused(wrong: int) -> None:
    from rankwatch.integrations.lightning import PreemptionCallback

    with pytest.raises(ValueError, match="sig must be "):
        PreemptionCallback(wrong)
