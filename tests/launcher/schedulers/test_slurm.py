"""What Slurm reports is read rightly, and what is reported to it is understood; the cluster itself is in tests/e2e."""

from __future__ import annotations

import os
import pwd
import signal
import stat
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import pytest

from rankwatch_launcher import retry_policy
from rankwatch_launcher.outcome import FAILED, FINISHED, PREEMPTED, Outcome
from rankwatch_launcher.schedulers import kubernetes, slurm, slurm_batch
from rankwatch_launcher.schedulers.slurm import JobInfo, SlurmError, is_launcher, launchers
from rankwatch_launcher.schedulers.slurm_batch import (
    LAUNCHES,
    Batch,
    LaunchHistory,
    build_parser,
    reconcile,
    slurm_command,
)

STEP = {
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_PARTITION": "main",
    "SLURM_JOB_NODELIST": "n[0-1]",
    "SLURMD_NODENAME": "n1",
    "SLURM_NODEID": "1",
}
SHOWN = (
    "JobId=17 JobName=gpt Requeue=1 Restarts=2 JobState=RUNNING RunTime=00:01:05 TimeLimit=1-00:00:00 NodeList=n[0-1] "
    "ExcNodeList=n[7-8] Command=/shared/my job.sh --steps 5 WorkDir=/shared Power="
)


def test_a_job_record_reports_where_it_ran() -> None:
    assert slurm.facts({"PATH": "/bin"}) == {}
    assert slurm.facts(STEP) == {
        "scheduler": "slurm",
        "slurm_job_id": "17",
        "slurm_partition": "main",
        "slurm_nodelist": "n[0-1]",
        "slurm_node": "n1",
    }
    assert slurm.facts(STEP | {"SLURM_RESTART_COUNT": "3"})["slurm_restart_count"] == "3"
    assert (slurm.node_name(STEP), slurm.node_rank(STEP)) == ("n1", 1)
    assert (slurm.node_name({"SLURMD_NODENAME": "left over"}), slurm.node_rank({})) == (None, None)


def test_the_first_run_has_no_restart_count() -> None:
    assert slurm.restart_count(STEP) == 0
    assert slurm.restart_count(STEP | {"SLURM_RESTART_COUNT": "2"}) == 2


def test_a_pod_reports_where_it_ran() -> None:
    assert kubernetes.facts({"POD_NAME": "gpt-0"}) == {}
    pod = {
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "POD_NAME": "gpt-1",
        "NODE_NAME": "gpu-7",
        "JOB_COMPLETION_INDEX": "1",
    }
    assert kubernetes.facts(pod) == {
        "scheduler": "kubernetes",
        "kubernetes_pod": "gpt-1",
        "kubernetes_node": "gpu-7",
        "kubernetes_completion_index": "1",
    }
    assert (kubernetes.node_name(pod), kubernetes.node_rank(pod)) == ("gpu-7", 1)
    assert (kubernetes.node_name({"NODE_NAME": "x"}), kubernetes.node_rank({"JOB_COMPLETION_INDEX": "1"})) == (
        None,
        None,
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("00:01:05", 65), ("1-00:00:10", 86_410), ("05:30", 330), ("UNLIMITED", None), ("", None), ("x-00:00:01", None)],
)
def test_durations(text: str, seconds: float | None) -> None:
    assert slurm.duration(text) == seconds


def test_what_the_controller_shows() -> None:
    shown = JobInfo.parse(SHOWN)
    assert (shown.state, shown.restarts, shown.requeue) == ("RUNNING", 2, True)
    assert (shown.run_time, shown.time_limit, shown.at_limit) == (65.0, 86_400.0, False)
    assert shown.excluded == "n[7-8]"
    assert shown.arguments[-2:] == ("--steps", "5")
    assert JobInfo.parse(SHOWN.replace("n[7-8]", "(null)")).excluded == ""
    assert JobInfo.parse(SHOWN.replace("RunTime=00:01:05", "RunTime=1-00:00:03")).at_limit
    with pytest.raises(SlurmError, match="slurm_load_jobs error"):
        JobInfo.parse("slurm_load_jobs error: Invalid job id specified")


def test_a_job_that_slurm_is_signalling_runs() -> None:
    assert JobInfo.parse(SHOWN.replace("=RUNNING", "=SIGNALING")).state == "RUNNING"
    assert JobInfo.parse(SHOWN.replace("=RUNNING", "=COMPLETING")).state == "COMPLETING"


def test_nodes_are_excluded_besides_those_that_were() -> None:
    shown = JobInfo.parse(SHOWN)
    assert slurm.exclude("17", shown, ["n1", "n0"])[-1] == "ExcNodeList=n[7-8],n1,n0"
    chained = slurm.chain("17", shown, ["n1"], ["job.sh"])
    assert chained == ["sbatch", "--parsable", "--dependency=afterany:17", "--exclude=n[7-8],n1", "job.sh"]
    assert slurm.chain("17", JobInfo("RUNNING"), [], ["job.sh"])[-2:] == ["--dependency=afterany:17", "job.sh"]


def test_a_chained_job_does_not_inherit_the_variables_of_this_one() -> None:
    env = {
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_NTASKS": "4",
        "SLURMD_NODENAME": "n0",
        "HOME": "/",
        "SBATCH_QOS": "q",
    }
    assert slurm.environment_outside(env) == {"SLURM_CONF": "/etc/slurm.conf", "HOME": "/", "SBATCH_QOS": "q"}


def test_a_command_that_fails_reports_it_in_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(SlurmError, match="'sh -c echo no such job >&2; exit 1' failed: no such job"):
        slurm.run(["sh", "-c", "echo no such job >&2; exit 1"])
    with pytest.raises(SlurmError, match="failed: exit code 3"):
        slurm.run(["sh", "-c", "exit 3"])
    with pytest.raises(SlurmError, match="No such file"):
        slurm.run([str(tmp_path / "scontrol")])


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("/opt/bin/python /opt/bin/rankwatch run train.py", True),
        ("python3.11 -X dev -W error -u -m rankwatch run train.py", True),
        ("rankwatch run train.py", True),
        ("srun --ntasks=2 rankwatch run train.py", False),
        ("/opt/bin/python /opt/bin/rankwatch slurm batch -- srun rankwatch run", False),
        ("/opt/bin/python -u rankwatch.py run", False),
        ("bash -c", False),
        ("python -m rankwatch", False),
        ("python", False),
        ("", False),
    ],
)
def test_a_launcher_is_known_by_its_command_line(line: str, is_one: bool) -> None:
    assert is_launcher(line.split()) is is_one


def test_launchers_of_this_job_only_and_of_a_supervisor_only_that(tmp_path: Path) -> None:
    file = tmp_path / "rankwatch"
    file.write_text(
        "import os, subprocess, sys\n"
        "if 'alone' in sys.argv:\n    child = subprocess.Popen([sys.executable, __file__, 'run', 'child'], stdin=0)\n"
        "print('up', flush=True)\n"
        "sys.stdin.read()\n"
    )
    started = [
        subprocess.Popen(
            [sys.executable, str(file), "run", "alone"],
            env={"SLURM_JOB_ID": job, "SLURM_STEP_ID": step},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for job, step in (("test-17", "0"), ("test-17", "0"), ("test-17", "1"), ("test-18", "0"))
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert [process.stdout.readline(), process.stdout.readline()] == [b"up\n"] * 2
        found = {process.step: process.pid for process in launchers("test-17")}
        assert found["0"] in (started[0].pid, started[1].pid)
        assert found == {"0": found["0"], "1": started[2].pid}
        assert launchers("test-19") == []
    finally:
        for process in started:
            process.communicate()  # end of file ends both


def test_launches_are_counted_over_runs_of_the_job(tmp_path: Path) -> None:
    launches = LaunchHistory(tmp_path / "kept")
    launches.prepare()
    assert launches.past(3).launches == 0
    failed = Outcome(FAILED, 1, "rank 0 exited with code 5", iteration=40)
    for used in range(2):
        launches.record(failed, 1, retry_policy.after(failed, 1, False, used, 2), {"job": "17"})
    preempted = Outcome(PREEMPTED, 0, "SIGTERM", iteration=70)
    launches.record(preempted, 0, retry_policy.after(preempted, 0, False, 2, 2), {"job": "17"})
    launches.record(None, 137, retry_policy.after(None, 137, False, 0, 2), {"job": "17"})
    with (launches.folder / LAUNCHES).open("a") as file:
        file.write('{"cut off')
    past = launches.past(3)
    assert (past.launches, past.used) == (4, 3)
    assert (past.progress.furthest, past.progress.stalled_launches) == (70, 0)


def test_the_launchers_outcomes_are_reported_as_one(tmp_path: Path) -> None:
    launches = LaunchHistory(tmp_path)
    assert launches.outcome("n0") is None
    pattern = launches.outcome_pattern()
    Outcome(FAILED, 1, "of n0", iteration=5, excluded=(("n1-9", "n1", "bad"),)).write(Path(pattern.format(node="n0")))
    Outcome(FINISHED, 0, "of n1", iteration=9, complete=True).write(Path(pattern.format(node="n1")))
    reported = launches.outcome("n0")
    assert reported == Outcome(FAILED, 1, "of n0", iteration=9, complete=True, excluded=(("n1-9", "n1", "bad"),))
    assert launches.outcome("n0") is None, "they are read once"
    Outcome(FAILED, 1, "of n1").write(Path(pattern.format(node="n1")))
    reported = launches.outcome("n0")
    assert reported is not None
    assert reported.reason == "of n1"


def test_what_an_earlier_launch_left_is_removed(tmp_path: Path) -> None:
    launches = LaunchHistory(tmp_path)
    Outcome(FINISHED, 0).write(Path(launches.outcome_pattern().format(node="n0")))
    launches.prepare()
    assert launches.outcome("n0") is None


def test_only_a_rank_that_was_asked_to_stop_is_preempted() -> None:
    preempted = Outcome(PREEMPTED, 0, "SIGTERM")
    assert reconcile(preempted, 0, "") == preempted, "Slurm may signal the steps without the batch script"
    assert reconcile(preempted, 1, "the limit is near") == preempted
    unasked = reconcile(preempted, 137, "")
    assert unasked is not None
    assert (unasked.state, unasked.code) == (FAILED, 1)
    assert "exit code 137" in unasked.reason
    silent = reconcile(None, 143, "the limit is near")
    assert silent is not None
    assert silent.state == PREEMPTED
    assert reconcile(None, 137, "") is None


SRUN = """#!{python}
import json, os, signal, sys, time
def ended(number, frame):
    open("srun-ended", "w").close()
    sys.exit(143)
signal.signal(signal.SIGTERM, ended)
with open(os.environ["RANKWATCH_OUTCOME"].replace("{{node}}", "n0"), "w") as file:
    json.dump({outcome}, file)
{more}
"""


@pytest.mark.parametrize(
    ("outcome", "code"),
    [(Outcome(FINISHED, 0), 0), (Outcome(FAILED, 17, "rank 0 exited", cause="rank 0 exited with code 17"), 17)],
)
def test_srun_that_waits_for_a_dead_node_is_ended_once_the_job_is_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outcome: Outcome, code: int
) -> None:
    batch = a_batch(monkeypatch, tmp_path, "srun", outcome, "time.sleep(600)")
    assert batch.run() == code
    assert (tmp_path / "srun-ended").exists(), "by a signal that it passes on"


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        ("wrapper.sh", Outcome(FINISHED, 0)),
        ("srun", Outcome(FAILED, 1, "the rendezvous store does not respond")),
    ],
    ids=["the command has more to do", "only the launcher here has ended"],
)
def test_what_may_still_work_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str, outcome: Outcome
) -> None:
    batch = a_batch(monkeypatch, tmp_path, command, outcome, "time.sleep(1.0)")
    batch._options.job_retries = 0
    batch.run()
    assert not (tmp_path / "srun-ended").exists()


def a_batch(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, outcome: Outcome, more: str) -> Batch:
    """A batch script whose command leaves an outcome and goes on."""
    monkeypatch.setattr(slurm_batch, "LEAVE_SECONDS", 0.0)
    monkeypatch.setattr(slurm_batch, "END_INTERVAL", 0.05)
    monkeypatch.chdir(folder)
    command = folder / name
    command.write_text(SRUN.format(python=sys.executable, outcome=repr(asdict(outcome)), more=more))
    command.chmod(0o700)
    env = {**os.environ, "SLURM_JOB_ID": "test-41", "SLURMD_NODENAME": "n0", "SLURM_JOB_NODELIST": "n0"}
    options = build_parser().parse_args(["batch", "--folder", str(folder / "kept")])
    batch = Batch(options, env, [str(command)])
    batch.history.prepare()
    return batch


def test_wrong_use_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    for words, complaint in [
        (["batch"], "give the command to run after --"),
        (["batch", "--", "srun"], "not a Slurm job (SLURM_JOB_ID is not set)"),
        (["batch", "--job-retries", "-1", "--", "srun"], "must be a whole number"),
        (["batch", "--signal", "KILL", "--", "srun"], "SIGKILL cannot be caught"),
    ]:
        with pytest.raises(SystemExit) as ended:
            slurm_command(words)
        assert ended.value.code == 2
        assert complaint in capsys.readouterr().err
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit):
        slurm_command(["batch", "--folder", str(tmp_path / "file" / "x"), "--", "srun"])
    assert "launches cannot be recorded" in capsys.readouterr().err


def test_signals_are_named_as_sbatch_names_them() -> None:
    assert build_parser().parse_args(["batch", "--signal", "USR1"]).signal is signal.SIGUSR1
    assert build_parser().parse_args(["batch"]).signal is signal.SIGTERM


# What others may have planted -----------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make files of the user nobody")
def test_a_folder_that_another_user_has_planted_is_not_used(tmp_path: Path) -> None:
    """A shared working directory has it before the job begins: its name is the job's number."""
    folder, precious = tmp_path / "slurm-17.rankwatch", tmp_path / "precious"
    folder.mkdir()
    (folder / LAUNCHES).symlink_to(precious)
    os.chown(folder, pwd.getpwnam("nobody").pw_uid, -1)
    with pytest.raises(PermissionError, match="belongs to another user"):
        LaunchHistory(folder).prepare()
    assert not precious.exists()


def test_the_folder_is_its_users_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        launches = LaunchHistory(tmp_path / "kept")
        launches.prepare()
    finally:
        os.umask(before)
    assert stat.S_IMODE(launches.folder.stat().st_mode) == 0o700
    launches.folder.chmod(0o777)
    with pytest.raises(PermissionError, match="can be written to by other users"):
        launches.prepare()


def test_no_launch_is_written_through_a_link(tmp_path: Path) -> None:
    launches, precious = LaunchHistory(tmp_path), tmp_path / "precious"
    precious.write_text("keep\n")
    (tmp_path / LAUNCHES).symlink_to(precious)
    with pytest.raises(OSError, match="symbolic links"):
        launches.prepare()
    with pytest.raises(OSError, match="symbolic links"):
        launches.record(None, 1, retry_policy.after(None, 1, False, 0, 2), {"job": "17"})
    assert precious.read_text() == "keep\n"


@pytest.mark.parametrize("how", ["link", "owner"])
def test_an_outcome_that_another_user_has_planted_is_not_read(tmp_path: Path, how: str) -> None:
    launches = LaunchHistory(tmp_path)
    file = Path(launches.outcome_pattern().format(node="zz"))
    Outcome(FINISHED, 0, complete=True).write(file)
    if how == "link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    elif os.geteuid() == 0:
        os.chown(file, pwd.getpwnam("nobody").pw_uid, -1)
    else:
        pytest.skip("needs root, to make a file of the user nobody")
    assert not launches.job_is_over("zz")
    assert launches.outcome("n0") is None


def test_the_script_of_the_next_job_is_nowhere_that_others_can_change(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    batch = a_batch(monkeypatch, tmp_path, "srun", Outcome(FAILED, 1), "")
    submitted: list[tuple[str, int]] = []

    def run(command: list[str], env: dict[str, str] | None = None) -> str:
        script = Path(command[-1])
        if command[0] == "scontrol":
            script.write_text("#!/bin/sh")
        else:
            submitted.append((script.read_text(), stat.S_IMODE(script.parent.stat().st_mode)))
            assert not script.is_relative_to(tmp_path)
        return "18"

    monkeypatch.setattr(slurm, "run", run)
    monkeypatch.setattr(tempfile, "tempdir", None)
    info = JobInfo.parse("JobId=17 JobState=RUNNING Command=(null)")
    assert batch._chain(retry_policy.Again("again", True), info, [], 5) == 5
    assert submitted == [("#!/bin/sh", 0o700)]
