"""The launcher's end of one parked interpreter: starts it, has it import, makes it a rank. See ``child.py``."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rankwatch_launcher.node import memory
from rankwatch_launcher.prewarm import child

HOOK: Final = Path(__file__).parent / "hook"
ANSWER_SECONDS: Final = 2.0
"""What a parked interpreter may take to become a rank; it takes about a millisecond, unless it is stopped."""
CHUNK: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Command:
    """How a rank's script is run: the command, and what leads sys.path and names ``__main__`` while it runs."""

    argv: tuple[str, ...]
    first: str
    main: str

    @classmethod
    def of(cls, argv: Sequence[str], python: str, cwd: str) -> Command | str:
        """Read a rank's command; a string says why it cannot be parked."""
        if not argv or argv[0] != python:
            return f"the ranks are started by {argv[0] if argv else 'nothing'}, not by the launcher's own {python}"
        options = list(argv[1:])
        if options[:1] != ["-u"]:
            return "the ranks are not started with python -u"
        if len(options) > 2 and options[1] == "-m":
            return cls(tuple(argv), cwd, "")
        if len(options) < 2 or options[1].startswith("-"):
            return f"Python's option {options[1]} is not known here" if len(options) > 1 else "no script is named"
        script = os.path.join(cwd, options[1])
        if os.path.isfile(script):
            return cls(tuple(argv), os.path.dirname(os.path.realpath(script)), script)
        return f"{options[1]} is no file"


def hooked(environment: Mapping[str, str], word: str) -> dict[str, str]:
    """The environment with which an interpreter parks."""
    path = environment.get("PYTHONPATH", "")
    return {**environment, "PYTHONPATH": f"{HOOK}{os.pathsep}{path}" if path else str(HOOK), child.VARIABLE: word}


def probe(python: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a process that ends with ``EXIT_PROBED`` if this Python would park, and with 0 if it would run a script.

    A Python that does not look into PYTHONPATH would run the script at once: a rank that nobody asked for.
    """
    quiet = subprocess.DEVNULL
    environment = hooked(environment, child.PROBE)
    command = [python, "-u", "-c", ""]
    return subprocess.Popen(command, env=environment, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)


@dataclass
class ParkedInterpreter:
    """One interpreter, from its start until it is a rank or is given up."""

    command: Command
    environment: dict[str, str]
    """What it was given. A rank's must be the same but for what is read late."""
    busy: str = "start"
    """What it does now: ``start``, the module that it imports, or nothing."""
    imported: list[str] = field(default_factory=list)
    read: set[str] = field(default_factory=set)
    """Environment variables that the imports of a person's modules have read."""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        ours, theirs = socket.socketpair()
        outputs = [os.memfd_create("rankwatch-parked"), os.memfd_create("rankwatch-parked")]
        try:
            # By the main thread only: PR_SET_PDEATHSIG means the death of the thread that started the process.
            self.process = subprocess.Popen(
                self.command.argv,
                env=hooked(self.environment, f"{theirs.fileno()},{os.getpid()}"),
                stdout=outputs[0],
                stderr=outputs[1],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(outputs[0])
            self._stderr = outputs[1]
        self._connection = ours
        self._data = b""

    def ask_to_import(self, module: str) -> None:
        """Have it import a module; :meth:`answers` brings what came of it."""
        self.busy = module
        self._send({"import": module, "first": self.command.first, "main": self.command.main})

    def answers(self) -> list[dict[str, Any]]:
        """What it has said since the last call, without waiting.

        Raises:
            OSError: it is gone.
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
        """Make it a rank; return what was in the way, and then it is gone.

        Raises:
            OSError: it is gone, or does not answer within ``ANSWER_SECONDS``.
        """
        given = self.environment
        start = {
            "set": {name: value for name, value in environment.items() if given.get(name) != value},
            "unset": [name for name in given if name not in environment],
            "cwd": cwd,
            "umask": current_umask(),
        }
        self._send({"start": start}, descriptors)
        while (answer := self._next()) is None:
            self._read()
        self._close()
        return str(answer.get("error", ""))

    def resident(self) -> int:
        """Bytes of memory that it has."""
        return memory.resident(self.process.pid)

    def last_words(self) -> str:
        """The last line that it wrote to its stderr."""
        with contextlib.suppress(OSError):
            size = os.fstat(self._stderr).st_size
            lines = os.pread(self._stderr, CHUNK, max(0, size - CHUNK)).decode(errors="replace").splitlines()
            return next((line.strip() for line in reversed(lines) if line.strip()), "")
        return ""

    def kill(self) -> None:
        """End it, with whatever its imports have started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
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
            # It may have closed its end already: to send nothing then is an error too.
            self._connection.sendall(data)

    def _read(self) -> None:
        data = self._connection.recv(CHUNK)
        if not data:
            raise ConnectionResetError("its connection has closed")
        self._data += data

    def _next(self) -> dict[str, Any] | None:
        size = child.HEADER.size
        if len(self._data) < size:
            return None
        end = size + child.HEADER.unpack(self._data[:size])[0]
        if len(self._data) < end:
            return None
        message: dict[str, Any] = json.loads(self._data[size:end])
        self._data = self._data[end:]
        return message


def current_umask() -> int:
    """The launcher's umask, read without setting it."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("Umask:")), 8)
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
