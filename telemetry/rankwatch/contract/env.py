"""What a launcher and its ranks agree on outside of messages: environment variables, file names and exit codes.

The launcher sets the variables for its ranks; they may also be set by hand, without the launcher.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# Environment variables ------------------------------------------------------------------------------------------------
MONITOR_URL: Final = "RANKWATCH_MONITOR"
"""Base URL of the monitor, for example http://127.0.0.1:9560; OTLP goes to its /v1/metrics and /v1/traces."""
COLLECTOR_URL: Final = "RANKWATCH_COLLECTOR"
"""Base URL of an OpenTelemetry Collector, to which ranks send their telemetry instead of to the monitor."""
TOKEN: Final = "RANKWATCH_TOKEN"
MONITOR_SETTINGS: Final = "RANKWATCH_MONITOR_"
"""Prefix of the variables with a monitor's own settings, tokens and secrets among them: no rank gets one."""
RENDEZVOUS_SECRET: Final = "RANKWATCH_RENDEZVOUS_SECRET"
"""Secret of a job's launchers, by which they know each other's records in the rendezvous store; no rank gets it."""
INGEST_TOKEN: Final = "RANKWATCH_MONITOR_INGEST_TOKEN"
CA_FILE: Final = "RANKWATCH_CA_FILE"
"""File of the certificates that the monitor's must be signed by, instead of those that the system trusts."""
CLIENT_CERTIFICATE: Final = "RANKWATCH_CLIENT_CERT"
"""File of the certificate that is shown to the monitor, or to a proxy before it."""
CLIENT_KEY: Final = "RANKWATCH_CLIENT_KEY"
"""File of its private key; not needed if the certificate's file holds it."""
JOB_ID: Final = "RANKWATCH_JOB_ID"
JOB_NAME: Final = "RANKWATCH_JOB_NAME"
ATTEMPT: Final = "RANKWATCH_ATTEMPT"
SLOTS_DIR: Final = "RANKWATCH_SLOTS_DIR"
"""Folder of the attempt's slot files on this node; a rank uses ``<local rank>.slots`` in it."""
STACK_SIGNAL: Final = "RANKWATCH_STACK_SIGNAL"
"""Number of the signal on which init() makes faulthandler write ``<local rank>.stack`` into the slots folder."""
STOP_SIGNAL: Final = "RANKWATCH_RANK_STOP_SIGNAL"
"""Number of the signal that a rank handles as "save and stop". Set where a scheduler signals the ranks themselves."""
FINISHED_FLAG: Final = "FAULT_TOL_FINISHED_FLAG_FILE"
"""File whose existence marks the training as complete: the job is not run again. The name is that of NVRx."""

# Files in the slots folder --------------------------------------------------------------------------------------------
LEARNED_FILE: Final = "learned.json"
"""Timeouts learned by the monitor, written by the launcher (:mod:`rankwatch.contract.ft_state`)."""


def of_ranks(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment that a launcher gives its ranks, of its own."""
    return {
        name: value
        for name, value in variables.items()
        if not name.startswith(MONITOR_SETTINGS) and name != RENDEZVOUS_SECRET
    }


def slots_file(local_rank: int) -> str:
    """Name of a rank's slot file."""
    return f"{local_rank}.slots"


def stack_file(local_rank: int) -> str:
    """Name of the file into which faulthandler writes the rank's stacks."""
    return f"{local_rank}.stack"


def request_file(local_rank: int, number: int) -> str:
    """Name of the file with the ``number``-th request of a rank, from 1.

    It holds a :class:`~rankwatch.contract.messages.RankRequest`; the launcher removes it after reading.
    """
    return f"{local_rank}.request.{number}"


# Exit codes of ranks and launchers (16 and 17: Megatron's) -----------------------------------------------------------
EXIT_RESUME_ELSEWHERE: Final = 16
"""A rejected result was reproduced: resume the job on another node to tell a faulty device from a correct result
(``EXIT_CODE_RESUME_TO_DISAMBIGUATE``). Used by the rank, then by its launcher."""
EXIT_RESULT_REJECTED: Final = 17
"""A result is wrong and the cause is known (``EXIT_CODE_FAILED_ON_RESULT_VALIDATION``). Used by both, too."""
EXIT_DO_NOT_REQUEUE: Final = 93
"""Another launch would end the same way."""


def parse_bool(text: str) -> bool:
    """Read a boolean of an environment variable, a flag or a configuration file, in any case.

    Raises:
        ValueError: it is none of 1, true, yes, on, 0, false, no, off.
    """
    word = text.strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise ValueError(f"must be true or false, not {text!r}")
