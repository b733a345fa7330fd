"""Every private name of torch that the launcher uses, in one place, checked before anything is started.

Rankwatch is a guest in torchelastic: it subclasses the agent and wraps the rendezvous. What is public there may be
used anywhere in this package; a name with a leading underscore only if it stands in :data:`PRIVATE_NAMES`. When torch
is of a version that was not tried, or a name is gone, :func:`complaint` says so and the launcher runs plain torchrun.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

# Public names of torch.distributed, which torch imports without saying so in a way that type checkers read.
from torch.distributed import DistError as DistError
from torch.distributed import PrefixStore as PrefixStore  # type: ignore[attr-defined]
from torch.distributed import Store as Store  # type: ignore[attr-defined]
from torch.distributed import TCPStore as TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import api as multiprocessing
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

SUPPORTED: Final = ("2.13",)
"""Minor versions of torch with which the launcher's tests were run."""

PRIVATE_NAMES: Final = {
    "_invoke_run": "replaced: the loop of one launcher",
    "_rendezvous": "replaced: who takes part is decided by the launchers' own membership",
    "_start_workers": "extended: the ranks' environment and slots",
    "_initialize_workers": "called: rendezvous, then start",
    "_shutdown": "called: closes the logs and reaps the ranks",
    "_check_uninterruptible_state_timeout": "called: torchrun's own check for ranks stuck in the kernel",
}
"""Methods of torch's agent, and what the launcher does with each."""

PRIVATE_ATTRIBUTES: Final = (
    "_store",
    "_worker_group",
    "_remaining_restarts",
    "_pcontext",
    "_uninterruptible_state_timeout",
)
"""Attributes that torch's agent sets on itself, read or set by ours."""


def complaint(version: str | None = None, agent: type[Any] = LocalElasticAgent) -> str | None:
    """Say in words why this torch cannot be used, or return None when it can."""
    version = version or str(torch.__version__)
    if ".".join(version.split(".")[:2]) not in SUPPORTED:
        return f"torch {version} has not been tried; supported is {', '.join(s + '.x' for s in SUPPORTED)}"
    missing = sorted(name for name in PRIVATE_NAMES if not callable(getattr(agent, name, None)))
    if missing:
        return f"torch {version} lacks {', '.join(f'{agent.__name__}.{name}' for name in missing)}"
    return None


def missing_attributes(agent: Any) -> list[str]:
    """Names of :data:`PRIVATE_ATTRIBUTES` that an agent does not have once it is built."""
    return [name for name in PRIVATE_ATTRIBUTES if not hasattr(agent, name)]


def standby_complaint(handler: type[Any] = SubprocessHandler) -> str | None:
    """Say in words why ranks cannot be taken from a standby with this torch, or return None when they can."""
    if not callable(getattr(handler, "_popen", None)):
        return f"torch {torch.__version__} lacks {handler.__name__}._popen"
    if not callable(getattr(multiprocessing, "get_subprocess_handler", None)):
        return f"torch {torch.__version__} lacks {multiprocessing.__name__}.get_subprocess_handler"
    return None


SIGNALS: Final = "TORCHELASTIC_SIGNALS_TO_HANDLE"
UNUSED_SIGNAL: Final = "SIGURG"
"""What torch is told to handle when it starts the ranks: its handlers would raise in the middle of that, and it cannot
be told to handle none."""


@contextlib.contextmanager
def without_signal_handlers() -> Iterator[None]:
    """While this holds, torch puts no handler of its own in place of the launcher's."""
    names, before = os.environ.get(SIGNALS), signal.getsignal(signal.Signals[UNUSED_SIGNAL])
    os.environ[SIGNALS] = UNUSED_SIGNAL
    try:
        yield
    finally:
        signal.signal(signal.Signals[UNUSED_SIGNAL], before)
        os.environ.pop(SIGNALS)
        if names is not None:
            os.environ[SIGNALS] = names


@contextlib.contextmanager
def subprocesses_made_by(make: Callable[..., SubprocessHandler]) -> Iterator[None]:
    """While this holds, torch makes its handle on each rank's process by calling ``make`` with what it was to start."""
    torchs_own = multiprocessing.get_subprocess_handler  # type: ignore[attr-defined]
    multiprocessing.get_subprocess_handler = make  # type: ignore[attr-defined]
    try:
        yield
    finally:
        multiprocessing.get_subprocess_handler = torchs_own  # type: ignore[attr-defined]
