"""Rankwatch on the rank: reports the progress of this rank to the monitor, at the cost of a few integer stores.

Two lines make a training script visible::

    rankwatch.init()
    for batch in data:
        with rankwatch.step():
            ...

Every call is a no-op before :func:`init` and after :func:`shutdown`, never blocks and never raises into training code.
Importing this package imports neither OpenTelemetry nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankwatch.launcher_requests import change_policy, exclude_node, learned_timeouts, stop_job, tell
from rankwatch.recording.scalars import log
from rankwatch.recording.sections import (
    heartbeat,
    mark_complete,
    preempted,
    progress,
    request_stop,
    section,
    should_stop,
    step,
)
from rankwatch.session import init, is_initialized, shutdown

if TYPE_CHECKING:
    from rankwatch.contract.enums import NoticeKind
    from rankwatch.recording.wrapping import Wrapped

__all__ = [
    "NoticeKind",
    "__version__",
    "change_policy",
    "exclude_node",
    "heartbeat",
    "init",
    "is_initialized",
    "learned_timeouts",
    "log",
    "mark_complete",
    "preempted",
    "progress",
    "request_stop",
    "section",
    "should_stop",
    "shutdown",
    "step",
    "stop_job",
    "tell",
    "wrap",
]

__version__: str


def wrap(target: Any, name: str, section_name: str | None = None) -> Wrapped | None:
    """Open a section around each call of ``target.name``: see :func:`rankwatch.recording.wrapping.wrap`."""
    from rankwatch.recording.wrapping import wrap as wrap_it  # imports inspect, which few ranks need

    return wrap_it(target, name, section_name)


def __getattr__(name: str) -> Any:
    # On demand, because few ranks need them: importlib.metadata alone would cost every rank 15 ms at import.
    if name in ("inprocess", "rerun"):
        from importlib import import_module

        return import_module(f"rankwatch.{name}")
    if name == "NoticeKind":
        from rankwatch.contract.enums import NoticeKind

        return NoticeKind
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            found = version("rankwatch")
        except PackageNotFoundError:
            found = "0+unknown"
        return globals().setdefault(name, found)  # from a file
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
