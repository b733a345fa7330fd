"""Jobs that the real NeMo-Run starts with the plugins: on this machine, and on a real Slurm."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.training import HOST, RESUMED, SCRIPT, Training
from rankwatch_launcher.schedulers.slurm import is_launcher
from support.monitor_process import RunningMonitor
from support.processes import MARK
from support.slurm import slurm_cluster
from support.waiting import wait_for
from telemetry.integrations.nemo_run.environment import PRELUDE, Nemo

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

RANKWATCH = Path(sys.executable).parent / "rankwatch"

# Scripts on this machine ---------------------------------------------------------------------------------------------


class NemoTraining(Training):
    """NeMo-Run starts launchers in sessions of their own: they outlive the program that asked for them."""

    def close(self) -> None:
        """End the launchers too, with which ranks and slots go."""
        for pid in launchers(self):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        super().close()


def launchers(training: Training) -> list[int]:
    """Pids of the launchers, the supervisor first."""
    return [pid for pid in sorted(training.processes()) if is_launcher(_words(pid))]


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


@pytest.fixture
def training(tmp_path: Path, monitor: RunningMonitor, request: pytest.FixtureRequest) -> Iterator[Training]:
    """A job whose launcher NeMo-Run starts; whatever runs of it is ended."""
    job = NemoTraining(tmp_path, re.sub(r"\W+", "-", request.node.name))
    job.follow(monitor.url)
    try:
        yield job
    finally:
        job.close()


def begin(training: Training, nemo: Nemo) -> None:
    """Have NeMo-Run start two ranks of the e2e tests' script on this machine."""
    folder = training.folder
    (folder / "driver.py").write_text(
        PRELUDE
        + f"""
task = run.Script({str(SCRIPT)!r}, entrypoint="python", args=["--folder", {str(folder)!r}])
executor = run.LocalExecutor(ntasks_per_node=2)
def no_arguments(given):
    return []

plugins = [
    FaultTolerancePlugin(
        script_args_converter_fn=no_arguments,
        launcher_options={{"--monitor": {str(training.api.base_url)!r}, "--job-id": {training.job!r}}},
        program=[{sys.executable!r}, "-m", "rankwatch"],
    ),
    PreemptionPlugin(script_args_converter_fn=no_arguments),
]
with run.Experiment("pretrain", executor=executor) as experiment:
    experiment.add(task, plugins=plugins, name="pretrain", tail_logs=True)
    experiment.run()
answer([str(job.state) for job in experiment.jobs])
"""
    )
    other = ["import os, sys; os.chdir(sys.argv[1]); os.execv(sys.argv[2], sys.argv[2:])", str(folder)]
    training.start(
        ["-c", *other, str(nemo.python), "driver.py"], **nemo.environment(folder) | {"TMPDIR": str(training.temporary)}
    )


def answered(training: Training) -> Any:
    return (training.folder / "answer").read_text()


def test_a_script_on_this_machine_survives_the_loss_of_a_rank_and_saves_and_stops_when_asked(
    nemo: Nemo, training: Training
) -> None:
    begin(training, nemo)
    training.until_running(2)
    training.until("a checkpoint to go on from", lambda: training.checkpoint() >= RESUMED)
    training.strike("rank=1,kind=kill")
    training.until_running(2, attempt=2)
    assert training.resumed(2) > 0
    incident = training.incident()
    assert incident["reason"] == f"Rank 1 on {HOST} was killed by SIGKILL."

    os.kill(launchers(training)[0], signal.SIGTERM)
    assert training.launchers[0].wait() == 0
    ends = training.steps("end")
    assert sorted(ends) == [0, 1], training.launchers[0].printed()[-4000:]
    assert {step for lines in ends.values() for _, step in lines} == {training.checkpoint()}
    attempts = {rank: [attempt for attempt, _ in lines] for rank, lines in training.steps("start").items()}
    assert attempts == {0: [1, 2], 1: [1, 2]}, "nothing is started again"
    assert "SUCCEEDED" in answered(training)


# A real Slurm --------------------------------------------------------------------------------------------------------


def test_the_script_that_nemo_run_submits_restarts_saves_and_resumes(nemo: Nemo, tmp_path: Path) -> None:
    with slurm_cluster(2) as cluster:
        folder = tmp_path / "shared"
        folder.mkdir()
        program = (
            PRELUDE
            + f"""
task = run.Script({str(SCRIPT)!r}, entrypoint="python", args=["--folder", {str(folder)!r}])
executor = slurm(ntasks_per_node=1, poll_estimated_start_time=False)
def no_arguments(given):
    return []

plugins = [
    FaultTolerancePlugin(script_args_converter_fn=no_arguments, program=[{str(RANKWATCH)!r}]),
    PreemptionPlugin(script_args_converter_fn=no_arguments),
]
with run.Experiment("pretrain", executor=executor) as experiment:
    experiment.add(task, plugins=plugins, name="pretrain")
    experiment.run(detach=True)
    answer([job.handle for job in experiment.jobs])
"""
        )
        (tmp_path / "driver.py").write_text(program)
        state = {"XDG_STATE_HOME": str(tmp_path / "state"), "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
        env = nemo.environment(tmp_path)
        slurm = {name: value for name, value in cluster.environment().items() if name in ("SLURM_CONF", MARK)}
        done = subprocess.run(
            [nemo.python, "driver.py"],
            env=env | slurm | state | {"PATH": f"{env['PATH']}:/usr/sbin"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert (tmp_path / "answer").exists(), done.stdout[-3000:] + done.stderr[-3000:]
        number = int(re.findall(r"(\d+)\"\]$", (tmp_path / "answer").read_text())[0])
        output = tmp_path / "nemo-run"
        job = cluster.job(number, output)

        def reported() -> str:
            return "\n".join(file.read_text(errors="replace") for file in sorted(output.glob(f"**/*{number}*.out")))

        def reached(step: int) -> bool:
            assert job.state() in ("PENDING", "RUNNING", "COMPLETING"), reported()[-6000:]
            file = folder / "checkpoint"
            return file.exists() and int(file.read_text()) >= step

        wait_for(lambda: reached(RESUMED), "a checkpoint to go on from", 100)
        (folder / "fault.new").write_text("step=0,rank=1,kind=kill")
        (folder / "fault.new").replace(folder / "fault")
        wait_for(lambda: 'attempt": 2' in (folder / "rank-0.jsonl").read_text(), "the ranks are restarted", 100)
        (folder / "fault").unlink()
        cluster.command("scancel", "--batch", "--signal=TERM", str(number))
        wait_for(lambda: job.facts()["Restarts"] == "1", "the job is requeued", 100)
        (folder / "finish").touch()
        facts = job.ended()
        assert (facts["JobState"], facts["Restarts"]) == ("COMPLETED", "1"), reported()[-6000:]
        printed = reported()
        assert "requeued: preempted" in printed
        assert "launch 2 of Slurm job" in printed
        assert "done: the job has finished" in printed
