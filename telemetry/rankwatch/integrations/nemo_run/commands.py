"""Builds the command lines of the NeMo-Run plugins. Does not import NeMo-Run, so that it can be tested without it.

NeMo-Run turns a task and an executor into a command: locally an argument list, under Slurm a line ``srun ... COMMAND``
in a script from its own template. The plugins prefix the task's command with ``rankwatch run``, one launcher per node,
and under Slurm add :func:`batch_lines` to the script's setup lines:

=====================================  =================================================================================
line of the script                     effect
=====================================  =================================================================================
``srun ... rankwatch run ...``         the script's process becomes ``rankwatch slurm batch``, which runs that line,
                                       receives the signal before the time limit, and requeues the job if needed
any other ``srun``                     is run unchanged
``srun ... rankwatch run ...``, but    is run unchanged; NeMo-Run's template requeues failures; a warning states that
no ``rankwatch`` on the batch node     a job that saved upon a signal is not resumed
=====================================  =================================================================================
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from rankwatch.contract.schema import timeout

HEAD_NODE: Final = "$$${head_node_ip_var}"
"""Placeholder that NeMo-Run replaces by the shell variable of the first node's address, including its dollar sign."""
TERM_FRACTION: Final = 0.5
TERM_MARGIN: Final = 10.0
"""Seconds between the end of the ranks' grace period and the time limit, at most half of the time before the limit."""


def whole_number(name: str, value: object, least: int = 0) -> int:
    """Return ``value`` if it is a whole number.

    Raises:
        ValueError: it is not, or less than ``least``.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
    return value


def seconds(name: str, value: float | None) -> str:
    """Format seconds for a command line; None, no limit, is "none".

    Raises:
        ValueError: it is not a valid timeout.
    """
    return "none" if value is None else str(timeout(name, value)).removesuffix(".0")


def grace(preempt_time: int) -> str:
    """Return the ranks' seconds to reach the agreed step and save, within ``preempt_time`` after the signal."""
    return seconds("preempt_time", max(preempt_time - TERM_MARGIN, preempt_time * TERM_FRACTION))


def signal_option(preempt_time: int, *, batch: bool) -> str:
    """Return Slurm's ``--signal``: to the batch script only if that forwards it, else to all processes of all steps."""
    return f"{'B:' if batch else ''}TERM@{preempt_time}"


def task_arguments(command: Sequence[str]) -> list[str]:
    """Return a task's command as the last arguments of ``rankwatch run``, which starts Python by default."""
    words = list(command)
    if PurePosixPath(words[0]).name in ("python", "python3"):
        return words[1:]
    return ["--no-python", *words]


def run_arguments(
    program: Sequence[str],
    nodes: int,
    ranks_per_node: int,
    rendezvous: Sequence[str],
    options: Mapping[str, str | bool],
    command: Sequence[str],
    *,
    shell: bool,
) -> list[str]:
    """Return the command line of one node.

    Args:
        program: command of ``rankwatch`` on the node.
        ranks_per_node: processes per launcher.
        rendezvous: rendezvous flags; never quoted, since they contain shell variables.
        options: further flags by name; True for a switch.
        shell: whether a shell parses the line, so that arguments must be quoted.
    """
    quote = shlex.quote if shell else str
    flags: list[str] = []
    for name, value in options.items():
        flags += [name] if value is True else [name, str(value)]
    size = ["--nnodes", str(nodes), "--nproc-per-node", str(ranks_per_node)]
    before, after = [*program, "run", *size], [*flags, *task_arguments(command)]
    return [*map(quote, before), *rendezvous, *map(quote, after)]


def batch_lines(program: Sequence[str], retries: int, folder: str, finished_flag: str) -> str:
    """Return lines of a Slurm script by which ``rankwatch slurm batch`` runs the launchers and requeues the job.

    Args:
        program: command of ``rankwatch`` on the node of the batch script.
        retries: further launches after failures.
        folder: folder of the launch counter, as the batch node sees it.
        finished_flag: file that marks training as complete, as the batch node sees it.
    """
    run = shlex.join([*program, "run"])
    batch = shlex.join([*program, "slurm", "batch", "--job-retries", str(retries), "--folder", folder])
    missing = (
        f"rankwatch: {program[0]} is not on the node of the batch script: a job that fails is requeued {retries} times,"
        " but one that saved upon a signal is not resumed; install rankwatch where the script runs"
    )
    return f"""\
# Rankwatch: this script's process is replaced by the one that runs the launchers and requeues the job.
export FAULT_TOL_FINISHED_FLAG_FILE={shlex.quote(finished_flag)}
srun() {{
  if [[ " $* " != *{shlex.quote(f" {run} ")}* ]]; then command srun "$@"; return; fi
  if command -v {shlex.quote(program[0])} > /dev/null; then exec {batch} -- srun "$@"; fi
  echo {shlex.quote(missing)} >&2
  # Slurm signals this shell only, which forwards it to the steps; bash runs traps only during wait.
  local asked= status again
  trap 'asked=yes; scancel --signal=TERM "$SLURM_JOB_ID"' TERM
  command srun "$@" &
  wait $!; status=$?
  # The signal has ended that wait, but possibly not srun.
  if [ "$asked" ] && [ $status -gt 128 ]; then wait $!; again=$?; [ $again -eq 127 ] || status=$again; fi
  return $status
}}
"""
