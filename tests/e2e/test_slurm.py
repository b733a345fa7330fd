"""Jobs on a real Slurm of three nodes: what ends, what runs again, where, and from which step.

The launchers of the first part are stand-ins that end as a test states; those of the second part are real and train.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rankwatch_launcher.schedulers.slurm import is_launcher
from support.slurm import Cluster, Job, slurm_cluster
from support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
STAND_IN = ROOT / "tests" / "support" / "slurm_stand_in.py"

FINISHED = {"state": "finished", "code": 0, "iteration": 90}
PREEMPTED = {"state": "preempted", "code": 0, "iteration": 40, "reason": "SIGTERM", "until": "asked"}
FAILED = {"state": "failed", "code": 1, "iteration": 40, "reason": "rank 0 exited with code 5"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with slurm_cluster(3) as running:
        yield running


@pytest.fixture(autouse=True)
def free(cluster: Cluster) -> Iterator[None]:
    """No job of one test runs into the next."""
    yield
    cluster.cancel_all()


# What follows on how launchers end ------------------------------------------------------------------------------------

Submit = Callable[..., Job]


@pytest.fixture
def submit(cluster: Cluster, tmp_path: Path) -> Submit:
    """Submit a job of two stand-ins that end as planned, launch by launch."""

    def begin(
        plan: list[dict[str, Any]], *options: str, directives: str = "", line: str = "exec ", words: Sequence[str] = ()
    ) -> Job:
        (tmp_path / "rankwatch").write_text(STAND_IN.read_text())
        (tmp_path / "plan.json").write_text(json.dumps(plan))
        script = tmp_path / "job.sbatch"
        script.write_text(
            f"#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n{directives}\n"
            f"echo given $# words: $*\n"
            f"{line}{BIN}/rankwatch slurm batch {' '.join(options)} -- "
            f"srun {sys.executable} {tmp_path}/rankwatch run train.py\n"
        )
        return cluster.submit(script, *words, folder=tmp_path)

    return begin


def kept(folder: Path, job: Job) -> list[dict[str, Any]]:
    """What is kept of a job's launches."""
    file = folder / f"slurm-{job.number}.rankwatch" / "launches.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_finished_job_is_not_run_again(submit: Submit, tmp_path: Path) -> None:
    job = submit([FINISHED])
    assert job.ended()["JobState"] == "COMPLETED"
    assert job.printed().count("launch 1 on") == 2
    assert "done: the job has finished" in job.printed()
    assert "write 'exec'" not in job.printed()
    assert [line["verdict"] for line in kept(tmp_path, job)] == ["Done"]
    assert list(tmp_path.glob("*/outcome-*")) == []


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_node_that_is_dead_does_not_hold_the_others_after_the_end(
    submit: Submit, cluster: Cluster, tmp_path: Path
) -> None:
    job = submit([FINISHED | {"frozen": "n1"}])
    try:
        job.until_printed("the job is over, and srun still waits for a node")
        job.until_printed("done: the job has finished")
        assert (tmp_path / "frozen-n1").exists()
        wait_for(lambda: "idle" in cluster.command("sinfo", "--noheader", "--nodes=n0", "--format=%T"), "n0 is free")
    finally:
        for pid, _ in processes(job, lambda line: "rankwatch" in line[1] if len(line) > 1 else False):
            os.kill(procfs_parent(pid), signal.SIGCONT)
            os.kill(pid, signal.SIGCONT)


def procfs_parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("code", [93, 17])
def test_a_job_that_must_not_be_run_again_is_not(submit: Submit, code: int) -> None:
    job = submit([FAILED | {"code": code}], line="")
    facts = job.ended()
    assert (facts["JobState"], facts["ExitCode"], facts["Restarts"]) == ("FAILED", f"{code}:0", "0")
    assert f"exit code {code} means that" in job.printed()
    assert "write 'exec' before 'rankwatch slurm batch'" in job.printed()


def test_the_signal_before_the_limit_saves_and_resumes_without_costing_a_retry(
    submit: Submit, cluster: Cluster, tmp_path: Path
) -> None:
    job = submit([PREEMPTED, FINISHED], "--job-retries", "0")
    wait_for(lambda: job.printed().count("rank up") == 2, "both launchers run")
    cluster.command("scancel", "--batch", "--signal=TERM", str(job.number))
    assert job.ended()["JobState"] == "COMPLETED"
    printed = job.printed()
    assert printed.count("was asked to stop") == 1, "one launcher is asked, the others receive it from that one"
    assert printed.count("rank ended with 0") == 4, "nothing but launchers is signalled"
    assert "requeued: preempted: SIGTERM: it resumes from its checkpoint, and no retry is counted" in printed
    assert [(line["run"], line["counted"]) for line in kept(tmp_path, job)] == [("0", False), ("1", False)]


def test_failures_are_retried_until_none_is_left(submit: Submit, tmp_path: Path) -> None:
    job = submit([FAILED], "--job-retries", "1")
    facts = job.ended()
    assert (facts["JobState"], facts["ExitCode"], facts["Restarts"]) == ("FAILED", "1:0", "1")
    assert "requeued: failed: rank 0 exited with code 5" in job.printed()
    assert "given up: failed: rank 0 exited with code 5; the only retry of the job is used up" in job.printed()
    assert [line["counted"] for line in kept(tmp_path, job)] == [True, False]


def test_the_next_run_avoids_the_nodes_that_were_excluded(submit: Submit) -> None:
    bad = FAILED | {"excluded": [["n1-4711", "n1.cluster.example", "its device lost contact"]]}
    job = submit([bad, FINISHED], "--exclude-bad-nodes")
    facts = job.ended()
    assert facts["JobState"] == "COMPLETED"
    assert "launch 1 on n1" in job.printed()
    assert "excluding n1" in job.printed()
    assert (facts["NodeList"], facts["ExcNodeList"]) == ("n[0,2]", "n1"), job.printed()


def test_a_chained_job_goes_on_as_the_same_job_elsewhere(submit: Submit, cluster: Cluster, tmp_path: Path) -> None:
    bad = FAILED | {"excluded": [["n0-4711", "n0", "bad"]]}
    directives = "#SBATCH --no-requeue\n#SBATCH --job-name=gpt"
    job = submit([bad, FINISHED], "--mode", "chain", "--exclude-bad-nodes", directives=directives, words=["a", "b"])
    facts = job.ended()
    assert (facts["JobState"], facts["Restarts"]) == ("FAILED", "0")
    number = job.printed().partition(" resumes: ")[0].split()[-1]
    follower = cluster.job(int(number), tmp_path)
    facts = follower.ended()
    assert (facts["JobState"], facts["JobName"], facts["NodeList"]) == ("COMPLETED", "gpt", "n[1-2]")
    assert f"launch 2 on n1, job {job.number}" in follower.printed(), "the monitor's record goes on"
    assert "given 2 words: a b" in follower.printed()
    assert len(kept(tmp_path, job)) == 2


def test_a_cancelled_job_stays_cancelled(submit: Submit, cluster: Cluster) -> None:
    job = submit([PREEMPTED])
    wait_for(lambda: job.printed().count("rank up") == 2, "both launchers run")
    cluster.command("scancel", str(job.number))
    assert job.ended()["JobState"] == "CANCELLED"
    assert "was cancelled, or is being ended by Slurm" in job.printed()
    assert job.facts()["Restarts"] == "0"


def test_a_job_that_may_not_be_requeued_ends_with_words(submit: Submit) -> None:
    job = submit([FAILED], directives="#SBATCH --no-requeue")
    facts = job.ended()
    assert (facts["JobState"], facts["ExitCode"]) == ("FAILED", "1:0")
    assert "but that failed: the job was submitted with --no-requeue; add '#SBATCH --requeue'" in job.printed()


def test_nothing_is_started_once_training_is_complete(submit: Submit, tmp_path: Path) -> None:
    (tmp_path / "finished").touch()
    job = submit([FAILED], line=f"export FAULT_TOL_FINISHED_FLAG_FILE={tmp_path}/finished; exec ")
    assert job.ended()["JobState"] == "COMPLETED"
    assert "training is complete" in job.printed()
    assert "launch 1 on" not in job.printed()


# Real launchers that train -------------------------------------------------------------------------------------------

SMALL = ("--layers", "1", "--heads", "2", "--width", "32", "--context", "16", "--batch", "2", "--eval-every", "100000")
SLOW = "rank=0,step=0,kind=slow,seconds=0.1"
"""A run from the start has slow steps, so that there is time to strike; one that resumes has not."""

TRAINING = "examples/train_gpt.py"

Train = Callable[..., Job]


@pytest.fixture
def train(cluster: Cluster, tmp_path: Path) -> Train:
    """Submit one of the example scripts as it is: one rank a node, a small model."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    temporary = tmp_path / "tmp"
    temporary.mkdir()

    def begin(example: str, *arguments: str, options: Sequence[str] = (), inject: str = "") -> Job:
        variables = {
            "PATH": f"{BIN}:{os.environ['PATH']}:/usr/sbin",
            "RANKS_PER_NODE": "1",
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(temporary),
            "XDG_STATE_HOME": str(tmp_path / "state"),
            **({"RANKWATCH_INJECT": inject} if inject else {}),
        }
        script = ROOT / "examples" / "slurm" / example
        return cluster.submit(script, *SMALL, *arguments, folder=tmp_path, options=options, **variables)

    return begin


def first_steps(printed: str) -> list[int]:
    """The step that each attempt of each run began with."""
    return [int(step) for step in re.findall(r"attempt \d+: step (\d+) comes first", printed)]


def processes(job: Job, arguments: Callable[[list[str]], bool]) -> Iterator[tuple[int, dict[str, str]]]:
    """Pid and environment of the job's processes with such a command line."""
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and arguments((folder / "cmdline").read_text().split("\0")):
                environ = dict(line.partition("=")[::2] for line in (folder / "environ").read_text().split("\0"))
                if environ.get("SLURM_JOB_ID") == str(job.number):
                    yield int(folder.name), environ


def launchers_with_ranks(job: Job) -> list[int]:
    """Pids of the launchers that are no spares; the one that holds the rendezvous, on which all depend, comes last.

    On a cluster that is the first node's. Here all nodes are one host, so it is whichever came first.
    """
    busy = {environ["SLURMD_NODENAME"] for _, environ in processes(job, lambda line: line[1:3] == ["-u", TRAINING])}
    found = [pid for pid, environ in processes(job, is_launcher) if environ["SLURMD_NODENAME"] in busy]
    return sorted(found, key=lambda pid: listens(pid, 20_000 + job.number % 10_000))


def listens(pid: int, port: int) -> bool:
    """Whether a process listens on a TCP port."""
    sockets = {os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()}
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" and f"socket:[{row[9]}]" in sockets for row in rows)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_training_on_two_nodes_ends_and_is_never_run_again(train: Train) -> None:
    job = train("requeue.sbatch", "--steps", "40")
    assert job.ended()["JobState"] == "COMPLETED", job.printed()
    assert "attempt 1: step 0 comes first, 2 ranks" in job.printed()
    again = train("requeue.sbatch", "--steps", "40")
    assert again.ended()["JobState"] == "COMPLETED", again.printed()
    assert "training is complete" in again.printed()
    assert first_steps(again.printed()) == []


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_crash_of_a_rank_is_mended_within_the_job(train: Train) -> None:
    job = train("requeue.sbatch", "--steps", "40", inject="rank=1,step=30,kind=kill")
    facts = job.ended()
    assert (facts["JobState"], facts["Restarts"]) == ("COMPLETED", "0"), job.printed()
    assert first_steps(job.printed()) == [0, 20]
    assert "restarting all ranks (1 of 3)" in job.printed()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_launcher_that_is_lost_costs_a_retry_and_the_job_resumes(train: Train, tmp_path: Path) -> None:
    job = train("requeue.sbatch", "--steps", "200", "--log-every", "5", inject=SLOW)
    job.until_printed("step 24:")
    os.kill(launchers_with_ranks(job)[0], signal.SIGKILL)
    facts = job.ended()
    assert (facts["JobState"], facts["Restarts"]) == ("COMPLETED", "1"), job.printed()
    first, *_, last = first_steps(job.printed())
    assert first == 0
    assert 20 <= last < 200, "it resumed from a checkpoint"
    assert last % 20 == 0
    assert [line["counted"] for line in kept(tmp_path, job)] == [True, False]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("example", ["requeue.sbatch", "chain.sbatch"])
def test_a_signal_before_the_limit_has_the_ranks_save_and_the_job_resume(
    train: Train, cluster: Cluster, tmp_path: Path, example: str
) -> None:
    job = train(example, "--steps", "200", "--log-every", "5", inject=SLOW)
    job.until_printed("step 24:")
    cluster.command("scancel", "--batch", "--signal=TERM", str(job.number))
    follower = job
    if example == "chain.sbatch":
        printed = job.until_printed(" resumes: ")
        follower = cluster.job(int(printed.partition(" resumes: ")[0].split()[-1]), tmp_path)
    facts = follower.ended()
    printed = job.printed() if follower is job else job.printed() + follower.printed()
    assert facts["JobState"] == "COMPLETED", printed
    last = int(re.findall(r"asked to stop: leaving after step (\d+)", printed)[0])
    assert first_steps(printed) == [0, last + 1], "nothing is done twice"
    assert "DataLoader worker" not in printed
    assert [line["counted"] for line in kept(tmp_path, job)] == [False, False]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_time_limit_itself(train: Train) -> None:
    job = train("requeue.sbatch", "--steps", "900", options=("--time=2", "--signal=B:TERM@60"), inject=SLOW)
    facts = job.ended(550)
    assert facts["JobState"] == "COMPLETED", job.printed()
    assert int(facts["Restarts"]) >= 1
    starts = first_steps(job.printed())
    left = [int(step) + 1 for step in re.findall(r"asked to stop: leaving after step (\d+)", job.printed())]
    # Slurm's signal may come before a run has made its first step: then the next one begins where it did.
    assert starts == sorted(starts)
    assert set(starts) == {0, *left}, "nothing is done twice"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_spare_node_takes_the_place_of_one_that_is_lost(train: Train) -> None:
    job = train("spares.sbatch", "--steps", "60", "--log-every", "5", inject=SLOW)
    printed = job.until_printed("step 24:")
    assert "step 0 comes first, 2 ranks" in printed
    os.kill(launchers_with_ranks(job)[0], signal.SIGKILL)
    facts = job.ended()
    assert (facts["JobState"], facts["Restarts"]) == ("COMPLETED", "0"), job.printed()
    assert first_steps(job.printed())[1:] in ([20], [40]), job.printed()
    assert "restarting all ranks (1 of 3)" in job.printed()
