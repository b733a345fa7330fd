"""Every private name of torch that the launcher uses, checked before anything is started.

The launcher subclasses torchelastic's agent. Public names of torch are used anywhere in this package; a name with a
leading underscore only if it is listed here: :data:`PRIVATE_METHODS`, :data:`PRIVATE_ATTRIBUTES`, :data:`OPTIONAL`.

Versions are adapted by feature: a name that an older torch lacks is either essential (:func:`complaint` returns it, and
the launcher runs plain torchrun) or optional (:func:`missing_features` lists what is switched off). A version outside
:data:`TESTED` runs with a warning.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch

# Public names of torch.distributed that its type stubs do not re-export.
from torch.distributed import DistError as DistError
from torch.distributed import PrefixStore as PrefixStore  # type: ignore[attr-defined]
from torch.distributed import Store as Store  # type: ignore[attr-defined]
from torch.distributed import TCPStore as TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsSpecs
from torch.distributed.elastic.multiprocessing import api as multiprocessing
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

TESTED: Final = ("2.6", "2.8", "2.9", "2.11", "2.13", "2.14", "2.15")
"""Minor versions of torch that real runs were started with; docs/torch.md has what was run and when."""

PRIVATE_METHODS: Final = {
    "_invoke_run": "replaced: the loop of one launcher",
    "_rendezvous": "replaced: the launchers' own membership decides which nodes take part",
    "_start_workers": "extended: the ranks' environment and slots",
    "_initialize_workers": "called: rendezvous, then start",
    "_shutdown": "called: closes the logs and reaps the ranks",
}
"""Methods of torch's agent and how the launcher uses each."""

PRIVATE_ATTRIBUTES: Final = ("_store", "_worker_group", "_remaining_restarts", "_pcontext")
"""Attributes of torch's agent that the launcher reads or sets."""

STUCK_CHECK: Final = "_check_uninterruptible_state_timeout"
"""torchrun's own check for ranks stuck in the kernel, since 2.13."""

OPTIONAL: Final = {
    STUCK_CHECK: "called, where torch has it",
    "_uninterruptible_state_timeout": "read, where torch has it",
    "_popen": "extended: a rank starts from a prewarmed worker",
    "_stdout": "read: where the handle of a rank redirects to",
    "_stderr": "read: the same",
    "_redirects": "read: whether the output of ranks is redirected",
    "_tee": "read: the same",
    "_run_log_dir": "read and set: the folder of this launch's logs",
    "_make_log_dir": "called: makes that folder",
    "_terminate_process_handler": "replaced while ranks are started",
    "_parse_rendezvous_config": "called: reads --rdzv-conf; a torch without it runs plain",
}
"""Names elsewhere in torch; without one of them something is switched off, or torch's own behaviour remains."""

OLDER_DEFAULTS: Final[dict[str, Any]] = {
    "event_log_handler": "null",
    "signals_to_handle": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    "shutdown_timeout": 30,
}
"""Values of ``LaunchConfig`` fields that this launcher reads and an older torch lacks."""


def complaint(agent: type[Any] = LocalElasticAgent) -> str | None:
    """Why this torch cannot be used; None when it can."""
    missing = sorted(name for name in PRIVATE_METHODS if not callable(getattr(agent, name, None)))
    if missing:
        return f"torch {torch.__version__} lacks {', '.join(f'{agent.__name__}.{name}' for name in missing)}"
    return None


def untested(version: str | None = None) -> str | None:
    """A warning when no run was ever started with this version of torch; None when one was."""
    version = version or str(torch.__version__)
    if ".".join(version.split(".")[:2]) in TESTED:
        return None
    return f"torch {version} is untested; tested: {', '.join(minor + '.x' for minor in TESTED)}"


def missing_features(agent: type[Any] = LocalElasticAgent) -> list[str]:
    """What this torch cannot do, each in a few words."""
    missing = []
    if not callable(getattr(agent, STUCK_CHECK, None)):
        missing.append("no end of a job whose ranks are stuck in the kernel")
    if (reason := prewarm_complaint()) is not None:
        missing.append(f"no --standby ({reason})")
    return missing


def setting(config: Any, name: str) -> Any:
    """A field of torch's ``LaunchConfig``, or what torch did before it had that field.

    Raises:
        AttributeError: the field is neither there nor in :data:`OLDER_DEFAULTS`.
    """
    return getattr(config, name) if hasattr(config, name) else OLDER_DEFAULTS[name]


def accepted(function: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """Those of the keyword arguments that this torch's ``function`` has."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return arguments
    return {name: value for name, value in arguments.items() if name in parameters}


def fields(config: Any, *names: str) -> dict[str, Any]:
    """Those of the fields that this torch's ``LaunchConfig`` has."""
    return {name: getattr(config, name) for name in names if hasattr(config, name)}


def second_connection(store: Store) -> Store:
    """Another connection to the store, for another thread. ``Store.clone`` exists since 2.8."""
    if hasattr(store, "clone"):
        cloned: Store = store.clone()
        return cloned
    assert isinstance(store, TCPStore)
    return TCPStore(store.host, store.port, is_master=False, wait_for_workers=False, timeout=store.timeout)  # type: ignore[attr-defined]


def store_port(store: Store) -> int | None:
    """The port of a store that is a server's; None: it is another kind."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    port = getattr(store, "port", None)
    return int(port) if port else None


def store_host(store: Store) -> str:
    """Where the store's server is, as this process reached it; empty: it is of another kind."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return str(getattr(store, "host", ""))


KEPT_ATTEMPTS: Final = 10
"""Whose error files stay in the folder for temporary files."""


def redirected_into(specs: LogsSpecs) -> str:
    """The folder into which torch redirects the output of ranks; empty: it redirects none, or not known."""
    chosen = [getattr(specs, name, None) for name in ("_redirects", "_tee")]
    redirects = any(any(each.values()) if isinstance(each, dict) else each for each in chosen)
    return str(specs.root_log_dir) if redirects else ""


def run_folder(specs: LogsSpecs, run_id: str) -> str:
    """The folder below it for the logs of this launch, which torch makes with the first attempt, made now.

    Empty: torch redirects nothing, keeps no such folder, or it cannot be made.
    """
    root, made = redirected_into(specs), getattr(specs, "_run_log_dir", "")
    if root in ("", os.devnull) or made == "" or not hasattr(specs, "_make_log_dir"):
        return ""
    with contextlib.suppress(OSError):
        made = made or specs._make_log_dir(root, run_id)
        specs._run_log_dir = made  # type: ignore[attr-defined]
    return str(made or "")


def remove_old_errors(specs: LogsSpecs) -> None:
    """Remove the error files of all attempts but the newest, where torch keeps them in a folder that nobody asked for.

    A run of thousands of restarts would fill the folder for temporary files. What was asked for is the user's own.
    """
    root, run = Path(getattr(specs, "root_log_dir", "") or os.devnull), getattr(specs, "_run_log_dir", "")
    own = root.name.startswith("torchelastic_") and root.parent == Path(tempfile.gettempdir())
    if not own or not run or redirected_into(specs):
        return
    attempts = ((each, each.name.rpartition("_")[2]) for each in Path(run).glob("attempt_*"))
    numbered = sorted((int(number), each) for each, number in attempts if number.isdecimal())
    for _, each in numbered[:-KEPT_ATTEMPTS]:
        shutil.rmtree(each, ignore_errors=True)


def remove_empty_logs(specs: LogsSpecs) -> None:
    """Remove what torch made for logs in the folder for temporary files, as far as nothing was written there."""
    root = str(getattr(specs, "root_log_dir", "") or "")
    if not os.path.basename(root).startswith("torchelastic_"):
        return  # the user's own
    for folder, _, _ in os.walk(root, topdown=False):
        with contextlib.suppress(OSError):  # it holds something
            os.rmdir(folder)


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
TORCHS_HANDLER: Final = "_terminate_process_handler"
"""The function of torch's multiprocessing that it installs as handler."""
REPLACED_SIGNALS: Final = tuple(
    signal.Signals[name] for name in (UNUSED_SIGNAL, *OLDER_DEFAULTS["signals_to_handle"].split(","))
)
"""Signals whose handlers torch replaces while it starts ranks; before 2.10 it ignores the environment variable."""


@contextlib.contextmanager
def without_signal_handlers() -> Iterator[None]:
    """Context after which the launcher's signal handlers are in place, whatever torch did to them."""
    names, before = os.environ.get(SIGNALS), {each: signal.getsignal(each) for each in REPLACED_SIGNALS}
    os.environ[SIGNALS] = UNUSED_SIGNAL

    def pass_on(number: int, frame: FrameType | None) -> None:
        if callable(handler := before.get(signal.Signals(number))):
            handler(number, frame)

    replaced = getattr(multiprocessing, TORCHS_HANDLER, None)
    if replaced is not None:  # a signal that arrives before the handlers are back
        setattr(multiprocessing, TORCHS_HANDLER, pass_on)
    try:
        yield
    finally:
        if replaced is not None:
            setattr(multiprocessing, TORCHS_HANDLER, replaced)
        for each, handler in before.items():
            signal.signal(each, handler)
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
