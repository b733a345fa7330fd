"""Finds the launchers of a Slurm job on this host, by /proc: they are what "save and stop" must be said to.

srun and scancel can signal only every process of a step: launcher, ranks, and data loaders, which die of it. A launcher
that is signalled alone tells its ranks by itself, and the other launchers too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankwatch_launcher.schedulers.slurm import JOB_ID


@dataclass(frozen=True, slots=True)
class Process:
    """A launcher's process."""

    pid: int
    parent: int
    step: str
    """Number of its step within the job; empty: it was started without srun."""


def is_launcher(arguments: Sequence[str]) -> bool:
    """Whether a command line is that of ``rankwatch run``, through whatever Python; not one that only mentions it."""
    words = list(arguments)
    if words and Path(words[0]).name.startswith("python"):
        del words[0]
        while words and words[0].startswith("-") and words[0] != "-m":
            del words[: 2 if words[0] in ("-X", "-W") else 1]
        if words[:1] == ["-m"]:
            return words[1:3] == ["rankwatch", "run"]
    return len(words) > 1 and Path(words[0]).name == "rankwatch" and words[1] == "run"


def launchers(job: str, proc: Path = Path("/proc")) -> list[Process]:
    """The launchers of a job on this host, one a step; of a supervisor and the launcher it started, the former."""
    found: dict[int, Process] = {}
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
            parent = int((folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue  # it ended meanwhile, or is somebody else's
        if environ.get(JOB_ID) == job:
            pid = int(folder.name)
            found[pid] = Process(pid, parent, environ.get("SLURM_STEP_ID", ""))
    one_a_step: dict[str, Process] = {}
    for process in sorted(found.values(), key=lambda process: process.pid):
        if process.parent not in found:
            one_a_step.setdefault(process.step, process)
    return list(one_a_step.values())
