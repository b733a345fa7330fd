"""``rankwatch diagnose`` at jobs of several nodes: by a real ssh, by a real Slurm, by reports in files, by kubectl.

The nodes of ssh have process trees of their own. Those of Slurm are one host, so each of its reports shows all ranks.
kubectl is emulated: a program that runs the command here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.test_diagnose import BEGIN, HANGS, HEALTHY, named
from support.processes import MARK, end_marked
from support.slurm import Cluster, slurm_cluster
from support.ssh_nodes import SshNodes, ssh_nodes
from support.waiting import wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

NODES = ("a", "b", "c")
PORT = "29400"
DIAGNOSE = (sys.executable, "-P", "-m", "rankwatch", "diagnose", "--json")


@pytest.fixture(scope="module")
def nodes() -> Iterator[SshNodes]:
    yield from ssh_nodes(*NODES)


def diagnosed(nodes: SshNodes, *flags: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        nodes.inside((*DIAGNOSE, *flags)),
        env=nodes.environment(),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


Start = Callable[[str], list[subprocess.Popen[bytes]]]


@pytest.fixture
def start(nodes: SshNodes, tmp_path: Path) -> Iterator[Start]:
    """Start a script with torchrun on all nodes, one rank each, and wait until all are up."""
    launchers: list[subprocess.Popen[bytes]] = []
    mark = f"{os.getpid()}-{tmp_path.name}"

    def begin(script: str) -> list[subprocess.Popen[bytes]]:
        (tmp_path / "train.py").write_text(BEGIN + script)
        log = tmp_path / "log"
        for place, name in enumerate(NODES):
            run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", f"--nnodes={len(NODES)}"]
            where = [f"--node-rank={place}", f"--master-addr={nodes.network.address('a')}", f"--master-port={PORT}"]
            train = [str(tmp_path / "train.py"), str(tmp_path / "stop")]
            own = ["env", f"{MARK}={mark}", "GLOO_SOCKET_IFNAME=net0", "OMP_NUM_THREADS=1"]
            with log.open("ab") as output:
                launchers.append(nodes.start_there(name, *own, *run, *where, *train, output=output.fileno()))

        def ready() -> bool:
            assert all(each.poll() is None for each in launchers), log.read_text()
            return log.read_text().count("READY") == len(NODES)

        wait_for(ready, "the ranks are up", 200.0)
        return launchers

    yield begin
    for each in launchers:
        each.kill()
        each.wait()
    end_marked(mark)


def test_the_rank_of_another_node_is_named_by_ssh(nodes: SshNodes, start: Start) -> None:
    start(HANGS)
    code, found = diagnosed(nodes, "--hosts", ",".join(NODES))
    (job,) = found["jobs"]
    assert (code, job["verdict"], named(job)) == (3, "trouble", [1]), job["reason"]
    assert (job["culprits"][0]["host"], job["hosts"], found["unanswered"]) == ("b", list(NODES), [])

    nodes.network.cut("b")
    try:
        began = time.monotonic()
        code, found = diagnosed(nodes, "--hosts", ",".join(NODES))
        took = time.monotonic() - began
    finally:
        nodes.network.mend("b")
    (job,) = found["jobs"]
    assert (code, job["verdict"], named(job)) == (4, "unknown", []), job["reason"]
    assert ([each["node"] for each in found["unanswered"]], job["unseen"]) == (["b"], [1])
    assert took < 60.0, "a node that does not answer is not waited for"


def test_reports_of_the_nodes_are_merged_from_files(nodes: SshNodes, start: Start, tmp_path: Path) -> None:
    start(HANGS)
    files = [tmp_path / f"report-{name}" for name in NODES]
    looking = [
        nodes.start_there(name, *DIAGNOSE[:-1], "--report", str(file)) for name, file in zip(NODES, files, strict=True)
    ]
    assert [each.wait(100) for each in looking] == [0, 0, 0]
    code, found = diagnosed(nodes, "--from", *map(str, files))
    (job,) = found["jobs"]
    assert (code, named(job), job["culprits"][0]["host"]) == (3, [1], "b"), job["reason"]


def test_a_healthy_job_of_three_nodes_goes_on(nodes: SshNodes, start: Start, tmp_path: Path) -> None:
    launchers = start(HEALTHY)
    code, found = diagnosed(nodes, "--hosts", ",".join(NODES))
    (job,) = found["jobs"]
    assert (code, job["verdict"], len(job["ranks"])) == (0, "healthy", 3), job["reason"]
    (tmp_path / "stop").touch()
    assert [each.wait(100) for each in launchers] == [0, 0, 0], (tmp_path / "log").read_text()


# Slurm ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with slurm_cluster(2) as running:
        yield running


BY_SLURM = """
import os
os.environ.update(RANK=os.environ["SLURM_PROCID"], WORLD_SIZE=os.environ["SLURM_NTASKS"])
"""


@pytest.mark.parametrize(
    ("before", "variables"), [("", "RANK=$SLURM_PROCID WORLD_SIZE=2 LOCAL_RANK=0"), (BY_SLURM, "")], ids=["set", "own"]
)
def test_the_rank_of_a_slurm_job_is_named_and_other_jobs_are_not_looked_at(
    cluster: Cluster, tmp_path: Path, before: str, variables: str
) -> None:
    (tmp_path / "train.py").write_text(before + BEGIN + HANGS)
    script = tmp_path / "job.sbatch"
    script.write_text(
        "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n"
        "export MASTER_ADDR=127.0.0.1 OMP_NUM_THREADS=1 MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))\n"
        f"srun bash -c '{variables} exec {sys.executable} {tmp_path}/train.py'\n"
    )
    job = cluster.submit(script, folder=tmp_path)
    wait_for(lambda: job.printed().count("READY") == 2, "the ranks are up", 200.0)
    done = subprocess.run(
        (*DIAGNOSE, "--slurm-job", str(job.number)),
        env=cluster.environment(),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert (len(found["jobs"]), found["unanswered"]) == (1, []), found
    (seen,) = found["jobs"]
    assert (done.returncode, seen["verdict"], named(seen), seen["world_size"]) == (3, "trouble", [1], 2), seen["reason"]
    assert job.state() == "RUNNING", "nothing is taken from the job"
    cluster.cancel_all()
    done = subprocess.run(
        (*DIAGNOSE, "--slurm-job", str(job.number)), env=cluster.environment(), capture_output=True, timeout=60
    )
    assert done.returncode == 2, "a job that has ended is said to be none"


# Kubernetes -----------------------------------------------------------------------------------------------------------

KUBECTL = """\
#!/bin/sh
[ "$1" = get ] && { printf 'pod/train-0\\npod/train-1\\n'; exit 0; }
[ "$2" = pod/train-1 ] && { echo 'error: unable to upgrade connection' >&2; exit 1; }
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""


def test_a_pod_is_asked_by_kubectl_and_one_that_cannot_be_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "kubectl").write_text(KUBECTL)
    (tmp_path / "kubectl").chmod(0o755)
    done = subprocess.run(
        (*DIAGNOSE, "--kubernetes", "app=train", "--remote-command", " ".join(DIAGNOSE[:-1]), "--job", "none"),
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    found = json.loads(done.stdout)
    assert (done.returncode, [each["node"] for each in found["unanswered"]]) == (4, ["train-1"]), done.stderr
