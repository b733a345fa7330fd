"""Serves torch's worker control plane on a socket, from which the launcher reads the progress of process groups.

A thread polls until the script has created its process group; then torch is imported, and its server is started on
``<local rank>.sock`` in the slots folder. Its threads are native and sleep until a request comes. They answer while the
main thread is stuck, and the flight recorder even while the GIL is held. Where the script started such a server itself,
the name in the slots folder is a link to it.

The server is never stopped. torch's destructor shuts the listening socket down, which a forked child shares with its
parent, and the parent's server then ends the whole process by ``std::terminate``: a data loader's worker that exits
through its interpreter would kill the training. A reference that is never released keeps the destructor from running.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

CHECK_INTERVAL: Final = 0.5
"""Between two polls for a process group; one is two dictionary lookups."""
SCRIPTS_OWN: Final = "TORCH_WORKER_SERVER_SOCKET"
"""torch's variable for the socket of a server that the script starts (``worker_main``)."""

ERROR_LEVEL: Final = 2
"""torch's ``TORCH_CPP_LOG_LEVEL=ERROR``."""

_log = logging.getLogger("rankwatch")
_started: tuple[int, Path] | None = None
"""The process that started the server, and its socket; a forked child inherits the variable, not the threads."""


def socket_file(local_rank: int) -> str:
    """Name of a rank's socket within the slots folder."""
    return f"{local_rank}.sock"


class ControlPlane:
    """The thread that waits for a process group, opens the control plane on ``path``, and ends.

    ``failed`` is called with a reason, once, when that cannot be done.
    """

    def __init__(self, path: Path, failed: Callable[[str], None]) -> None:
        self._path = path
        self._failed = failed
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rankwatch-control-plane", daemon=True)

    def start(self) -> None:
        """Start polling for a process group."""
        self._thread.start()

    def stop(self) -> None:
        """Stop polling soon; does not wait. A running server stays, see above."""
        self._stopped.set()

    def _run(self) -> None:
        try:
            while not offer(self._path):
                if self._stopped.wait(CHECK_INTERVAL):
                    return
        except Exception as error:  # noqa: BLE001 - thread boundary: torch's private names may change
            first = (str(error).strip().splitlines() or [repr(error)])[0][:200]
            _log.info("the launcher cannot ask torch how far its collectives have come: %s", first)
            self._failed("control_plane_error")


def offer(path: Path) -> bool:
    """Serve torch's control plane at ``path``; False while there is no process group yet. Does not import torch.

    Raises:
        OSError: the file cannot be created.
        RuntimeError: torch cannot listen there; a path may have 107 characters.
        AttributeError: this torch has no control plane.
    """
    ready = getattr(sys.modules.get("torch.distributed"), "is_initialized", None)
    bindings = sys.modules.get("torch._C._distributed_c10d")
    if ready is None or bindings is None or not ready():
        return False
    running = own_server()
    if running == path:
        return True
    path.unlink(missing_ok=True)
    if running is not None:
        path.symlink_to(running)
        return True
    global _started
    with _without_warnings():  # it logs its socket as one, on every rank
        server = bindings._WorkerServer(str(path))
    _keep_for_ever(server)
    _started = (os.getpid(), path)
    return True


def own_server() -> Path | None:
    """The socket of a server that already runs in this process: ours, or the script's own."""
    ours = _started[1] if _started is not None and _started[0] == os.getpid() else None
    scripts = os.environ.get(SCRIPTS_OWN)
    candidates = (ours, Path(scripts).absolute() if scripts else None)
    return next((path for path in candidates if path is not None and _listener(path) == os.getpid()), None)


def _listener(path: Path) -> int | None:
    """The process that listens on a socket: the variable may be the same for all ranks, its server is one rank's."""
    try:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(1.0)
            asking.connect(str(path))
            return process_and_user(asking)[0]
    except OSError:
        return None


def process_and_user(connected: socket.socket) -> tuple[int, int]:
    """Who listens at the other end of a unix socket."""
    process, user, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return process, user


def _keep_for_ever(server: object) -> None:
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Suppress torch's C++ warnings, of all threads, for the moment that a constructor takes; nothing, if it cannot."""
    import ctypes

    level = None
    with contextlib.suppress(OSError, ValueError, AttributeError):
        library = Path(sys.modules["torch"].__path__[0], "lib", "libc10.so")
        level = ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "FLAGS_caffe2_log_level")
    before = level.value if level is not None else 0
    try:
        if level is not None:
            level.value = max(before, ERROR_LEVEL)
        yield
    finally:
        if level is not None:
            level.value = before
