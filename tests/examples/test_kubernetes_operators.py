"""The training job as a JobSet and as a PyTorchJob: one pod template, and failure policies that fit the exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from examples.manifests import FOLDER, one, pod_of, pods
from rankwatch_launcher import outcome
from rankwatch_launcher.schedulers import kubernetes
from support.waiting import wait_for

JOBSET, PYTORCHJOB = one("JobSet", "gpt")["spec"], one("PyTorchJob", "gpt")["spec"]
LAUNCH = FOLDER / "pytorchjob" / "launch.sh"
TRAIN = pod_of("Job", "gpt")["containers"][0]


def rendezvous(container: dict[str, Any]) -> str:
    (address,) = [word for word in container["command"] if word.startswith("--rdzv-endpoint=")]
    return str(address.removeprefix("--rdzv-endpoint="))


def test_the_jobset_s_job_is_the_job_but_for_its_backoff() -> None:
    (part,) = JOBSET["replicatedJobs"]
    alone, within = one("Job", "gpt")["spec"], part["template"]["spec"]
    assert within["podFailurePolicy"] == alone["podFailurePolicy"]
    differing = {key for key in alone | within if alone.get(key) != within.get(key)}
    assert differing == {"backoffLimit", "template"}
    assert within["backoffLimit"] == 0, "a plain failure is the JobSet's to answer, with all pods"


def test_the_jobset_fails_where_the_job_s_own_policy_ended_it_and_restarts_otherwise() -> None:
    policy = JOBSET["failurePolicy"]
    assert [(rule["action"], rule["onJobFailureReasons"]) for rule in policy["rules"]] == [
        ("FailJobSet", ["PodFailurePolicy"])
    ]
    assert policy["maxRestarts"] > 0


def test_pods_differ_from_the_job_s_in_their_names_alone() -> None:
    plain = pod_of("Job", "gpt")
    launch = {"name": "launch", "configMap": {"name": "gpt-launch"}}
    for name, pod in pods().items():
        if not name.startswith(("JobSet", "PyTorchJob")):
            continue
        (container,) = pod["containers"]
        expected = [word.replace(rendezvous(TRAIN), rendezvous(container)) for word in TRAIN["command"]]
        assert container["command"][-len(expected) :] == expected, name
        for key in ("image", "env", "securityContext", "resources"):
            assert container[key] == TRAIN[key], (name, key)
        for key in ("terminationGracePeriodSeconds", "securityContext", "enableServiceLinks"):
            assert pod[key] == plain[key], (name, key)
        assert [volume for volume in pod["volumes"] if volume != launch] == plain["volumes"], name


def test_the_rendezvous_is_in_the_first_pod_by_the_name_that_each_operator_gives_it() -> None:
    (part,) = JOBSET["replicatedJobs"]
    (container,) = part["template"]["spec"]["template"]["spec"]["containers"]
    assert JOBSET["network"]["enableDNSHostnames"] is True
    assert rendezvous(container) == f"gpt-{part['name']}-0-0.{JOBSET['network']['subdomain']}:29400"
    for replica in PYTORCHJOB["pytorchReplicaSpecs"].values():
        (container,) = replica["template"]["spec"]["containers"]
        assert rendezvous(container) == "gpt-master-0:29400"
        assert container["name"] == "pytorch", "the operator looks for it"
        assert replica["restartPolicy"] == "ExitCode"
        assert container["command"][:2] == ["sh", "/launch/launch.sh"]
    nodes = sum(replica["replicas"] for replica in PYTORCHJOB["pytorchReplicaSpecs"].values())
    assert f"--nnodes={nodes}" in TRAIN["command"]


# launch.sh -----------------------------------------------------------------------------------------------------------


@contextmanager
def launched(folder: Path, text: str, state: str = "", code: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    """launch.sh with a program in the launcher's place, which runs a text and ends as the launcher would."""
    path = folder / "outcome.json"
    lines = [
        "import os, signal, sys, time",
        "from pathlib import Path",
        "from rankwatch_launcher.outcome import Outcome",
        text,
    ]
    if state:
        lines.append(f"Outcome(state={state!r}, code={code}).write(Path({str(path)!r}))")
    lines.append(f"sys.exit({code})")
    own = {"PATH": os.environ["PATH"], "RANKWATCH_OUTCOME": str(path)}
    command = ["sh", LAUNCH, sys.executable, "-c", "\n".join(lines)]
    process = subprocess.Popen(command, env=own, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.parametrize(
    ("state", "code", "ends_with"),
    [
        (outcome.FINISHED, 0, 0),
        (outcome.STOPPED, 0, 0),
        (outcome.PREEMPTED, 0, kubernetes.CODE_RESUME + 128),
        (outcome.FAILED, outcome.CODE_FAILED, 129),
        (outcome.FAILED, outcome.CODE_RESUME_ELSEWHERE, 144),
        (outcome.FAILED, outcome.CODE_RESULT_REJECTED, outcome.CODE_RESULT_REJECTED),
        (outcome.FAILED, outcome.CODE_DO_NOT_REQUEUE, outcome.CODE_DO_NOT_REQUEUE),
        ("", 2, 2),
        ("", 0, 0),
    ],
)
def test_from_128_on_the_pod_is_started_again(state: str, code: int, ends_with: int, tmp_path: Path) -> None:
    (tmp_path / "outcome.json").write_text('{\n  "state": "preempted"\n}')  # of an earlier launch
    with launched(tmp_path, "", state, code) as process:
        assert process.wait(60) == ends_with


def test_a_launcher_that_was_killed_is_started_again(tmp_path: Path) -> None:
    with launched(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)") as process:
        assert process.wait(60) == 128 + signal.SIGKILL


def test_a_signal_reaches_the_launcher_which_has_the_time_to_save(tmp_path: Path) -> None:
    ready, saved = tmp_path / "ready", tmp_path / "saved"
    text = (
        "asked = []\n"
        "signal.signal(signal.SIGTERM, lambda *_: asked.append(1))\n"
        f"Path({str(ready)!r}).touch()\n"
        "while not asked:\n    time.sleep(0.01)\n"
        "time.sleep(0.5)\n"
        f"Path({str(saved)!r}).touch()"
    )
    with launched(tmp_path, text, outcome.PREEMPTED) as process:
        wait_for(ready.exists, "the launcher waits for its signal", 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == kubernetes.CODE_RESUME + 128
    assert saved.exists()
