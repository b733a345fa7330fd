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


def slots_file(local_rank: int) -> str:
    """Name of a rank's slot file within ``RANKWATCH_SLOTS_DIR``."""
    return f"{local_rank}.slots"


def stack_file(local_rank: int) -> str:
    """Name of the file into which faulthandler writes the rank's stacks."""
    return f"{local_rank}.stack"
