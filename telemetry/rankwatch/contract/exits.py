"""How an exit of a rank is described, and which exceptions only follow from another rank's end.

Launchers and the monitor share these words, so that console, status, incident and webhook show one sentence.
"""

from __future__ import annotations

import re
import signal as signals
from typing import Final

LEFT_EARLY: Final = " while other ranks still needed it"
"""Follows the exit phrase of a rank that exited with code 0, after which the others lost their connection to it."""

_CONSEQUENCE: Final = re.compile(
    r"connection (was )?(closed|reset|aborted|refused)( by peer)?|broken pipe|remote process exited|closed by remote"
    r"|peer closed|pair closure|failed to recv|socket timeout|client socket has timed out|watchdog caught"
    r"|unhandled system error|ncclRemoteError|ncclSystemError|monitoredbarrier|timed out (waiting|after)"
    r"|DistNetworkError|DistStoreError|DistBackendError|collective operation timeout",
    re.IGNORECASE,
)
"""Messages of gloo, NCCL, MPI and torch's store when a peer has ended; they may also mean a network that is down."""
_OF_PEERS: Final = frozenset(
    {
        "RuntimeError", "Exception", "DistError", "DistBackendError", "DistNetworkError", "DistStoreError",
        "AcceleratorError", "NcclError", "HorovodInternalError",
    }
)  # fmt: skip
"""The exceptions with such messages. Others with the same words are about a service: the ConnectionError of requests,
Python's ConnectionResetError, the timeouts of HTTP clients.
"""

_ALWAYS_THE_SAME: Final = re.compile(r"\b(?:RuntimeError|AcceleratorError): (?=CUDA error: )")
"""The class of every error of CUDA."""


def is_consequence(message: str) -> bool:
    """Whether the first line of an exception is about the connection to other ranks: the cause is likely another's.

    Args:
        message: the exception's class and text, or what a process said without an exception.
    """
    line = message.partition("\n")[0]
    kind, raised, _ = line.partition(": ")
    if raised and kind.isidentifier() and kind not in _OF_PEERS:
        return False
    return bool(_CONSEQUENCE.search(line))


def signal_name(number: int) -> str:
    """The name of a signal; ``signal N`` for an unnamed real-time signal."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exit_phrase(code: int, message: str = "", signal: str = "") -> str:
    """``exited with code 1: ValueError: no data`` or ``was killed by SIGKILL``.

    A rank that raises can still die by SIGABRT as its interpreter ends: NCCL's watchdog aborts a process whose CUDA
    context is broken. Its exception is the cause then.

    Args:
        code: the exit code, or minus the signal that killed the process.
        message: the first line of its exception, or its own explanation.
    """
    if code < 0:
        after = f" after {message}" if message and code == -signals.SIGABRT else ""
        return f"was killed by {signal or f'signal {-code}'}{after}"
    return f"exited with code {code}" + (f": {message}" if message else "")


def lost_peer(victims: int) -> str:
    """How many ranks ended since another one had."""
    return "1 rank lost its peer" if victims == 1 else f"{victims} ranks lost their peer"


def brief_error(message: str) -> str:
    """The message of an exception without a class that says nothing; the kind of the error stays."""
    return _ALWAYS_THE_SAME.sub("", message, count=1)
