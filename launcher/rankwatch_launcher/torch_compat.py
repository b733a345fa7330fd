"""Every private name of torch that the launcher uses, checked before anything is started.

The launcher subclasses torchelastic's agent. Public names of torch are used anywhere in this package; a name with a
leading underscore only if it is listed in :data:`PRIVATE_METHODS` or :data:`PRIVATE_ATTRIBUTES`. With an untested
version of torch, or one that lacks such a name, :func:`complaint` returns why and the launcher runs plain torchrun.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

# Public names of torch.distributed that its type stubs do not re-export.
from torch.distributed import DistError as DistError
from torch.distributed import PrefixStore as PrefixStore  # type: ignore[attr-defined]
from torch.distributed import Store as Store  # type: ignore[attr-defined]
from torch.distributed import TCPStore as TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import api as multiprocessing
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

SUPPORTED: Final = ("2.13",)
"""Minor versions of torch that the tests were run with."""

PRIVATE_METHODS: Final = {
    "_invoke_run": "replaced: the loop of one launcher",
    "_rendezvous": "replaced: the launchers' own membership decides which nodes take part",
    "_start_workers": "extended: the ranks' environment and slots",
    "_initialize_workers": "called: rendezvous, then start",
    "_shutdown": "called: closes the logs and reaps the ranks",
    "_check_uninterruptible_state_timeout": "called: torchrun's own check for ranks stuck in the kernel",
}
"""Methods of torch's agent and how the launcher uses each."""

PRIVATE_ATTRIBUTES: Final = (
    "_store",
    "_worker_group",
    "_remaining_restarts",
    "_pcontext",
    "_uninterruptible_state_timeout",
)
"""Attributes of torch's agent that the launcher reads or sets."""


def complaint(version: str | None = None, agent: type[Any] = LocalElasticAgent) -> str | None:
    """Why this version of torch cannot be used; None when it can."""
    version = version or str(torch.__version__)
    if ".".join(version.split(".")[:2]) not in SUPPORTED:
        return f"torch {version} is untested; supported: {', '.join(s + '.x' for s in SUPPORTED)}"
    missing = sorted(name for name in PRIVATE_METHODS if not callable(getattr(agent, name, None)))
    if missing:
        return f"torch {version} lacks {', '.join(f'{agent.__name__}.{name}' for name in missing)}"
    return None


def missing_attributes(agent: Any) -> list[str]:
    """Names of :data:`PRIVATE_ATTRIBUTES` that a constructed agent lacks."""
    return [name for name in PRIVATE_ATTRIBUTES if not hasattr(agent, name)]


def prewarm_complaint(handler: type[Any] = SubprocessHandler) -> str | None:
    """Why prewarmed workers cannot be used with this torch; None when they can."""
    if not callable(getattr(handler, "_popen", None)):
        return f"torch {torch.__version__} lacks {handler.__name__}._popen"
    if not callable(getattr(multiprocessing, "get_subprocess_handler", None)):
        return f"torch {torch.__version__} lacks {multiprocessing.__name__}.get_subprocess_handler"
    return None


SIGNALS: Final = "TORCHELASTIC_SIGNALS_TO_HANDLE"
UNUSED_SIGNAL: Final = "SIGURG"
"""Given to torch in place of the signals to handle while it starts ranks: an empty list is not accepted."""


@contextlib.contextmanager
def without_signal_handlers() -> Iterator[None]:
    """Context in which torch does not replace the launcher's signal handlers."""
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
def subprocess_handler_factory(make: Callable[..., SubprocessHandler]) -> Iterator[None]:
    """Context in which torch creates each rank's process handle by calling ``make``."""
    original = multiprocessing.get_subprocess_handler  # type: ignore[attr-defined]
    multiprocessing.get_subprocess_handler = make  # type: ignore[attr-defined]
    try:
        yield
    finally:
        multiprocessing.get_subprocess_handler = original  # type: ignore[attr-defined]
