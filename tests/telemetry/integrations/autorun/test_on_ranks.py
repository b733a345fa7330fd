"""A script that was never touched, on two ranks under the real launcher: seen, its hang found, restarted, gone on."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from telemetry.integrations.autorun.conftest import SCRIPT, Untouched

pytestmark = pytest.mark.timeout(240)

FAULT = "rank=1,step=35,kind=hang"


def test_its_steps_and_sections_are_seen(untouched: Untouched) -> None:
    launcher = untouched.launch(workers=1)  # forked, as a data loader does unless it is configured otherwise
    untouched.until_running(2)
    expected = {"step", "data", "forward", "backward", "optimizer", "evaluation", "checkpointing"}
    untouched.until("all that it does is seen", lambda: expected <= untouched.sections())
    assert untouched.finish() == [0], launcher.printed()
    assert "--auto cannot follow" not in launcher.printed()
    assert untouched.incidents() == []


@pytest.mark.long
def test_a_hang_is_found_by_a_configured_limit_and_the_job_goes_on_from_its_checkpoint(untouched: Untouched) -> None:
    launcher = untouched.launch("--section-timeout", "step=4", "--inject", FAULT, steps=60)
    assert launcher.wait() == 0, launcher.printed()
    incident = untouched.incident()
    assert (incident["kind"], incident["culprits"][0]["rank"]) == ("section_overrun", 1)
    assert untouched.begun_with() == [(0, 0), (0, 30), (1, 0), (1, 30)]
    # The optimizer remembers its steps: the second attempt, of 30 steps, is known to have begun with number 30. What
    # the ranks did in their last moments they had no time to report.
    assert untouched.summary()["iteration"] > 40
    assert untouched.summary()["state"] == "finished"


@pytest.mark.long
def test_as_a_module_and_from_the_standby(untouched: Untouched) -> None:
    launcher = untouched.launch("--standby", "--verbose", module=True)
    untouched.until_running(2)
    untouched.until("interpreters wait", lambda: "prewarmed workers have imported torch" in launcher.printed())
    os.kill(untouched.pid_of(1), signal.SIGKILL)
    untouched.until_running(2, attempt=2)
    assert "starts from a prewarmed worker" in launcher.printed()
    untouched.until("all that it does is seen", lambda: {"step", "forward", "optimizer"} <= untouched.sections())
    assert untouched.finish() == [0], launcher.printed()


@pytest.mark.long
def test_through_another_program(untouched: Untouched) -> None:
    assert untouched.api is not None
    ours = ["-m", "rankwatch", "run", "--auto", "--nproc-per-node", "2", "--monitor", str(untouched.api.base_url)]
    # What this program starts by itself is not the rank; what it becomes is.
    shell = f'{sys.executable} -c ""; exec {sys.executable} {SCRIPT} --folder {untouched.folder} "$@"'
    launcher = untouched.start([*ours, "--job-id", untouched.job, "--no-python", "sh", "-c", shell, "sh"])
    untouched.until_running(2)
    assert untouched.finish() == [0], launcher.printed()
