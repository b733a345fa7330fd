"""Launchers that join within seconds, in a process of their own: ``load.py --launchers --late``.

What each sends is what :mod:`_load_launchers` sends: it connects when it is due, registers, reports its started ranks
over a second connection, and holds a long poll open. All requests are written before the first is due, sockets are
plain ones watched by one epoll, and of an answer to a message only status and length are read. So the process keeps up
with 12,500 launchers in 5 s; how far it did not is one of the figures.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import json
import os
import random
import re
import resource
import select
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import _service
import _table
from _load_fleet import Fleet
from _load_launchers import (
    ANSWER_SECONDS,
    BACKOFF,
    JOIN_SECONDS,
    common_headers,
    node_name,
    poll_path,
    registration,
    request,
    started,
)
from _load_measure import processor_waits

from rankwatch.contract.intervals import POLL_SECONDS

REGISTER, REPORT, POLL = "nodes", "process-events", "asked"
RETRIED: Final = frozenset((0, 408, 429, 500, 502, 503, 504))
"""Statuses after which a launcher sends its events again; 0: there was no answer."""
A_TURN: Final = 16
"""Requests sent at most before answers are read again."""
OVERDUE_SECONDS: Final = 1.0
"""Between two looks for overdue answers."""
IP_BIND_ADDRESS_NO_PORT: Final = 24
"""Linux chooses the port when the socket connects."""
RECEIVED: Final = 1 << 16
_END: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")


def plan(fleet: Fleet, url: str, within: float) -> dict[str, Any]:
    """What the process has to know, as JSON."""
    parts, world = urlsplit(url), fleet.shape.ranks_a_job
    return {
        "host": parts.hostname or "127.0.0.1",
        "port": parts.port or 80,
        "headers": common_headers(parts.netloc),
        "within": within,
        "launchers": [[fleet.jobs[job].id, ranks.start, ranks.stop, world] for job, ranks in fleet.members],
    }


class Joining:
    """The process of the launchers of a fleet. They begin with :meth:`start` and end with :meth:`figures`."""

    def __init__(self, fleet: Fleet, url: str, within: float = JOIN_SECONDS) -> None:
        pipe = subprocess.PIPE
        end = partial(_service.end_with, os.getpid())
        self._process = subprocess.Popen([sys.executable, __file__], stdin=pipe, stdout=pipe, preexec_fn=end)
        self._write(json.dumps(plan(fleet, url, within)).encode())

    def start(self) -> None:
        """Let them begin, once all requests are written."""
        assert self._process.stdout is not None
        self._process.stdout.readline()
        self._write(b"")

    def figures(self) -> dict[str, Any]:
        """End all of them; return what is to be printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        figures: dict[str, Any] = json.load(self._process.stdout)
        return figures

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        with self._process:
            pass

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")
        self._process.stdin.flush()


@dataclass(slots=True)
class Launcher:
    """One launcher and what it will send."""

    name: str
    job: str
    registration: bytes
    report: bytes
    address: str
    """From which it connects; empty: from this machine's."""
    due: float = 0.0
    """When it joins."""
    last: int = 0
    """The last directive that it received."""


class Line:
    """One connection of a launcher, with one request under way at most."""

    __slots__ = ("answer_by", "began", "launcher", "received", "request", "socket", "what")

    def __init__(self, launcher: Launcher, what: str, request: bytes) -> None:
        self.launcher, self.what, self.request = launcher, what, request
        self.socket: socket.socket | None = None
        self.received = b""
        self.began = 0.0
        self.answer_by = 0.0
        """0: nothing is under way."""


class Crowd:
    """All launchers."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._family, _, _, _, self._address = socket.getaddrinfo(plan["host"], plan["port"], type=socket.SOCK_STREAM)[
            0
        ]
        self._headers, self._within = plan["headers"], plan["within"]
        self.launchers = [self._written(number, *each) for number, each in enumerate(plan["launchers"])]
        self._epoll = select.epoll()
        self._lines: dict[int, Line] = {}
        self._due: list[tuple[float, int, Line]] = []
        """A heap of when each line sends its request."""
        self._order = itertools.count()
        self.statuses: Counter[str] = Counter()
        """Answers by what was sent; status 0: there was none."""
        self._seconds: dict[str, list[float]] = {REGISTER: [], REPORT: []}
        """From the connect to the answer."""
        self._registered: list[float] = []
        """From when each was to join until it was registered."""
        self._behind: list[float] = []
        """How much later than it was due each connected."""
        self._reported = 0
        self._longest_turn = 0.0
        self._began = self._cpu = self._waited = 0.0
        self._joined: dict[str, float] = {}

    def run(self, control: int) -> dict[str, Any]:
        """Join and hold long polls until the other end of the pipe ``control`` is closed; return the figures."""
        self._epoll.register(control, select.EPOLLIN)
        try:
            self._join(control)
        finally:
            for line in list(self._lines.values()):
                self._close(line)
            self._epoll.close()
        return self._figures()

    def _join(self, control: int) -> None:
        self._began, self._cpu, self._waited = time.monotonic(), time.process_time(), processor_waits(os.getpid())
        for launcher in self.launchers:
            launcher.due = self._began + random.uniform(0, self._within)
            self._later(Line(launcher, REGISTER, launcher.registration), launcher.due)
        look_at = self._began
        while True:
            turn = now = time.monotonic()
            for _ in range(A_TURN):
                if not self._due or self._due[0][0] > now:
                    break
                self._send(heapq.heappop(self._due)[2])
            if now >= look_at:
                look_at = now + OVERDUE_SECONDS
                for line in [each for each in self._lines.values() if 0.0 < each.answer_by < now]:
                    self._answered(line, 0, b"")
            wait = min(self._due[0][0] - time.monotonic(), OVERDUE_SECONDS) if self._due else OVERDUE_SECONDS
            sent = time.monotonic() - turn
            ready = self._epoll.poll(max(0.0, wait), A_TURN * 4)
            turn = time.monotonic()
            for descriptor, event in ready:
                if descriptor == control:
                    return
                self._ready(self._lines[descriptor], event)
            self._longest_turn = max(self._longest_turn, sent + time.monotonic() - turn)

    def _written(self, number: int, job: str, first: int, stop: int, world: int) -> Launcher:
        name, ranks = node_name(number), range(first, stop)
        bodies = (registration(name, ranks), started(name, 1, ranks, world))
        written = [
            request("POST", job, path, self._headers, json.dumps(body).encode())
            for path, body in zip((REGISTER, REPORT), bodies, strict=True)
        ]
        return Launcher(name, job, *written, self._source(number))

    def _source(self, number: int) -> str:
        """An address of its own, as launchers have; from one address the kernel would search for free ports."""
        loopback = self._family == socket.AF_INET and self._address[0].startswith("127.")
        return f"127.1.{number >> 8}.{number & 255}" if loopback else ""

    def _later(self, line: Line, at: float) -> None:
        heapq.heappush(self._due, (at, next(self._order), line))

    def _send(self, line: Line) -> None:
        line.began = now = time.monotonic()
        line.answer_by = now + ANSWER_SECONDS + (POLL_SECONDS if line.what == POLL else 0.0)
        if line.what == REGISTER and len(self._behind) < len(self.launchers):
            self._behind.append(now - line.launcher.due)
        try:
            if line.socket is None:
                self._connect(line)
            else:
                line.socket.sendall(line.request)
        except OSError:
            self._answered(line, 0, b"")

    def _connect(self, line: Line) -> None:
        line.socket = socket.socket(self._family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        if line.launcher.address:
            line.socket.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
            line.socket.bind((line.launcher.address, 0))
        error = line.socket.connect_ex(self._address)
        if error not in (0, errno.EINPROGRESS):
            raise OSError(error, os.strerror(error))
        events = select.EPOLLIN
        try:  # over loopback the connection is there already
            line.socket.sendall(line.request)
        except BlockingIOError:
            events |= select.EPOLLOUT
        self._lines[line.socket.fileno()] = line
        self._epoll.register(line.socket.fileno(), events)

    def _ready(self, line: Line, event: int) -> None:
        assert line.socket is not None
        try:
            if event & select.EPOLLOUT:
                self._epoll.modify(line.socket.fileno(), select.EPOLLIN)
                line.socket.sendall(line.request)
            if not event & ~select.EPOLLOUT:
                return
            received = line.socket.recv(RECEIVED)
        except OSError:
            received = b""
        line.received += received
        if not received or not line.answer_by:
            self._answered(line, 0, b"")
            return
        end = line.received.find(_END)
        length = _LENGTH.search(line.received, 0, end + 2) if end >= 0 else None
        body = line.received[end + len(_END) :]
        if end >= 0 and len(body) >= (int(length[1]) if length else 0):
            self._answered(line, int(line.received[9:12]), body)

    def _answered(self, line: Line, status: int, body: bytes) -> None:
        """An answer, or with status 0 the end of a connection; the launcher's next request follows."""
        now, launcher = time.monotonic(), line.launcher
        under_way, line.answer_by, line.received = line.answer_by > 0.0, 0.0, b""
        if status == 0:
            self._close(line)
        if not under_way:
            return
        self.statuses[f"{line.what} {status}"] += 1
        if line.what != POLL:
            self._seconds[line.what].append(now - line.began)
        if status in RETRIED or (status != 200 and line.what != REPORT):
            self._later(line, now + BACKOFF)
        elif line.what == REPORT:
            self._close(line)  # as the launcher does, once nothing is left to be sent
            self._reported += 1
            if self._reported == len(self.launchers):
                self._joined = self._spent()
        else:
            if line.what == REGISTER:
                self._registered.append(now - launcher.due)
                launcher.last = json.loads(body)["last_directive"]
                self._send(Line(launcher, REPORT, launcher.report))
            else:
                launcher.last = max([launcher.last, *(each["id"] for each in json.loads(body)["directives"])])
            line.what = POLL
            line.request = request("GET", launcher.job, poll_path(launcher.name, launcher.last), self._headers)
            self._send(line)

    def _close(self, line: Line) -> None:
        if line.socket is not None:
            self._lines.pop(line.socket.fileno(), None)
            line.socket.close()
            line.socket = None

    def _spent(self) -> dict[str, float]:
        seconds = time.monotonic() - self._began
        return {
            "launchers joined within, s": seconds,
            "launchers' process while they joined, cores": (time.process_time() - self._cpu) / seconds,
            "launchers' process waited for a processor, s": processor_waits(os.getpid()) - self._waited,
            "launchers' process, longest turn, s": self._longest_turn,
        }

    def _figures(self) -> dict[str, Any]:
        return {
            "emulated launchers": len(self.launchers),
            "launchers lost": len(self.launchers) - self._reported,
            "registered after it was due, s": _table.spread(self._registered),
            "registration from its connect, s": _table.spread(self._seconds[REGISTER]),
            "started ranks from their connect, s": _table.spread(self._seconds[REPORT]),
            "connected later than due, s": _table.spread(self._behind),
            **self._joined,
            "launchers' answers": dict(sorted(self.statuses.items())),
        }


def main() -> None:
    """Read the plan, write all requests, and join when the next line comes."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    crowd = Crowd(json.loads(sys.stdin.buffer.readline()))
    print("ready", flush=True)
    if sys.stdin.buffer.readline():
        print(json.dumps(crowd.run(sys.stdin.fileno())))


if __name__ == "__main__":
    main()
