"""Environment variables that a launcher sets for its ranks; a person may set the same ones without our launcher."""

from __future__ import annotations

from typing import Final

MONITOR_URL: Final = "RANKWATCH_MONITOR"
"""Base URL of the monitor, for example http://127.0.0.1:9560; OTLP goes to its /v1/metrics and /v1/traces."""
TOKEN: Final = "RANKWATCH_TOKEN"
JOB_ID: Final = "RANKWATCH_JOB_ID"
JOB_NAME: Final = "RANKWATCH_JOB_NAME"
ATTEMPT: Final = "RANKWATCH_ATTEMPT"
SLOTS_DIR: Final = "RANKWATCH_SLOTS_DIR"
"""Folder of the attempt's slot files on this node; a rank uses ``<local rank>.slots`` in it."""
STACK_SIGNAL: Final = "RANKWATCH_STACK_SIGNAL"
"""Number of the signal on which init() lets faulthandler write ``<local rank>.stack`` into the slots folder."""

STOP_SIGNAL: Final = "RANKWATCH_RANK_STOP_SIGNAL"
"""Number of the signal that a rank takes for "save and stop". Set where a scheduler signals the ranks themselves."""
FINISHED_FLAG: Final = "FAULT_TOL_FINISHED_FLAG_FILE"
"""File whose existence says that training is complete: no launcher runs the job again. The name users of NVRx know."""


def slots_file(local_rank: int) -> str:
    """Name of a rank's slot file within ``RANKWATCH_SLOTS_DIR``."""
    return f"{local_rank}.slots"


def stack_file(local_rank: int) -> str:
    """Name of the file into which faulthandler writes the rank's stacks."""
    return f"{local_rank}.stack"


def request_file(local_rank: int, number: int) -> str:
    """Name of the file that holds the ``number``-th thing a rank says to its launcher, from 1.

    It is a :class:`~rankwatch.contract.messages.RankRequest`; the launcher removes it once it is read.
    """
    return f"{local_rank}.request.{number}"


LEARNED_FILE: Final = "learned.json"
"""Name of the file, in the slots folder, in which the launcher leaves what the monitor has learned (``ft_state``)."""
