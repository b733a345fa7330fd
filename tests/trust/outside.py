"""What is outside of a job, as a process of its own: a service, a holder of a lock, the other end of a pipe, a person.

    python outside.py PID KIND [ARGUMENT ...]

It leaves its parent as a daemon does, prints its process id and what its user needs to know (an address, a path), and
ends with the process ``PID``. Seconds may be ``inf``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import socket
import sqlite3
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

OWNER = int(sys.argv[1])


def ready(what: object = "") -> None:
    """Tell the user that it may begin."""
    print(os.getpid(), what, flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def wait(seconds: float) -> None:
    """Wait for so long, or until the job is gone."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.2)
        _end_with_the_job()


def _end_with_the_job() -> None:
    try:
        os.kill(OWNER, 0)
    except ProcessLookupError:
        os._exit(0)


def _watch() -> None:
    while True:
        _end_with_the_job()
        time.sleep(0.2)


class Service(BaseHTTPRequestHandler):
    """``/late/S`` answers after S seconds, without a byte before; ``/busy/S`` is 429 for S seconds from its first
    request; ``/shard/N/R`` sends N bytes, R of them a second; ``/shard/N/R/M`` stands after M of them.
    """

    first: dict[str, float] = {}  # noqa: RUF012 - shared by all requests

    def do_GET(self) -> None:
        kind, first, *more = self.path.strip("/").split("/")
        code, body, rate, stands_at = 200, b"0.5", float("inf"), float("inf")
        if kind == "late":
            wait(float(first))
        elif kind == "busy":
            free_at = self.first.setdefault(self.path, time.monotonic()) + float(first)
            code = 429 if time.monotonic() < free_at else 200
        elif kind == "shard":
            body = bytes(int(first))
            rate, stands_at = float(more[0]), float(more[1]) if len(more) > 1 else stands_at
        with contextlib.suppress(OSError):  # the client has gone
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            piece = int(min(rate / 5, len(body)))
            for begin in range(0, len(body), piece):
                if begin >= stands_at:
                    wait(float("inf"))
                self.wfile.write(body[begin : begin + piece])
                if rate < float("inf"):
                    wait(0.2)

    def log_message(self, *_: object) -> None:
        pass


def http() -> None:
    """A service on loopback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    server.daemon_threads = True
    ready(f"127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    wait(float("inf"))


def flock(path: str, seconds: str) -> None:
    """Another job that has locked a file."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ready()
        wait(float(seconds))


def lockf(path: str, seconds: str) -> None:
    """Another job that has locked the bytes of a file."""
    with open(path, "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        ready()
        wait(float(seconds))


def lock_file(path: str, seconds: str) -> None:
    """Another job whose lock is that a file exists."""
    Path(path).touch()
    ready()
    wait(float(seconds))
    Path(path).unlink()


def database(path: str, seconds: str) -> None:
    """Another job in the middle of a transaction of a SQLite database."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    ready()
    wait(float(seconds))
    connection.execute("COMMIT")
    connection.close()


def kick(pid: str, seconds: str) -> None:
    """A person who tells a process to go on."""
    ready()
    wait(float(seconds))
    os.kill(int(pid), signal.SIGUSR2)


def actor(port: str, seconds: str) -> None:
    """Someone who brings samples, with a connection for each; the 150th only after a while."""
    ready()
    for number in range(300):
        wait(float(seconds) if number == 150 else 0.0)
        with socket.create_connection(("127.0.0.1", int(port))) as connection:
            connection.sendall(b"sample")


def publish(path: str, seconds: str) -> None:
    """A pipeline that writes a file, later."""
    ready()
    wait(float(seconds))
    Path(path).touch()


def write(path: str, seconds: str, text: str) -> None:
    """The writer of a named pipe, which has nothing to write for so long."""
    ready()
    threading.Thread(target=_watch, daemon=True).start()
    with open(path, "w") as pipe:  # waits for the reader
        wait(float(seconds))
        pipe.write(text + "\n")


def read(path: str, seconds: str) -> None:
    """The reader of a named pipe, as slow storage: it takes nothing for so long, then all."""
    ready()
    threading.Thread(target=_watch, daemon=True).start()
    with open(path, "rb") as pipe:  # waits for the writer
        wait(float(seconds))
        while pipe.read(1 << 20):
            pass


def storage(path: str, seconds: str) -> None:
    """Storage that is away for so long; it comes back for what an ended job has left waiting (``toy.wait_for``)."""
    os.mkfifo(path)
    ready()
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end and os.path.exists(f"/proc/{OWNER}"):
        time.sleep(0.2)
    os.open(path, os.O_RDWR)
    time.sleep(1.0)


def terminal(seconds: str, text: str) -> None:
    """A person at a terminal, who types one line after so long."""
    master, slave = pty.openpty()
    ready(os.ttyname(slave))
    wait(float(seconds))
    os.write(master, f"{text}\n".encode())
    wait(float("inf"))  # the window stays open


_KINDS = (actor, http, flock, lockf, lock_file, database, kick, publish, write, read, storage, terminal)

if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    os.setsid()
    {each.__name__: each for each in _KINDS}[sys.argv[2]](*sys.argv[3:])
