"""The command lines that the NeMo-Run plugins make. Needs no NeMo-Run, so that it can be tried without.

How this works
--------------
NeMo-Run makes of a task and an executor one command: on this machine an argument list, under Slurm a line
``srun ... COMMAND`` in a script that NeMo-Run writes from a template of its own. The plugins put ``rankwatch run`` in
front of the task's command, one launcher a node, and, under Slurm, :func:`batch_lines` among the script's setup lines:

=====================================  =================================================================================
the script says                        what happens
=====================================  =================================================================================
``srun ... rankwatch run ...``         the script's own process becomes ``rankwatch slurm batch``, which runs that very
                                       line, gets the signal before the time limit, and decides what follows
any other ``srun``                     is run as it stands
``srun ... rankwatch run ...``, but    it is run as it stands; a failure is requeued by what NeMo-Run's template ends
no ``rankwatch`` on the batch node     with, and that a job that saved on a signal is not resumed is said
=====================================  =================================================================================
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from rankwatch.contract.policy import timeout

HEAD_NODE: Final = "$$${head_node_ip_var}"
"""NeMo-Run replaces it by the name of the shell variable that holds the first node's address, with its dollar sign."""
TERM_FRACTION: Final = 0.5
TERM_MARGIN: Final = 10.0
"""Seconds that are left of the time before the limit when the ranks have had theirs, or half of that time if less."""


def whole(name: str, value: object, least: int = 0) -> int:
    """Return a count as it was given.

    Raises:
        ValueError: it is none; the text says what would be.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
    return value


def seconds(name: str, value: float | None) -> str:
    """Write seconds for a command line; None is "none", no limit.

    Raises:
        ValueError: it is no time; the text says what would be.
    """
    return "none" if value is None else str(timeout(name, value)).removesuffix(".0")


def grace(preempt_time: int) -> str:
    """Seconds that ranks get to reach the agreed step and save, of the time that is left when the signal comes."""
    return seconds("preempt_time", max(preempt_time - TERM_MARGIN, preempt_time * TERM_FRACTION))


def signal_option(preempt_time: int, *, batch: bool) -> str:
    """Slurm's ``--signal``: to the batch script alone where that passes it on, else to every process of all steps."""
    return f"{'B:' if batch else ''}TERM@{preempt_time}"


def task_words(command: Sequence[str]) -> list[str]:
    """A task's command as the end of a launcher's command line: Python is what a launcher starts by itself."""
    words = list(command)
    if PurePosixPath(words[0]).name in ("python", "python3"):
        return words[1:]
    return ["--no-python", *words]


def run_words(
    program: Sequence[str],
    nodes: int,
    ranks_per_node: int,
    rendezvous: Sequence[str],
    options: Mapping[str, str | bool],
    command: Sequence[str],
    *,
    shell: bool,
) -> list[str]:
    """The whole command line of one node.

    Args:
        program: how ``rankwatch`` is started there.
        nodes: of the job.
        ranks_per_node: processes that the launcher starts.
        rendezvous: flags that say where the launchers meet; those are never quoted, since a shell is to fill them in.
        options: further flags by name; True stands for a switch.
        command: what NeMo-Run would have started.
        shell: whether a shell reads the line, so that words have to be quoted for it.
    """
    quote = shlex.quote if shell else str
    flags: list[str] = []
    for name, value in options.items():
        flags += [name] if value is True else [name, str(value)]
    size = ["--nnodes", str(nodes), "--nproc-per-node", str(ranks_per_node)]
    before, after = [*program, "run", *size], [*flags, *task_words(command)]
    return [*map(quote, before), *rendezvous, *map(quote, after)]


def batch_lines(program: Sequence[str], retries: int, folder: str, finished_flag: str) -> str:
    """Lines for a Slurm script that have ``rankwatch slurm batch`` run the launchers and see to what follows.

    Args:
        program: how ``rankwatch`` is started on the node of the batch script.
        retries: launches after failures.
        folder: where launches are counted, as the batch node sees it.
        finished_flag: file that says that training is complete, as the batch node sees it.
    """
    run = shlex.join([*program, "run"])
    batch = shlex.join([*program, "slurm", "batch", "--job-retries", str(retries), "--folder", folder])
    missing = (
        f"rankwatch: {program[0]} is not on the node of the batch script: a job that fails is requeued {retries} times,"
        " but one that saved on a signal is not resumed; install rankwatch where the script runs"
    )
    return f"""\
# Rankwatch: this script's process becomes the one that runs the launchers and decides what follows them.
export FAULT_TOL_FINISHED_FLAG_FILE={shlex.quote(finished_flag)}
srun() {{
  if [[ " $* " != *{shlex.quote(f" {run} ")}* ]]; then command srun "$@"; return; fi
  if command -v {shlex.quote(program[0])} > /dev/null; then exec {batch} -- srun "$@"; fi
  echo {shlex.quote(missing)} >&2
  # Slurm signals this shell alone, which passes it on to the steps; a shell acts on a signal only while it waits.
  local asked= status again
  trap 'asked=yes; scancel --signal=TERM "$SLURM_JOB_ID"' TERM
  command srun "$@" &
  wait $!; status=$?
  # The signal has ended that wait, perhaps not srun.
  if [ "$asked" ] && [ $status -gt 128 ]; then wait $!; again=$?; [ $again -eq 127 ] || status=$again; fi
  return $status
}}
"""
