"""Shell commands that a person copies. Names are those that launchers reported: quoted, and no options."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from string import ascii_letters, digits
from typing import Final

from rankwatch.contract.text import operands

LINES: Final = 200
"""Of a log that are shown."""
_OF_A_NODE: Final = frozenset(f"{ascii_letters}{digits}._-")
"""Characters of one node's name in Slurm, which has lists, ranges and a word for all nodes, too."""


def reach(host: str, *, slurm: bool = False) -> str:
    """Show whether a host is up."""
    name = shlex.quote(host)
    return f"ping -c 3 -- {name}; sinfo -n {name}" if slurm else f"ping -c 3 -- {name}"


def drain(facts: Mapping[str, str], reason: str) -> str:
    """Give a node no further jobs; empty: what its scheduler calls it is not known.

    Args:
        facts: of a launcher on it, about its scheduler.
        reason: what Slurm records.
    """
    if "slurm_node" in facts:
        node, why = facts["slurm_node"], shlex.quote(f"rankwatch: {reason}")
        one = _OF_A_NODE.issuperset(node) and node.upper() not in ("", "ALL")
        return f"scontrol update nodename={node} state=drain reason={why}" if one else ""
    return f"kubectl cordon {operands(facts['kubernetes_node'])}" if "kubernetes_node" in facts else ""


SCHEDULERS: Final = ("slurm", "kubernetes")
"""Those that :func:`still_runs` asks, in place of a host."""


def still_runs(facts: Mapping[str, str], host: str, launcher_pid: int) -> str:
    """Show whether a job still runs, and where its scheduler keeps that, how it ended.

    Args:
        facts: of one of its launchers, about its scheduler.
    """
    match facts.get("scheduler"):
        case "slurm":
            if "slurm_job_id" not in facts:
                return "squeue --me"
            number = shlex.quote(facts["slurm_job_id"])
            return f"squeue -j {number}; sacct -j {number} -X -o State,ExitCode,End,NodeList"
        case "kubernetes":
            pod = operands(facts["kubernetes_pod"]) if "kubernetes_pod" in facts else ""
            return " ".join(filter(None, ("kubectl get pods", _namespace(facts), pod, "-o wide")))
    return f"ssh {operands(host)} ps -o pid,etime,args -p {launcher_pid}"


def reaches_monitor(facts: Mapping[str, str]) -> str:
    """Show whether the monitor answers, on the host of a launcher; empty: its address there is not known."""
    return f"curl -sS -m 9 {operands(facts['monitor'] + '/readyz')}" if "monitor" in facts else ""


def launched(facts: Mapping[str, str]) -> str:
    """Show how a job was submitted to its scheduler; empty: the scheduler does not keep that."""
    if "slurm_job_id" in facts:
        return f"sacct -j {shlex.quote(facts['slurm_job_id'])} -X -n -P -o WorkDir,SubmitLine"
    return ""


def log(facts: Mapping[str, str]) -> str:
    """Show the log of a job that has ended, or where it is; empty: the scheduler is not known."""
    match facts.get("scheduler"):
        case "slurm" if "slurm_job_id" in facts:
            return f"scontrol show job {shlex.quote(facts['slurm_job_id'])} | grep -E 'StdOut|StdErr'"
        case "kubernetes" if "kubernetes_pod" in facts:
            pod = operands(facts["kubernetes_pod"])
            return " ".join(filter(None, ("kubectl logs", _namespace(facts), pod, f"--tail {LINES}")))
    return ""


def tail(facts: Mapping[str, str], local_rank: int = -1, run: str = "") -> str:
    """Show the end of what the ranks of a launcher print in their newest attempt, on its host; empty: in no file.

    Args:
        local_rank: of one rank, where each has a file of its own; -1: of all.
        run: torch's folder for the job; empty: not known, the newest of any job that logs to the same place.
    """
    if "rank_logs" in facts:  # torch's folders: run, attempt, local rank
        one = "*" if local_rank < 0 else str(local_rank)
        runs = operands(run) if run else f"{operands(facts['rank_logs'])}/*"
        return f'tail -n {LINES} "$(ls -td {runs}/attempt_*/ | head -1)"{one}/std*.log'
    return tail_of(facts["log"]) if "log" in facts else ""


def tail_kept(folder: str, attempt: int, rank: int = -1) -> str:
    """Show the end of what a rank printed in an attempt, on its host, where its launcher keeps it; -1: of all there."""
    one = "*" if rank < 0 else f"{rank}.*log"
    return f"tail -n {LINES} {operands(folder)}/attempt_{attempt}/rank_{one}"


def tail_of(path: str) -> str:
    """Show the end of a file, on its host."""
    return f"tail -n {LINES} {operands(path)}"


def where_logged(pid: int) -> str:
    """Show the file, terminal or pipe that a process writes its errors to, on its host."""
    return f"readlink /proc/{pid}/fd/2"


def gpu(selector: str = "") -> str:
    """Show errors, clocks, throttling and temperature of a GPU, on its host.

    ``selector``: as ``nvidia-smi -i`` takes it; empty: all.
    """
    one = f" -i {shlex.quote(selector)}" if selector else ""
    return f"nvidia-smi -q{one} -d ECC,ROW_REMAPPER,CLOCK,PERFORMANCE,TEMPERATURE"


def xid() -> str:
    """Show what the driver reported of the GPUs, on their host."""
    return "dmesg -T | grep -i xid"


def gpu_memory(selector: str = "") -> str:
    """Show the processes that hold memory of a GPU, on its host; ``selector`` as in :func:`gpu`."""
    one = f" -i {shlex.quote(selector)}" if selector else ""
    return f"nvidia-smi{one} --query-compute-apps=pid,process_name,used_memory --format=csv"


def host_memory() -> str:
    """Show whether the kernel ended processes for memory, on their host."""
    return "dmesg -T | grep -iE 'out of memory|oom-kill'; free -h"


def links() -> str:
    """Show the state and the errors of the network interfaces of a host, there."""
    return "ip -s link; ibstat"


def storage() -> tuple[str, str]:
    """Show what a host's file systems and disks do, there: a file system that does not answer blocks the first one."""
    return "timeout 9 df -h", "iostat -xz 1 3"


def stack(pid: int) -> str:
    """Show where a process is, on its host, with the workers of its data loader."""
    return f"py-spy dump --subprocesses --pid {pid}"


def stack_of_stuck(pid: int) -> str:
    """Show where a process is that is stopped or stuck in the kernel, which answers no debugger, on its host."""
    return f"sudo cat /proc/{pid}/stack; py-spy dump --nonblocking --pid {pid}"


def processes(pids: Iterable[int], host: str = "") -> str:
    """Show whether processes run, sleep or are stuck in the kernel.

    ``host``: where they run, to be reached from any machine; empty: for that host itself.
    """
    remote = f"ssh {operands(host)} " if host else ""
    return f"{remote}ps -o pid,stat,etime,wchan:24,args -p {','.join(map(str, pids))}"


def _namespace(facts: Mapping[str, str]) -> str:
    return f"-n {shlex.quote(facts['kubernetes_namespace'])}" if "kubernetes_namespace" in facts else ""
