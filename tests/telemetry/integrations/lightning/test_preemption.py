"""PreemptionCallback: a signal becomes a checkpoint from which training resumes, on all ranks after the same step."""

from __future__ import annotations

import os
import signal

import pytest

from telemetry.integrations.lightning.conftest import DETECTED, Fit, pid_of, stopped_together

pytestmark = pytest.mark.timeout(240)

NAME = "PreemptionCallback"
RECEIVED = "Received signal 15, initiating graceful stop"


def test_one_process_without_any_launcher(fit: Fit) -> None:
    process = fit.start(fit.command({NAME: {}}, "--workers", "2"))
    fit.begun(1)
    process.process.send_signal(signal.SIGTERM)
    assert process.wait() == 0, process.printed()
    assert RECEIVED in process.printed()
    assert DETECTED in process.printed()
    assert stopped_together(fit, 1) > 0


@pytest.mark.long
def test_several_ranks_under_another_launcher_agree_through_their_store(fit: Fit) -> None:
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    process = fit.start([*torchrun, *fit.command({NAME: {}})])
    fit.begun()
    fit.until("it is logged how they agree", lambda: "they agree on a step to stop after" in process.printed())
    os.kill(pid_of(fit, 1), signal.SIGTERM)
    assert process.wait() == 0, process.printed()
    assert RECEIVED in process.printed()
    assert DETECTED in process.printed()
    stopped_together(fit)


@pytest.mark.parametrize("wrong", [0, 4711, signal.SIGKILL])
def test_what_is_no_signal_to_catch_is_refused(wrong: int) -> None:
    from rankwatch.integrations.lightning import PreemptionCallback

    with pytest.raises(ValueError, match="sig must be "):
        PreemptionCallback(wrong)
