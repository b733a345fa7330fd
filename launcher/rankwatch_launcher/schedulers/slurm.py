"""Slurm: facts about a job from its environment, commands to the controller, launchers of a job on this host.

Behaviour of Slurm that this relies on (observed with 22.05):

- ``#SBATCH --signal=B:TERM@60`` and ``scancel --batch`` signal the batch script's own process only. ``scancel``, the
  time limit, preemption and a requeue signal every process of every step with SIGCONT and SIGTERM, and SIGKILL follows
  ``KillWait`` (30 s) later.
- ``scontrol requeue`` ends the job's processes the same way, the caller included; about two minutes later (when the old
  credential has expired) the same job starts again with ``SLURM_RESTART_COUNT`` incremented.
- ``ExcNodeList`` can be changed only while a job is pending; a requeued job is pending at once.
- While its processes end, a job is COMPLETING, whatever the cause.
- srun and scancel signal every process of a step, data loaders too, which die of it. A launcher that is signalled alone
  stops its ranks and the other launchers gracefully.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankwatch.contract import topology as labels
from rankwatch_launcher import procfs

JOB_ID: Final = "SLURM_JOB_ID"
NODE_NAME: Final = "SLURMD_NODENAME"
RESTARTS: Final = "SLURM_RESTART_COUNT"
RUNNING: Final = "RUNNING"
SIGNALING: Final = "SIGNALING"
"""Shown for a running job until all of its nodes have acknowledged the signal of ``#SBATCH --signal``."""

COMMAND_SECONDS: Final = 60.0
"""Timeout of a command: a busy controller may take long."""

_FACTS: Final = {
    "slurm_job_id": JOB_ID,
    "slurm_job_name": "SLURM_JOB_NAME",
    "slurm_cluster": "SLURM_CLUSTER_NAME",
    "slurm_partition": "SLURM_JOB_PARTITION",
    "slurm_nodelist": "SLURM_JOB_NODELIST",
    "slurm_node": NODE_NAME,
    "slurm_restart_count": RESTARTS,
    "slurm_job_end_time": "SLURM_JOB_END_TIME",
}


class SlurmError(Exception):
    """A Slurm command failed; the text has the command and its error."""


# The environment of a job or step -------------------------------------------------------------------------------------


def facts(env: Mapping[str, str]) -> dict[str, str]:
    """Facts for the job's record; empty outside Slurm."""
    if not env.get(JOB_ID):
        return {}
    return {"scheduler": "slurm"} | {name: env[variable] for name, variable in _FACTS.items() if env.get(variable)}


def node_name(env: Mapping[str, str]) -> str | None:
    """The node's name in Slurm, which is what can be excluded; None outside Slurm."""
    return env.get(NODE_NAME) or None if env.get(JOB_ID) else None


def node_rank(env: Mapping[str, str]) -> int | None:
    """This node's number within the step or job, for ``--node-rank``; None outside Slurm."""
    return _whole(env.get("SLURM_NODEID")) if env.get(JOB_ID) else None


def topology(env: Mapping[str, str]) -> list[str]:
    """Switches and blocks of this node as labels, the widest first; empty: Slurm knows none.

    ``SLURM_TOPOLOGY_ADDR`` is ``s0.s4.tux1`` where its pattern is ``switch.switch.node``.
    """
    names, kinds = (env.get(f"SLURM_TOPOLOGY_ADDR{end}", "").split(".") for end in ("", "_PATTERN"))
    if not env.get(JOB_ID) or len(names) != len(kinds):
        return []
    return list(labels.valid(f"{kind}={name}" for kind, name in zip(kinds, names, strict=True) if kind != "node"))


def restart_count(env: Mapping[str, str]) -> int:
    """How often Slurm has requeued the job; 0 in its first run, where the variable is unset."""
    return _whole(env.get(RESTARTS)) or 0


# The controller's record of a job -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobInfo:
    """The fields of ``scontrol show job`` that are used."""

    state: str
    restarts: int = 0
    requeue: bool = True
    """Whether the job may be requeued at all."""
    run_time: float = 0.0
    time_limit: float | None = None
    """Seconds; None: no limit."""
    excluded: str = ""
    """Nodes the job must not run on, as Slurm writes them: ``n[1-3],n7``."""
    arguments: tuple[str, ...] = ()
    """Arguments of the batch script; Slurm does not quote blanks inside an argument."""

    @property
    def at_limit(self) -> bool:
        """Whether the time limit has been reached."""
        return self.time_limit is not None and self.run_time >= self.time_limit

    @classmethod
    def parse(cls, text: str) -> JobInfo:
        """Parse the output of :func:`show`.

        Raises:
            SlurmError: unexpected output.
        """
        values: dict[str, str] = {}
        for name, value in re.findall(r"(\S+?)=(\S*)", text):
            values.setdefault(name, value)
        if "JobState" not in values:
            raise SlurmError(f"scontrol show job printed no job state: {text[:200]!r}")
        excluded = values.get("ExcNodeList", "")
        command = re.search(r" Command=(.*?) WorkDir=", text)
        state = values["JobState"]
        return cls(
            state=RUNNING if state == SIGNALING else state,
            restarts=_whole(values.get("Restarts")) or 0,
            requeue=values.get("Requeue", "1") != "0",
            run_time=duration(values.get("RunTime", "")) or 0.0,
            time_limit=duration(values.get("TimeLimit", "")),
            excluded="" if excluded == "(null)" else excluded,
            arguments=tuple(command[1].split()[1:]) if command else (),
        )


def duration(text: str) -> float | None:
    """Seconds of ``[days-][hours:]minutes:seconds``; None for anything else, such as ``UNLIMITED``."""
    days, dash, rest = text.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdigit() for part in parts) or len(parts) > 3 or (dash and not days.isdigit()):
        return None
    seconds = 0
    for part in parts:
        seconds = 60 * seconds + int(part)
    return float(86_400 * int(days or 0) + seconds)


# Commands -------------------------------------------------------------------------------------------------------------


def show(job: str) -> list[str]:
    """Command that prints a job's record, for :meth:`JobInfo.parse`."""
    return ["scontrol", "--oneliner", "show", "job", job]


def requeue(job: str) -> list[str]:
    """Command that ends a job's processes and requeues it."""
    return ["scontrol", "requeue", job]


def exclude(job: str, info: JobInfo, nodes: Iterable[str]) -> list[str]:
    """Command that adds nodes to those a pending job must not run on."""
    return ["scontrol", "update", f"JobId={job}", f"ExcNodeList={_joined(info.excluded, nodes)}"]


def batch_script(job: str, file: str) -> list[str]:
    """Command that writes the script a job was submitted with into a file."""
    return ["scontrol", "write", "batch_script", job, file]


def chain(job: str, info: JobInfo, nodes: Iterable[str], script: Sequence[str]) -> list[str]:
    """Command that submits a script to run after a job has ended, however it ends."""
    excluded = _joined(info.excluded, nodes)
    return [
        "sbatch",
        "--parsable",
        f"--dependency=afterany:{job}",
        *([f"--exclude={excluded}"] if excluded else []),
        *script,
    ]


def signal_steps(job: str, name: str) -> list[str]:
    """Command that signals every process of every step of a job, but not its batch script."""
    return ["scancel", f"--signal={name}", job]


def node_names(nodelist: str) -> list[str]:
    """Command that expands a node list like ``n[1-3],n7``, one node a line."""
    return ["scontrol", "show", "hostnames", nodelist]


def environment_outside(env: Mapping[str, str]) -> dict[str, str]:
    """An environment for sbatch without the variables that Slurm set for this job."""
    kept = ("SLURM_CONF", "SLURM_CLUSTERS")
    return {name: value for name, value in env.items() if name in kept or not name.startswith("SLURM")}


def run(command: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """Run a command; return its output.

    Raises:
        SlurmError: it failed, is not installed, or timed out.
    """
    try:
        done = subprocess.run(
            command,
            env=dict(os.environ if env is None else env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmError(f"'{' '.join(command)}' failed: {error}") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise SlurmError(f"'{' '.join(command)}' failed: {lines[0] if lines else f'exit code {done.returncode}'}")
    return done.stdout


def _joined(before: str, nodes: Iterable[str]) -> str:
    return ",".join(dict.fromkeys([*filter(None, [before]), *nodes]))


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


# Launchers on this host -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LauncherProcess:
    """A launcher of a job."""

    pid: int
    parent: int
    step: str
    """Number of its step within the job; empty: it was started without srun."""


def is_launcher(arguments: Sequence[str]) -> bool:
    """Whether a command line runs ``rankwatch run``, through whatever Python, rather than only mentioning it."""
    words = list(arguments)
    if words and Path(words[0]).name.startswith("python"):
        del words[0]
        while words and words[0].startswith("-") and words[0] != "-m":
            del words[: 2 if words[0] in ("-X", "-W") else 1]
        if words[:1] == ["-m"]:
            return words[1:3] == ["rankwatch", "run"]
    return len(words) > 1 and Path(words[0]).name == "rankwatch" and words[1] == "run"


def launchers(job: str, proc: Path = procfs.PROC, *, node: str = "") -> list[LauncherProcess]:
    """The launchers of a job on this host, one per step; of a supervisor and its launcher, the supervisor.

    ``node``: only those of this node, where a host stands for several.
    """
    found: dict[int, LauncherProcess] = {}
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if not is_launcher((folder / "cmdline").read_text(errors="replace").split("\0")):
                continue
            environ = dict(
                variable.partition("=")[::2]
                for variable in (folder / "environ").read_text(errors="replace").split("\0")
            )
            parent = int(procfs.stat_fields((folder / "stat").read_text(errors="replace"))[1])
        except (OSError, IndexError, ValueError):
            continue  # it has ended, or belongs to another user
        if environ.get(JOB_ID) == job and node in ("", environ.get(NODE_NAME)):
            pid = int(folder.name)
            found[pid] = LauncherProcess(pid, parent, environ.get("SLURM_STEP_ID", ""))
    by_step: dict[str, LauncherProcess] = {}
    for process in sorted(found.values(), key=lambda process: process.pid):
        if process.parent not in found:
            by_step.setdefault(process.step, process)
    return list(by_step.values())
