"""The launcher's end of one prewarmed worker: starts it, makes it import, turns it into a rank. See ``child.py``."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rankwatch.contract.files import tail
from rankwatch.contract.messages import read_text
from rankwatch_launcher import procfs
from rankwatch_launcher.log import logger
from rankwatch_launcher.open_files import restore_limit
from rankwatch_launcher.prewarm import child
from rankwatch_launcher.prewarm.bootstrap import with_hook

ANSWER_SECONDS: Final = 2.0
"""Time for a worker to become a rank; it takes about a millisecond, unless it is stopped."""
CHUNK: Final = 1 << 16
LARGEST_ANSWER: Final = 1 << 20
"""Bytes of one message of a worker: one line of JSON. Imported modules run in it and may write it."""
KILLED_SECONDS: Final = 2.0
"""Time for a killed process to exit. One in uninterruptible sleep (state D) may never, and is left behind."""


class AnswerError(ConnectionError):
    """A worker sends what is no answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One message of a worker."""

    imported: str = ""
    """The module that it was made to import."""
    error: str = ""
    """Why the import, or the start, failed."""
    printed: int = 0
    """Bytes that imports have printed so far."""
    started: int = 0
    """Its process id, once it is a rank."""


@dataclass(frozen=True, slots=True)
class Command:
    """How a rank's script is run: the command, the first entry of sys.path, and the file of ``__main__``."""

    argv: tuple[str, ...]
    first: str
    main: str

    @classmethod
    def of(cls, argv: Sequence[str], python: str, cwd: str) -> Command | str:
        """Parse a rank's command; a string is the reason why it cannot be prewarmed."""
        if not argv or argv[0] != python:
            return f"the ranks are started by {argv[0] if argv else 'nothing'}, not by the launcher's own {python}"
        options = list(argv[1:])
        if options[:1] != ["-u"]:
            return "the ranks are not started with python -u"
        if len(options) > 2 and options[1] == "-m":
            return cls(tuple(argv), cwd, "")
        if len(options) < 2 or options[1].startswith("-"):
            return f"Python option {options[1]} is not supported" if len(options) > 1 else "the command names no script"
        script = os.path.join(cwd, options[1])
        if os.path.isfile(script):
            return cls(tuple(argv), os.path.dirname(os.path.realpath(script)), script)
        return f"{options[1]} is not a file"


def worker_environment(environment: Mapping[str, str], value: str) -> dict[str, str]:
    """The environment that makes an interpreter a prewarmed worker."""
    return {**with_hook(environment), child.VARIABLE: value}


def probe(python: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a process that exits with ``EXIT_PROBED`` if this Python runs the hook, and with 0 if it does not.

    A Python that ignores PYTHONPATH would run the script at once, as an extra rank.
    """
    quiet = subprocess.DEVNULL
    environment = worker_environment(environment, child.PROBE)
    command = [python, "-P", "-u", "-c", ""]
    return subprocess.Popen(command, env=environment, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)


@dataclass
class PrewarmedWorker:
    """One interpreter, from its start until it becomes a rank or is killed."""

    command: Command
    environment: dict[str, str]
    """Its environment. A rank's may differ only in variables that are read late."""
    busy: str = "start"
    """``start``, the module being imported, or empty."""
    imported: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        ours, theirs = socket.socketpair()
        outputs = [os.memfd_create("rankwatch-prewarmed"), os.memfd_create("rankwatch-prewarmed")]
        try:
            # From the main thread only: PR_SET_PDEATHSIG refers to the thread that started the process.
            self.process = subprocess.Popen(
                self.command.argv,
                env=worker_environment(self.environment, f"{theirs.fileno()},{os.getpid()}"),
                stdout=outputs[0],
                stderr=outputs[1],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError:
            ours.close()
            os.close(outputs[1])
            raise
        finally:
            theirs.close()
            os.close(outputs[0])
            self._stderr = outputs[1]
        restore_limit(self.process.pid)
        self._connection = ours
        self._data = b""

    def request_import(self, module: str) -> None:
        """Make it import a module; :meth:`answers` returns the result."""
        self.busy = module
        self._send({"import": module, "first": self.command.first, "main": self.command.main})

    def answers(self) -> list[Answer]:
        """Messages since the last call, without waiting.

        Raises:
            OSError: it has exited, or sends what is no answer.
        """
        self._connection.settimeout(0.0)
        with contextlib.suppress(BlockingIOError):
            self._read()
        found = []
        while (message := self._next()) is not None:
            self.busy = ""
            found.append(message)
        return found

    def start(self, environment: Mapping[str, str], descriptors: Sequence[int], cwd: str) -> str:
        """Turn it into a rank; return why that failed, and then it has exited.

        Raises:
            OSError: it has exited, sends what is no answer, or none within ``ANSWER_SECONDS``.
        """
        given = self.environment
        start = {
            "set": {name: value for name, value in environment.items() if given.get(name) != value},
            "unset": [name for name in given if name not in environment],
            "cwd": cwd,
            "umask": current_umask(),
        }
        self._send({"start": start}, descriptors)
        until = time.monotonic() + ANSWER_SECONDS
        while (answer := self._next()) is None:
            if (left := until - time.monotonic()) <= 0.0:
                raise TimeoutError("it does not answer in time")
            self._connection.settimeout(left)
            self._read()
        if not answer.started and not answer.error:
            raise AnswerError("answers something else")
        self._close()
        return answer.error

    def resident(self) -> int:
        """Its resident memory in bytes."""
        return procfs.resident_memory(self.process.pid)

    def last_stderr_line(self) -> str:
        """The last line of its stderr."""
        lines = tail(f"/proc/self/fd/{self._stderr}", CHUNK).strip().splitlines()
        return lines[-1].strip() if lines else ""

    def kill(self) -> None:
        """Kill it with its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        wait_killed(self.process)
        self._close()

    def _close(self) -> None:
        self._connection.close()
        if self._stderr >= 0:
            os.close(self._stderr)
            self._stderr = -1

    def _send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        data = json.dumps(message).encode()
        data = child.HEADER.pack(len(data)) + data
        self._connection.settimeout(ANSWER_SECONDS)
        if descriptors:
            data = data[socket.send_fds(self._connection, [data], list(descriptors)) :]
        if data:
            # Sending nothing raises, too, if it has closed its end.
            self._connection.sendall(data)

    def _read(self) -> None:
        data = self._connection.recv(CHUNK)
        if not data:
            raise ConnectionResetError("its connection has closed")
        self._data += data

    def _next(self) -> Answer | None:
        size = child.HEADER.size
        if len(self._data) < size:
            return None
        length = child.HEADER.unpack(self._data[:size])[0]
        if length > LARGEST_ANSWER:
            raise AnswerError("sends more than an answer")
        if len(self._data) < size + length:
            return None
        message, self._data = self._data[size : size + length], self._data[size + length :]
        try:
            return read_text(Answer, message)
        except ValueError as error:
            raise AnswerError(f"sends what is no answer: {error}") from None


def wait_killed(process: subprocess.Popen[bytes]) -> int | None:
    """Wait a moment for a process that was killed or closes its connection; None when it still exists."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(KILLED_SECONDS)
    logger.warning("process %d still exists %g s after its end was due and is left behind", process.pid, KILLED_SECONDS)
    _left_behind.append(process)  # reaped by poll() if it ever exits
    _left_behind[:] = [each for each in _left_behind if each.poll() is None]
    return None


_left_behind: Final[list[subprocess.Popen[bytes]]] = []


def current_umask() -> int:
    """The launcher's umask, read without setting it."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("Umask:")), 8)
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
