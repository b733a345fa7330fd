"""Runs in a prewarmed worker before its script: imports modules, waits, and becomes a rank. Stdlib only.

How this works
--------------
The launcher starts the rank's own command (``python -u train.py --lr 1``) with the folder ``hook`` first in PYTHONPATH:
Python imports our ``sitecustomize`` last before the script, and that import blocks until the launcher sends the start.
Then the interpreter itself opens and runs the script, as in any other process: no frame of ours lies below the script,
and ``__main__``, ``sys.argv``, tracebacks and exit codes are Python's own.

=========  ===================================  ==========================================================
state      message from the launcher            effect
=========  ===================================  ==========================================================
waiting    ``{"import": MODULE, ...}``          imports it, sends the result; waiting again
waiting    ``{"start": {...}}``, 2 descriptors  applies descriptors, environment, folder, umask; runs the script
waiting    end of file                          the launcher is gone: exits without running anything
=========  ===================================  ==========================================================

Messages are JSON prefixed with their length. Any error ends the process before the script begins.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib
import json
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from typing import Any, Final, NoReturn

VARIABLE: Final = "RANKWATCH_PREWARMED"
"""Makes an interpreter a worker: ``DESCRIPTOR,LAUNCHER_PID``; ``probe`` only checks that the hook runs."""
PROBE: Final = "probe"
EXIT_PROBED: Final = 71
EXIT_UNUSED: Final = 0
HIGH_DESCRIPTOR: Final = 512
"""The connection is moved up here, so that files opened by imports get the same numbers as in any process."""
REPLAY_BYTES: Final = 1 << 20
"""Limit on the output of imports, which is replayed when the rank starts, as a fresh process would print it then."""
PR_SET_PDEATHSIG: Final = 1
OOM_SCORE: Final = "/proc/self/oom_score_adj"
HEADER: Final = struct.Struct("!Q")
LONGEST_LINE: Final = 500
"""Characters of an error."""


def serve() -> None:
    """Serve the launcher until the script is to begin."""
    word = os.environ.pop(VARIABLE, "")
    if word == PROBE:
        os._exit(EXIT_PROBED)
    descriptor, _, launcher = word.partition(",")
    worker = _Worker(_high_socket(int(descriptor)))
    _die_with(int(launcher))
    oom = _raise_oom_score()
    worker.become(*worker.serve(), oom)


class _Worker:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def serve(self) -> tuple[dict[str, Any], list[int]]:
        """Import requested modules until the start; return its parameters and descriptors."""
        self._send({"ready": os.getpid()})
        while True:
            message, descriptors = self._receive()
            if "start" in message:
                return message["start"], descriptors
            self._send(self._import(message["import"], message["first"], message["main"]))

    def become(self, start: dict[str, Any], descriptors: list[int], oom: str) -> None:
        """Apply what a fresh process would have got from the launcher."""
        try:
            os.chdir(start["cwd"])
            os.umask(start["umask"])
            if oom:
                _write(OOM_SCORE, oom)
            _prctl(PR_SET_PDEATHSIG, 0)
            for name in start["unset"]:
                os.environ.pop(name, None)
            os.environ.update(start["set"])
            for standard, new in zip((1, 2), descriptors, strict=True):
                output = os.pread(standard, REPLAY_BYTES, 0)
                os.dup2(new, standard)
                os.close(new)
                while output:
                    output = output[os.write(standard, output) :]
        except (OSError, ValueError) as error:
            self._refuse(f"{type(error).__name__}: {error}")
        self._send({"started": os.getpid()})
        self._connection.close()

    def _import(self, module: str, first: str, main: str) -> dict[str, Any]:
        error = ""
        with _as_in_the_script(first, main):
            try:
                importlib.import_module(module)
            except BaseException as raised:  # noqa: BLE001 - modules may raise anything, SystemExit too
                error = _line(f"{type(raised).__name__}: {raised}")
        return {
            "imported": module,
            "error": error or _left_running(),
            "printed": os.fstat(1).st_size + os.fstat(2).st_size,
        }

    def _refuse(self, problem: str) -> NoReturn:
        self._send({"error": problem})
        os._exit(EXIT_UNUSED)

    def _send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        self._connection.sendall(HEADER.pack(len(data)) + data)

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        header, descriptors, _, _ = socket.recv_fds(self._connection, HEADER.size, 2)
        data = self._rest(header, HEADER.size)
        (length,) = HEADER.unpack(data)
        return json.loads(self._rest(b"", length)), descriptors

    def _rest(self, data: bytes, length: int) -> bytes:
        while len(data) < length:
            more = self._connection.recv(length - len(data))
            if not more:
                os._exit(EXIT_UNUSED)
            data += more
        return data


@contextlib.contextmanager
def _as_in_the_script(first: str, main: str) -> Iterator[None]:
    """Context with the script's folder first in sys.path and a file for ``__main__``, as inside the script."""
    module = sys.modules["__main__"]
    if first and not sys.flags.safe_path:
        sys.path.insert(0, first)
    if main:
        module.__file__ = main
    try:
        yield
    finally:
        if main:
            del module.__file__
        if first and not sys.flags.safe_path:
            sys.path.remove(first)


def _line(text: str) -> str:
    """The first line of a text, cut, with nothing in it that JSON or a terminal does not take."""
    first = (text.strip().splitlines() or [""])[0][:LONGEST_LINE]
    return "".join(each if each.isprintable() else "?" for each in first)


def _left_running() -> str:
    """A thread or accelerator context that an import left behind; empty: none."""
    torch = sys.modules.get("torch")
    for name in ("cuda", "xpu"):
        accelerator = getattr(torch, name, None)
        if accelerator is not None and accelerator.is_initialized():
            return f"it creates a context on the accelerator (torch.{name}.is_initialized())"
    if others := [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]:
        return f"it starts a thread ({others[0]})"
    return ""


def _high_socket(descriptor: int) -> socket.socket:
    try:
        high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR)
    except OSError:
        high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(descriptor)
    return socket.socket(fileno=high)


def _die_with(launcher: int) -> None:
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:
        os._exit(EXIT_UNUSED)


def _prctl(option: int, value: int) -> None:
    # The kernel accepts both options; a libc without prctl() raises AttributeError.
    ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def _raise_oom_score() -> str:
    """Make the OOM killer prefer this process to any rank; return the previous score."""
    try:
        with open(OOM_SCORE) as file:
            before = file.read().strip()
        _write(OOM_SCORE, "1000")
    except OSError:
        return ""
    return before


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
