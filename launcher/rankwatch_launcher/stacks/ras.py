"""Asks NCCL's RAS subsystem, which runs as a thread in every rank, about the job's communicators.

A rank listens at ``NCCL_RAS_ADDR``, by default at port 28028 of localhost, and all ranks of a node share the port; any
of them answers for the whole job. The port may as well be that of another job or of another program, so nothing is
sent before one of our ranks is known to listen there, and nothing is believed before our connection is known to end in
one of them: the kernel tells whose socket it is. The launcher asks, never a rank.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rankwatch.contract.nccl_ras import RasReport
from rankwatch_launcher import procfs, tcp
from rankwatch_launcher.log import logger
from rankwatch_launcher.stacks import ras_answer

PORT: Final = 28028
"""Where NCCL listens without ``NCCL_RAS_ADDR``."""
MAX_BYTES: Final = 16 << 20
"""Limit on an answer in JSON: that of about a thousand GPUs in ten communicators each."""
MAX_TEXT_BYTES: Final = 4 << 20
MAX_LINE: Final = 1024
LEG_SECONDS: Final = 2
"""How long NCCL waits for any of its own connections."""
SECONDS: Final = 8.0
"""Limit on all of it: NCCL may wait 5 s longer for a process that does not answer."""
PAUSE: Final = 0.5
"""Seconds between two answers, by which operations that go on are told from those that do not."""
_READING: Final = threading.Lock()
"""One answer is read at a time: those of other users' processes, for ``rankwatch diagnose``, may take 200 MB each."""
TRIES: Final = 3
"""Connections made to find a rank of ours, where another job of this user shares the port: the kernel chooses."""


def ask(pids: Sequence[int], until: float, *, proc: Path = procfs.PROC) -> RasReport | None:
    """What NCCL reports of the job of these processes, the ranks of this node; None: none of them can be asked.

    Two answers are compared where ranks differ, unless there is no time left, or the counts follow from processes that
    do not answer.

    Args:
        until: when to have ended, on the monotonic clock.
    """
    began = time.monotonic()
    until = min(until, began + SECONDS)
    for port in ports(pids, proc):
        try:
            first = _answer(port, pids, until, proc)
            if first is None:
                continue
            found = first
            differ = any(each.progress for each in first.communicators) and not first.missing
            if differ and time.monotonic() + PAUSE < until:
                time.sleep(PAUSE)
                try:
                    again = _answer(port, pids, until, proc)
                    found = first if again is None else ras_answer.steady(first, again)
                except (OSError, ValueError):
                    logger.debug("RAS answered once and not again", exc_info=True)
            return replace(found, seconds=round(time.monotonic() - began, 3))
        except (OSError, ValueError) as error:
            logger.debug("NCCL's RAS at port %d gave no answer: %s", port, error)
    return None


def ports(pids: Sequence[int], proc: Path = procfs.PROC) -> list[int]:
    """The ports at which these processes listen for questions, if they use NCCL and have RAS switched on.

    The kernel shows the variables with which a program was started; ranks of a standby set theirs later, from those of
    their launcher, which are ours.
    """
    found: dict[int, None] = {}
    for variables in (*(environment(pid, proc) for pid in pids), os.environ):
        if variables.get("NCCL_RAS_ENABLE", "1").strip() == "0":
            continue
        given = variables.get("NCCL_RAS_ADDR", "").rpartition(":")[2].strip()
        number = int(given) if given.isdecimal() and len(given) <= 5 else PORT
        if 0 < number < 1 << 16:
            found[number] = None
    return list(found)


def environment(pid: int, proc: Path = procfs.PROC) -> dict[str, str]:
    """NCCL's variables of a process, as it was started; empty when they cannot be read."""
    try:
        data = (proc / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    each = (item.decode(errors="replace").partition("=") for item in data.split(b"\0") if item.startswith(b"NCCL_RAS_"))
    return {name: value for name, _, value in each}


def _answer(port: int, pids: Sequence[int], until: float, proc: Path) -> RasReport | None:
    """One answer; None: no rank of ours can be asked at this port.

    Raises:
        OSError: no answer in time.
        ValueError: it is too large, or not RAS's.
    """
    listening = list(tcp.listeners(port))
    ours = _inodes(pids, proc) if listening else set()
    ends = list(dict.fromkeys(end for end, inode in listening if inode in ours))
    for end in ends:
        try:
            found = _of_end(end, port, pids, until, proc, json=True)
        except _TooLargeError:
            found = _of_end(end, port, pids, until, proc, json=False)
        if found is not None:
            return found
    return None


def _of_end(end: str, port: int, pids: Sequence[int], until: float, proc: Path, *, json: bool) -> RasReport | None:
    for _ in range(TRIES):
        with _Question(tcp.address(end), until) as question:
            question.begin()
            if _is_ours(question, port, pids, proc):
                return question.status(json=json)
    return None


def _is_ours(question: _Question, port: int, pids: Collection[int], proc: Path) -> bool:
    """Whether the other end of a connection, which has answered, is a socket of one of these processes."""
    near = tcp.end_of(question.near)
    other = next((inode for _, far, inode in tcp.connections(near_port=port) if far == near), 0)
    return other != 0 and other in _inodes(pids, proc)


def _inodes(pids: Collection[int], proc: Path) -> set[int]:
    """Of the sockets that processes hold."""
    return {inode for pid in pids for inode in procfs.sockets(pid, proc)}


class _TooLargeError(ValueError):
    """An answer beyond the limit."""


class _Question:
    """One connection, on which commands are sent and answered line by line; the last answer ends it."""

    def __init__(self, to: tuple[str, int], until: float) -> None:
        self._until = until
        self._buffer = bytearray()
        self._line = socket.socket(socket.AF_INET6 if ":" in to[0] else socket.AF_INET)
        try:
            self._line.settimeout(self._left())
            self._line.connect(to)
        except OSError:
            self._line.close()
            raise

    def __enter__(self) -> _Question:
        return self

    def __exit__(self, *_: object) -> None:
        self._line.close()

    @property
    def near(self) -> tuple[str, int]:
        """Our end."""
        host, port, *_ = self._line.getsockname()
        return str(host), int(port)

    def begin(self) -> None:
        """Exchange versions; what a program answers that is not RAS is refused."""
        if not self._command("CLIENT PROTOCOL 2", "SERVER PROTOCOL "):
            raise ValueError("no answer of RAS")

    def _command(self, words: str, wanted: str) -> bool:
        """Send a command; whether its answer begins so."""
        self._send(words)
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > MAX_LINE or not self._receive():
                raise ValueError("no answer of RAS")
        line = self._buffer[:end].decode(errors="replace")
        del self._buffer[: end + 1]
        return line.upper().startswith(wanted)

    def status(self, *, json: bool) -> RasReport:
        """The state of the job; ``json``: in JSON, where this NCCL has that."""
        self._command(f"TIMEOUT {LEG_SECONDS}", "OK")
        json = json and self._command("SET FORMAT json", "OK")
        self._send("STATUS" if json else "VERBOSE STATUS")
        most = MAX_BYTES if json else MAX_TEXT_BYTES
        while self._receive():
            if len(self._buffer) > most:
                raise _TooLargeError(f"the answer of RAS has more than {most} bytes")
        with _READING:
            return ras_answer.report(self._buffer.decode(errors="replace"))

    def _send(self, words: str) -> None:
        self._line.settimeout(self._left())
        self._line.sendall(f"{words}\n".encode())

    def _receive(self) -> int:
        self._line.settimeout(self._left())
        data = self._line.recv(1 << 16)
        self._buffer += data
        return len(data)

    def _left(self) -> float:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        return left
