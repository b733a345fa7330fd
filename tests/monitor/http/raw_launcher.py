"""A launcher that puts its requests byte by byte, and reads from an answer which way it came."""

from __future__ import annotations

import json
import socket
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Served(NamedTuple):
    """Where a monitor listens, and what opens it."""

    url: str
    token: str | None = None


class RawAnswer(NamedTuple):
    """One answer."""

    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def short(self) -> bool:
        """Whether it came the short way: uvicorn dates all of its own answers."""
        return "date" not in self.headers

    @property
    def directives(self) -> list[dict[str, Any]]:
        assert (self.status, self.headers["content-type"]) == (200, "application/json"), self
        found: list[dict[str, Any]] = json.loads(self.content)["directives"]
        return found


class Line:
    """One connection."""

    def __init__(self, served: Served) -> None:
        where = urlsplit(served.url)
        self.socket = socket.create_connection((where.hostname, where.port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self.socket.makefile("rb")

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self.socket.close()

    def send(self, *of: bytes) -> Line:
        self.socket.sendall(b"".join(of))
        return self

    def receive(self) -> RawAnswer:
        status, headers = self._stream.readline().split()[1], {}
        while line := self._stream.readline().strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        return RawAnswer(int(status), headers, self._stream.read(int(headers.get("content-length", 0))))


class Way(NamedTuple):
    """How a request is put; all mean the same, and only the usual one goes the short way."""

    content_type: str = "application/json"
    query: str = "after={}&node={}&wait={}"
    more: str = ""


SHORT, EMPTY_HEADER = Way(), Way(more="X-Empty:\r\n")
ORDINARY = {
    "the last of its connection": Way(more="Connection: close\r\n"),
    "put differently": Way("application/json; charset=utf-8", "wait={2}&after={0}&node={1}"),
    "an empty header": EMPTY_HEADER,
}


class Raw:
    """A launcher that puts its requests byte by byte."""

    def __init__(self, served: Served, job: str, way: Way = SHORT, node: str = "node-a") -> None:
        self.served, self.job, self.way, self.node, self.token = served, job, way, node, served.token

    def post(self, what: str, content: object) -> bytes:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        of = f"Content-Type: {self.way.content_type}\r\nContent-Length: {len(body)}\r\n"
        return self._head("POST", what, of) + body

    def observe(self, reason: str = "", **more: Any) -> bytes:
        printed = {"node": self.node, "attempt": 0, "role_reason": reason}
        return self.post("observations", {**printed, **more})

    def ask(self, after: int = 0, wait: float = 0) -> bytes:
        return self._head("GET", "directives?" + self.way.query.format(after, self.node, wait), "")

    def _head(self, method: str, path: str, of: str) -> bytes:
        token = f"Authorization: Bearer {self.token}\r\n" if self.token else ""
        line = f"{method} /api/v1/jobs/{self.job}/{path} HTTP/1.1\r\nHost: localhost\r\n"
        return f"{line}{of}{token}{self.way.more}\r\n".encode()

    def exchange(self, request: bytes) -> RawAnswer:
        """The answer to a request on a connection of its own."""
        with Line(self.served) as line:
            return line.send(request).receive()

    def wait(self, line: Line, after: int = 0, wait: float = 30, questions: int = 1) -> Line:
        """Ask, and wait: the monitor reads the questions together with the word before them, which it answers."""
        word = Raw(self.served, self.job, node=self.node).observe()
        received = line.send(word, self.ask(after, wait) * questions).receive()
        assert (received.status, received.short) == (204, True)
        return line
