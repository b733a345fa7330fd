"""A real HTTP server on loopback that keeps what is posted to it and answers as a test states, or not at all."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Posted(NamedTuple):
    """One request that arrived whole."""

    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    status: int | None
    """What it was answered; None: nothing."""

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


@dataclass
class Answers:
    """What to answer: the next of ``first`` while there are any, then ``status`` with ``headers`` and ``body``."""

    status: int | None = 200
    """None: no answer, until :attr:`HttpReceiver.released` is set."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    first: list[int | None] = field(default_factory=list)


class HttpReceiver:
    """Listens from the beginning on; ``away()`` has it refuse connections until ``back()``."""

    def __init__(self) -> None:
        self.posted: list[Posted] = []
        self.answers = Answers()
        self.released = threading.Event()
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None
        self.port = 0
        self.back()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def taken(self) -> list[Posted]:
        """What was answered with success, in its order."""
        with self._lock:
            return [each for each in self.posted if each.status is not None and 200 <= each.status < 300]

    def back(self, tls: ssl.SSLContext | None = None) -> None:
        """Listen, on the same port as before."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                receiver._connections.add(self.connection)

            def finish(self) -> None:
                receiver._connections.discard(self.connection)
                with contextlib.suppress(OSError):
                    super().finish()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                with receiver._lock:
                    answers = receiver.answers
                    status = answers.first.pop(0) if answers.first else answers.status
                    receiver.posted.append(Posted(self.path, headers, body, status))
                if status is None:
                    receiver.released.wait()
                    self.close_connection = True
                    return
                self.send_response(status)
                for name, value in answers.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answers.body)))
                self.end_headers()
                self.wfile.write(answers.body)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False
            allow_reuse_address = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A client that was killed in the middle is no error of the test."""

        self._server = Server(("127.0.0.1", self.port), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def away(self) -> None:
        """Break off all connections and refuse new ones."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join(10)
            self._server = None
            for connection in list(self._connections):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.released.set()
        self.away()


@contextlib.contextmanager
def http_receiver() -> Iterator[HttpReceiver]:
    receiver = HttpReceiver()
    try:
        yield receiver
    finally:
        receiver.close()
