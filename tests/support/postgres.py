"""A real PostgreSQL of a test's own: a new cluster in a folder of its own, on a free port of loopback.

PostgreSQL refuses to run as root, so a test that does runs it as the system's user ``postgres`` or ``nobody``.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.ports import free_port
from support.waiting import wait_for

_QUICK = ("fsync=off", "full_page_writes=off", "max_connections=40", "shared_buffers=16MB")
"""A cluster that is thrown away needs no disk that survives a power cut."""


def binary(name: str) -> str:
    """The path of a program of PostgreSQL; skips the test where there is none.

    Debian keeps them out of PATH, in a folder for each version.
    """
    folders = []
    if (tool := shutil.which("pg_config")) is not None:
        reported = subprocess.run([tool, "--bindir"], capture_output=True, text=True, check=False)
        folders.append(reported.stdout.strip())
    folders += sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)
    found = shutil.which(name) or next((p for f in folders if (p := shutil.which(name, path=f)) is not None), None)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian: apt install postgresql)")
    return found


class PostgreSQL:
    """One server. ``pid`` is that of its first process while it runs."""

    def __init__(self, folder: Path, user: str | None) -> None:
        self._folder, self._user = folder, user
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0

    def create(self) -> None:
        """Make the cluster."""
        flags = ("-U", "rankwatch", "-A", "trust", "--no-sync", "--locale=C", "-E", "UTF8")
        self._call("initdb", "-D", str(self._folder / "data"), *flags)

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = [word for each in _QUICK for word in ("-c", each)]
        place = ("-p", str(self.port), "-h", "127.0.0.1", "-k", str(self._folder), "-D", str(self._folder / "data"))
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [binary("postgres"), *place, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self._user,
                group=self._group,
                extra_groups=[] if self._user else None,
                cwd=self._folder,
                start_new_session=True,
            )

        def answers() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, f"PostgreSQL ended:\n{self.log()}"
            with contextlib.suppress(psycopg.Error), self.connect("postgres"):
                return True
            return False

        wait_for(answers, "PostgreSQL answers", 30.0)

    def kill(self) -> None:
        """End all its processes at once, as a machine that loses power does."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(10)
            self._process = None

    def stop(self) -> None:
        """End it in order, its clients' connections included."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(20)
        self._process = None

    def freeze(self) -> None:
        """Stop all its processes: connections stay, and nothing answers."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    def connect(self, database: str) -> psycopg.Connection[Any]:
        """A connection of our own to one of its databases, each statement a transaction."""
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="rankwatch", dbname=database, autocommit=True, connect_timeout=3
        )

    def new_database(self, options: str = "") -> str:
        """The URL of an empty database, created with these options."""
        self._databases += 1
        name = f"test{self._databases}"
        with self.connect("postgres") as connection:
            connection.execute(f"create database {name} {options}")  # type: ignore[arg-type]
        return f"postgresql://rankwatch@127.0.0.1:{self.port}/{name}"

    def log(self) -> str:
        """What it has logged."""
        return (self._folder / "log").read_text(errors="replace")[-5000:]

    @property
    def _group(self) -> int | None:
        return pwd.getpwnam(self._user).pw_gid if self._user else None

    def _call(self, name: str, *arguments: str) -> None:
        done = subprocess.run(
            [binary(name), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            user=self._user,
            group=self._group,
            extra_groups=[] if self._user else None,
            cwd=self._folder,
        )
        assert done.returncode == 0, f"{name} failed:\n{done.stdout}{done.stderr}"

    def _signal(self, number: signal.Signals) -> None:
        # Each of its processes leads a session of its own, so they are found by their parent.
        if self._process is None:
            return
        first = self._process.pid
        for pid in (first, *_children(first)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rsplit(")", 1)[1].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


@contextlib.contextmanager
def running_postgres() -> Iterator[PostgreSQL]:
    """A server that runs; it is gone in the end whatever happens, with all that it kept."""
    binary("initdb"), binary("postgres")
    # Not below pytest's own folder, into which another user may not look.
    folder = Path(tempfile.mkdtemp(prefix="rankwatch-postgres-"))
    try:
        user = _other_user() if os.geteuid() == 0 else None
        if user is not None:
            shutil.chown(folder, user, pwd.getpwnam(user).pw_gid)
        server = PostgreSQL(folder, user)
        try:
            server.create()
            server.start()
            yield server
        finally:
            server.thaw()
            server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _other_user() -> str:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    pytest.skip("PostgreSQL does not run as root, and there is no user postgres or nobody")
