"""Every internal of uvicorn that the monitor extends, checked when it starts.

:class:`~rankwatch_monitor.http.deadlines.BoundedProtocol` and the fast lanes subclass uvicorn's HTTP/1.1 protocol. It
is no public interface: another version may rename what they use, and would then fail at the first request.
"""

from __future__ import annotations

from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

TESTED: Final = "0.54"
"""The version of uvicorn that the tests are run with."""
METHODS: Final[dict[type[Any], tuple[str, ...]]] = {
    H11Protocol: (
        *("connection_made", "connection_lost", "data_received", "pause_writing", "resume_writing"),
        *(
            "handle_events",
            "on_response_complete",
            "send_400_response",
            "timeout_keep_alive_handler",
            "_unset_keepalive_if_required",
        ),
    ),
    FlowControl: ("pause_reading", "resume_reading"),
    uvicorn.Server: ("serve", "shutdown", "startup"),
}
"""Methods that are extended or called."""
ATTRIBUTES: Final[dict[type[Any], tuple[str, ...]]] = {
    H11Protocol: (
        *("app_state", "client", "conn", "connections", "cycle", "flow", "loop", "transport"),
        *("timeout_keep_alive", "timeout_keep_alive_task"),
    ),
    RequestResponseCycle: ("disconnected", "message_event", "response_complete", "response_started"),
    FlowControl: ("read_paused", "write_paused"),
    uvicorn.Server: ("should_exit", "started"),
}
"""Attributes that their constructors set."""


def complaint() -> str | None:
    """Why this version of uvicorn cannot be used; None when it can."""
    missing = [
        f"{kind.__name__}.{name}"
        for kind, names in METHODS.items()
        for name in names
        if not callable(getattr(kind, name, None))
    ]
    for kind, names in ATTRIBUTES.items():
        code = getattr(kind.__init__, "__code__", None)
        missing += [f"{kind.__name__}.{name}" for name in names if code is None or name not in code.co_names]
    if not missing:
        return None
    return (
        f"uvicorn {uvicorn.__version__} lacks {', '.join(missing)}, which the monitor extends; install a version that "
        f"fits: pip install 'uvicorn=={TESTED}.*'"
    )
