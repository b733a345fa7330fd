"""What Slurm says of a job, and the words to say to Slurm. Pure but for :func:`ask`; runs nothing by itself.

Facts about Slurm that shape this (seen with 22.05):

- ``#SBATCH --signal=B:TERM@60`` and ``scancel --batch`` signal the batch script's own process only. ``scancel``, the
  time limit, preemption and a requeue signal every process of every step with SIGCONT and SIGTERM, and SIGKILL follows
  ``KillWait`` (30 s) later.
- ``scontrol requeue`` ends the job's processes the same way, the one that asked included; the job starts again some
  two minutes later (until its old credential has expired) as the same job with ``SLURM_RESTART_COUNT`` one higher.
- ``ExcNodeList`` can be changed only while a job waits; a job that was just requeued counts as waiting at once.
- While its processes end, a job is COMPLETING, whatever made it end.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

JOB_ID: Final = "SLURM_JOB_ID"
NODE_NAME: Final = "SLURMD_NODENAME"
RESTARTS: Final = "SLURM_RESTART_COUNT"

ANSWER_SECONDS: Final = 60.0
"""A busy controller may take long; one that takes longer is as good as away."""

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
    """A command of Slurm failed; says which and in which words."""


# What the environment of a job or step tells --------------------------------------------------------------------------


def facts(env: Mapping[str, str]) -> dict[str, str]:
    """Facts of the place for the job's record; empty outside Slurm."""
    if not env.get(JOB_ID):
        return {}
    return {"scheduler": "slurm"} | {name: env[variable] for name, variable in _FACTS.items() if env.get(variable)}


def node_name(env: Mapping[str, str]) -> str | None:
    """The node's name as Slurm knows it, which is what can be excluded; None outside Slurm."""
    return env.get(NODE_NAME) or None if env.get(JOB_ID) else None


def node_rank(env: Mapping[str, str]) -> int | None:
    """This node's number within the step or job, for ``--node-rank``; None outside Slurm."""
    return _whole(env.get("SLURM_NODEID")) if env.get(JOB_ID) else None


def restart_count(env: Mapping[str, str]) -> int:
    """How often Slurm has requeued the job; 0 in its first run, in which the variable is not set."""
    return _whole(env.get(RESTARTS)) or 0


def seconds_left(env: Mapping[str, str], now: float) -> float | None:
    """Seconds until the job's time limit, ``now`` being Unix time; None where Slurm (before 23.02) does not say."""
    end = _whole(env.get("SLURM_JOB_END_TIME"))
    return None if end is None else max(0.0, end - now)


# What the controller tells --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shown:
    """What ``scontrol show job`` tells, as far as it matters here."""

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
    """What the batch script was given; Slurm does not say which blanks were part of an argument."""

    @property
    def at_limit(self) -> bool:
        """Whether the time limit has been reached."""
        return self.time_limit is not None and self.run_time >= self.time_limit

    @classmethod
    def parse(cls, text: str) -> Shown:
        """Read the output of :func:`show`.

        Raises:
            SlurmError: this is not what Slurm prints.
        """
        said: dict[str, str] = {}
        for name, value in re.findall(r"(\S+?)=(\S*)", text):
            said.setdefault(name, value)
        if "JobState" not in said:
            raise SlurmError(f"scontrol show job said nothing about the job's state: {text[:200]!r}")
        excluded = said.get("ExcNodeList", "")
        command = re.search(r" Command=(.*?) WorkDir=", text)
        return cls(
            state=said["JobState"],
            restarts=_whole(said.get("Restarts")) or 0,
            requeue=said.get("Requeue", "1") != "0",
            run_time=duration(said.get("RunTime", "")) or 0.0,
            time_limit=duration(said.get("TimeLimit", "")),
            excluded="" if excluded == "(null)" else excluded,
            arguments=tuple(command[1].split()[1:]) if command else (),
        )


def duration(text: str) -> float | None:
    """Seconds of ``[days-][hours:]minutes:seconds``; None of what is no duration, ``UNLIMITED`` for example."""
    days, dash, rest = text.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdigit() for part in parts) or len(parts) > 3 or (dash and not days.isdigit()):
        return None
    seconds = 0
    for part in parts:
        seconds = 60 * seconds + int(part)
    return float(86_400 * int(days or 0) + seconds)


# What to say to Slurm -------------------------------------------------------------------------------------------------


def show(job: str) -> list[str]:
    """Command that tells of a job, for :meth:`Shown.parse`."""
    return ["scontrol", "--oneliner", "show", "job", job]


def requeue(job: str) -> list[str]:
    """Command that ends a job's processes and lets it start again."""
    return ["scontrol", "requeue", job]


def exclude(job: str, shown: Shown, nodes: Iterable[str]) -> list[str]:
    """Command that keeps a waiting job off some nodes, besides those it is kept off already."""
    return ["scontrol", "update", f"JobId={job}", f"ExcNodeList={_joined(shown.excluded, nodes)}"]


def batch_script(job: str, file: str) -> list[str]:
    """Command that writes the script a job was submitted with into a file."""
    return ["scontrol", "write", "batch_script", job, file]


def chain(job: str, shown: Shown, nodes: Iterable[str], script: Sequence[str]) -> list[str]:
    """Command that submits a script to run once a job has ended, however it ends."""
    off = _joined(shown.excluded, nodes)
    return ["sbatch", "--parsable", f"--dependency=afterany:{job}", *([f"--exclude={off}"] if off else []), *script]


def signal_steps(job: str, name: str) -> list[str]:
    """Command that signals every process of every step of a job, but not its batch script."""
    return ["scancel", f"--signal={name}", job]


def node_names(nodelist: str) -> list[str]:
    """Command that prints the nodes of a list like ``n[1-3],n7``, one a line."""
    return ["scontrol", "show", "hostnames", nodelist]


def outside(env: Mapping[str, str]) -> dict[str, str]:
    """An environment from which sbatch makes a job like the first: without what Slurm has said to this job."""
    kept = ("SLURM_CONF", "SLURM_CLUSTERS")
    return {name: value for name, value in env.items() if name in kept or not name.startswith("SLURM")}


def ask(command: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """Run one of these commands; return what it printed.

    Raises:
        SlurmError: it failed, is not installed, or took longer than a minute.
    """
    try:
        done = subprocess.run(
            command,
            env=dict(os.environ if env is None else env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmError(f"'{' '.join(command)}' failed: {error}") from None
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise SlurmError(
            f"'{' '.join(command)}' failed: {words[0] if words else f'it ended with exit code {done.returncode}'}"
        )
    return done.stdout


def _joined(before: str, nodes: Iterable[str]) -> str:
    return ",".join(dict.fromkeys([*filter(None, [before]), *nodes]))


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
