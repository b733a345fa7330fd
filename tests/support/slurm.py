"""A real Slurm of several nodes on this host: munged, slurmctld and one slurmd a node, in a folder of its own.

How this works: every node is a slurmd with its own name and port on loopback. Nothing of the machine's own Slurm, if
there is one, is read or touched: key, sockets, spool and configuration lie in a temporary folder, and ``SLURM_CONF``
leads the commands there. All that is started carries a mark in its environment, so that the end is certain: jobs are
cancelled, daemons ended, and whatever still carries the mark is killed.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import pytest

from support.processes import MARK, end_marked, marked
from support.waiting import wait_for

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel")
PATIENCE = 300.0
"""Seconds that anything may take, on a busy machine."""
FOREIGN = ("RANKWATCH_", "OTEL_", "TORCHELASTIC_", "PET_", "SLURM_", "SBATCH_", "RANK", "WORLD_SIZE", "MASTER_", "XDG_")
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL")

CONFIGURATION = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
FirstJobId={first_job}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# A requeued job waits until its old credential has expired: 121 s by default.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/linear
SwitchType=switch/none
KillWait=10
ReturnToService=2
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Job:
    """One submitted job."""

    def __init__(self, cluster: Cluster, number: int, log: Path) -> None:
        self.cluster, self.number, self.log = cluster, number, log

    def printed(self) -> str:
        """What the batch script and its steps wrote, over all of its runs."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def facts(self) -> dict[str, str]:
        """What ``scontrol show job`` prints."""
        shown = self.cluster.command("scontrol", "--oneliner", "show", "job", str(self.number))
        return dict(re.findall(r"(\S+?)=(\S*)", shown))

    def state(self) -> str:
        """Slurm's word: PENDING, RUNNING, COMPLETED ..."""
        return self.facts()["JobState"]

    def until_printed(self, words: str, seconds: float = PATIENCE) -> str:
        """Wait for words in the job's output; fails early, with the output, when the job ends without them."""

        def look() -> str:
            over = self.state() in ENDED
            printed = self.printed()
            assert words in printed or not over, f"job {self.number} ended without {words!r}:\n{printed[-6000:]}"
            return printed if words in printed else ""

        try:
            return wait_for(look, f"job {self.number} says {words!r}", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.printed()[-6000:]}\n{self.facts()}") from None

    def ended(self, seconds: float = PATIENCE) -> dict[str, str]:
        """Wait for the job's end and return its facts."""

        def look() -> dict[str, str]:
            facts = self.facts()
            return facts if facts["JobState"] in ENDED else {}

        try:
            return wait_for(look, f"job {self.number} ends", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.printed()[-6000:]}\n{self.facts()}") from None


class Cluster:
    """A running Slurm; see :func:`slurm_cluster`."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder, self.nodes = folder, tuple(f"n{i}" for i in range(nodes))
        self.mark = uuid4().hex
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._ports = _free_ports(nodes + 1)

    def environment(self, **more: str) -> dict[str, str]:
        """The environment for Slurm's commands and, through sbatch, for jobs."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        path = f"{inherited.get('PATH', '')}:/usr/sbin:/sbin"
        return inherited | {"PATH": path, "SLURM_CONF": str(self.folder / "slurm.conf"), MARK: self.mark} | more

    def start(self) -> None:
        """Start all daemons and wait until every node is idle."""
        controller, *ports = self._ports
        lines = [
            f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port} CPUs=2 State=UNKNOWN"
            for name, port in zip(self.nodes, ports, strict=True)
        ]
        (self.folder / "state").mkdir()
        (self.folder / "slurm.conf").write_text(
            CONFIGURATION.format(
                folder=self.folder,
                controller=controller,
                first_job=controller * 10,  # so that what is made from a job's number is not shared with other tests
                user=getpass.getuser(),
                nodes="\n".join(lines),
            )
        )
        self._start_munge()
        self._daemon("slurmctld", "-D", "-c")
        for name in self.nodes:
            self._daemon("slurmd", "-D", "-N", name)
        wait_for(self._all_idle, f"{len(self.nodes)} nodes are idle", 60.0)

    def command(self, *words: str, **variables: str) -> str:
        """Run one of Slurm's commands; return what it printed."""
        done = subprocess.run(
            words, env=self.environment(**variables), capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
        return done.stdout

    def submit(self, script: Path, *arguments: str, folder: Path, options: Sequence[str] = (), **variables: str) -> Job:
        """``sbatch`` a script with arguments; it runs in ``folder``, where its output goes to ``slurm-JOB.out``."""
        own = ("--open-mode=append", f"--chdir={folder}", f"--output={folder}/slurm-%j.out")
        words = ["sbatch", "--parsable", *own, *options, str(script), *arguments]
        number = int(self.command(*words, **variables).strip())
        return Job(self, number, folder / f"slurm-{number}.out")

    def job(self, number: int, folder: Path) -> Job:
        """A job that somebody else submitted."""
        return Job(self, number, folder / f"slurm-{number}.out")

    def cancel_all(self) -> None:
        """Cancel what is left and wait until all nodes are free again."""
        numbers = self.command("squeue", "--noheader", "--format=%A").split()
        for words in (["--signal=KILL", "--full"], []):
            if numbers:
                subprocess.run(
                    ["scancel", *words, *numbers], env=self.environment(), capture_output=True, timeout=60, check=False
                )
        wait_for(self._all_idle, "the nodes are free again", 60.0)

    def close(self) -> None:
        """End everything, also when it does not want to."""
        try:
            if len(self._daemons) == len(self.nodes) + 2:
                with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
                    self.cancel_all()
            for daemon in reversed(self._daemons):
                daemon.terminate()
            for daemon in self._daemons:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    daemon.wait(10)
        finally:
            for daemon in self._daemons:
                daemon.kill()
                daemon.wait()
            end_marked(self.mark)
            assert not marked(self.mark)

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        places = {"key-file": "key", "socket": "socket", "log-file": "log", "pid-file": "pid", "seed-file": "seed"}
        options = [f"--{option}={self.folder}/munge.{ending}" for option, ending in places.items()]
        self._daemon("munged", "--foreground", "--force", "--num-threads=2", *options)
        wait_for((self.folder / "munge.socket").exists, "munged has its socket", 60.0)

    def _daemon(self, *words: str) -> None:
        log = self.folder / f"{words[0]}-{len(self._daemons)}.out"
        with log.open("wb") as output:
            self._daemons.append(
                subprocess.Popen(
                    words,
                    env=self.environment(),
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _all_idle(self) -> bool:
        for daemon in self._daemons:
            if daemon.poll() is not None:
                logs = "\n".join(log.read_text(errors="replace")[-2000:] for log in sorted(self.folder.glob("*.out")))
                raise RuntimeError(f"{daemon.args!r} ended with {daemon.returncode}:\n{logs}")
        words = ["sinfo", "--noheader", "--Node", "--format=%T"]
        done = subprocess.run(words, env=self.environment(), capture_output=True, text=True, timeout=60, check=False)
        return done.returncode == 0 and done.stdout.split() == ["idle"] * len(self.nodes)


@contextlib.contextmanager
def slurm_cluster(nodes: int = 3) -> Iterator[Cluster]:
    """A running Slurm; the test is skipped where its programs are missing."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)} (Debian and Ubuntu: apt install slurm-wlm munge)")
    # Not pytest's own folder: a socket's path may have no more than 107 bytes.
    with tempfile.TemporaryDirectory(prefix="rankwatch-slurm-", ignore_cleanup_errors=True) as name:
        cluster = Cluster(Path(name), nodes)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.close()


def _free_ports(count: int) -> Sequence[int]:
    """Ports that nothing listens on, below the range from which the kernel hands out ports by itself."""
    found: list[int] = []
    candidate = 11_000 + int.from_bytes(os.urandom(2)) % 8_000
    while len(found) < count:
        candidate += 1
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", candidate))
            found.append(candidate)
    return found
