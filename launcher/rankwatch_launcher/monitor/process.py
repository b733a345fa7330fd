"""Runs the job's own monitor beside the launcher when none is configured, and restarts it when it dies.

The monitor is a separate process, reached over HTTP only. The launcher itself listens on its port, below the kernel's
ephemeral range, and the monitor inherits the socket. So the ranks have its address and token before it has started and
need not wait for it, and no other process can receive a token at that port, also while the monitor is restarted.
Connections that are made while it starts are answered once it runs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import random
import secrets
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rankwatch.contract import access, records
from rankwatch.contract import env as environment
from rankwatch.contract.access import MonitorAccess
from rankwatch.contract.files import private_folder, temporary_folder
from rankwatch.contract.interpreter import own_python
from rankwatch.contract.text import decoded
from rankwatch.monitor_client import LOOPBACK
from rankwatch_launcher.folders import locked, remove_leftovers
from rankwatch_launcher.log import logger
from rankwatch_launcher.monitor.monitor_log import MonitorLog

NOT_INSTALLED: Final = (
    "no monitor: hangs will not be detected. Install it with `pip install 'rankwatch[monitor]'` or give one with "
    "--monitor URL; without a monitor this behaves like torchrun"
)
CONTROL_TOKEN: Final = "RANKWATCH_MONITOR_TOKEN"
INGEST_TOKEN: Final = environment.INGEST_TOKEN
DATABASE: Final = "RANKWATCH_MONITOR_DATABASE"
"""Variables of the monitor's settings."""
_FOLDER: Final = "rankwatch-monitor-"
_READY_FILE: Final = "ready.json"
_READY_SECONDS: Final = 30.0
_KILLED_SECONDS: Final = 5.0
_MAX_STARTS: Final = 3
"""Starts of a monitor that never becomes ready."""
_PORTS: Final = (15000, 32000)
"""Below 32768, where Linux's ephemeral range begins."""
_USERS_FROM: Final = 15_600
_USERS: Final = 1_600
_USER_PORTS: Final = 10
_BACKLOG: Final = 4096
"""Ports that the jobs of one user prefer; two users may have the same."""


def available() -> bool:
    """Whether the monitor and its dependencies are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("rankwatch_monitor", "fastapi", "uvicorn"))


def bind_address(rendezvous_host: str, master_addr: str) -> str:
    """The address of a monitor for several nodes: loopback if the rendezvous uses it."""
    return "127.0.0.1" if rendezvous_host in LOOPBACK else master_addr


@dataclass(frozen=True, slots=True)
class KeptRecords:
    """Which records of earlier jobs are kept; 0 is no limit."""

    days: int
    mib: int


class LocalMonitor:
    """One monitor process; :meth:`start` returns at once.

    It always has tokens, since every user of the machine can connect to a port of loopback: ``token`` for this launcher
    and people, ``ingest_token`` for ranks and other launchers. They stay the same when it is restarted.
    """

    def __init__(self, job_id: str, host: str = "127.0.0.1", keep: KeptRecords | None = None) -> None:
        """``keep``: the limits on records of earlier jobs; None removes none.

        Raises:
            OSError: no folder can be made for its files, or no port of the host is free.
        """
        self._environment = _environment(os.environ)
        self.token = self._environment[CONTROL_TOKEN]
        self.ingest_token = self._environment[INGEST_TOKEN]
        self._job_id = job_id
        self._access: Path | None = None
        self._host = host
        self._listener = listen(host)
        self._port: int = self._listener.getsockname()[1]
        remove_leftovers(Path(tempfile.gettempdir()), f"{_FOLDER}*", _READY_FILE.__eq__)
        self._folder_lock = -1
        self._folder = self._make_folder()
        self._keep = keep
        folder = records_folder(os.environ)
        self.record = None if os.environ.get(DATABASE) else folder / records.file_name(job_id)
        """The job's database, kept after the job; None when ``RANKWATCH_MONITOR_DATABASE`` names another."""
        self._ready_file = self._folder / _READY_FILE
        self._log = MonitorLog(records.log_of(folder / records.file_name(job_id)))
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = threading.Event()
        self._closing = threading.Event()
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """Its address, known before it runs."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    def start(self) -> None:
        """Start the monitor, and a thread that restarts it when it dies."""
        self._spawn()
        threading.Thread(target=self._supervise, name="rankwatch-monitor", daemon=True).start()

    def wait_ready(self) -> bool:
        """Wait until it has become ready; False when it timed out."""
        return self._ready.wait(_READY_SECONDS)

    @property
    def has_started(self) -> bool:
        """Whether it has become ready."""
        return self._ready.is_set()

    def close(self) -> None:
        """End it."""
        with self._lock:
            self._closing.set()
            process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                process.wait(15.0)  # publishing to W&B may take 10 s
            except subprocess.TimeoutExpired:
                process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):  # in uninterruptible sleep (state D)
                    process.wait(_KILLED_SECONDS)
        self._log.show_warnings()
        for file in (self._ready_file, *((self._access,) if self._access else ())):
            file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._folder.rmdir()
        if self._folder_lock >= 0:
            os.close(self._folder_lock)
            self._folder_lock = -1
        self._listener.close()

    def _make_folder(self) -> Path:
        """A folder that is locked while this process lives."""
        folder = Path(tempfile.mkdtemp(prefix=_FOLDER))
        if self._folder_lock >= 0:
            os.close(self._folder_lock)
        self._folder_lock = locked(folder)
        return folder

    def _spawn(self) -> None:
        try:
            private_folder(self._folder, create=False)
        except OSError:  # a cleaner of temporary files has removed it, and another user may have taken its name
            self._folder = self._make_folder()
            self._ready_file = self._folder / _READY_FILE
        command = [
            *own_python("-m", "rankwatch_monitor", "--host", self._host, "--port", str(self._port)),
            *("--listen-fd", str(self._listener.fileno())),
            *("--ready-file", str(self._ready_file), "--parent-pid", str(os.getpid())),
            *(("--database", str(self.record)) if self.record else ()),
        ]
        self._ready_file.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        with open(os.open(self._log.path, flags, 0o600), "ab") as log:
            # In its own session, so that Ctrl-C at the terminal does not end it before the launcher's last reports.
            self._process = subprocess.Popen(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(self._listener.fileno(),),
            )

    def _supervise(self) -> None:
        failures = 0
        while not self._closing.is_set():
            assert self._process is not None
            if not self._ready.is_set() and self._read_ready() is not None:
                self._publish_access()
                self._ready.set()
                self._warn_without_page()
                self._prune()
            self._log.show_warnings()
            code = self._process.poll()
            if code is None:
                self._closing.wait(0.05 if not self._ready.is_set() else 0.5)
                continue
            failures += 1
            if not self._ready.is_set() and failures >= _MAX_STARTS:
                logger.warning(
                    "the monitor does not start (exit code %s): %s. Training continues", code, self._log.last_line()
                )
                self._refuse_connections(math.inf)  # the ranks have its token, so nothing else may listen there
                return
            logger.warning("the monitor has died (%s) and is restarted", self._log.last_line() or f"exit code {code}")
            # Exponential backoff for a monitor that dies again and again.
            self._refuse_connections(min(0.2 * 2 ** min(failures, 8), 30.0))
            with self._lock:
                if not self._closing.is_set():
                    try:
                        self._spawn()
                    except OSError as error:  # no process, descriptor or space now: the next round tries again
                        logger.warning("the monitor cannot be restarted: %s", error)

    def _refuse_connections(self, seconds: float) -> None:
        """Close connections at once for so long: without a monitor they would wait for an answer."""
        until = time.monotonic() + seconds
        while not self._closing.is_set() and (left := until - time.monotonic()) > 0:
            try:
                self._listener.settimeout(min(left, 0.2))
                self._listener.accept()[0].close()
            except TimeoutError:
                continue
            except OSError:  # the connection was reset, or there is no descriptor for it
                self._closing.wait(min(left, 0.2))

    def _publish_access(self) -> None:
        """Let this user's commands find the monitor."""
        found = MonitorAccess(
            self.url, self._job_id, os.getpid(), self.token, self.ingest_token, host=socket.gethostname()
        )
        try:
            self._access = access.publish(found)
        except OSError as error:
            logger.warning("commands on this machine will not find the monitor by themselves: %s", error)

    def _warn_without_page(self) -> None:
        if not (self._read_ready() or {}).get("page", True):
            logger.warning("the monitor has no page, which this installation lacks: use rankwatch status")

    def _read_ready(self) -> dict[str, Any] | None:
        try:
            found = decoded(self._ready_file.read_text())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def _prune(self) -> None:
        if self._keep is None or self.record is None:
            return
        try:
            removed = records.prune(self.record.parent, days=self._keep.days, mib=self._keep.mib)
        except OSError as error:
            logger.warning("old records of jobs cannot be removed: %s", error)
            return
        if removed:
            logger.info(
                "%d old records of jobs were removed (--keep-records-days %d, --keep-records-mib %d)",
                len(removed),
                self._keep.days,
                self._keep.mib,
            )


def records_folder(env: Mapping[str, str]) -> Path:
    """The folder of the jobs' records, created if need be; a line is logged when it is not the usual one.

    One file per job id: two monitors must not share a file, and several jobs may run on one host.

    Raises:
        OSError: no folder can be created.
    """
    place = records.state_place(env)
    try:
        folder = records.create(place)
    except OSError as error:
        logger.warning("the job's record is not kept in %s: %s", place.folder, error)
        return _fallback_folder()
    if place.moved:
        logger.warning("the job's record is kept in %s: %s", folder, place.moved)
    return folder


def _fallback_folder() -> Path:
    """A folder for databases that no other user can have prepared; a fresh one if the usual name is taken."""
    try:
        return temporary_folder("jobs")
    except OSError as error:
        folder = Path(tempfile.mkdtemp(prefix="rankwatch.jobs."))
        logger.warning("%s; the job's database is in %s, and a later run will not find it", error, folder)
        return folder


def first_port(uid: int) -> int:
    """The first port of a user's jobs: 15600 for uid 0, 15610 for uid 1."""
    return _USERS_FROM + uid % _USERS * _USER_PORTS


def listen(host: str) -> socket.socket:
    """Listen on the user's first port that is free, so that the page of a job can be bookmarked.

    When all are taken it is any other outside of the ephemeral range.

    Raises:
        OSError: the address is not this machine's, or no port is free.
    """
    first = first_port(os.getuid())
    ports = [*range(first, first + _USER_PORTS), *(random.randrange(*_PORTS) for _ in range(50))]
    for port in ports:
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # an earlier job may have left TIME_WAIT
        try:
            listener.bind((host, port))
            # At once: of two sockets with SO_REUSEADDR on one port, the first to listen has it.
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            refusal = error
        else:
            return listener
    raise OSError(f"no free port on {host}: {refusal}")


def _environment(base: Mapping[str, str]) -> dict[str, str]:
    """The monitor's environment, with new tokens unless they are configured. Command lines are readable by every user.

    ``RANKWATCH_TOKEN`` may be meant for another monitor, so it is not used.
    """
    env = {name: value for name, value in base.items() if name not in (environment.TOKEN, environment.MONITOR_URL)}
    tokens = {name: env.get(name) or secrets.token_urlsafe(24) for name in (CONTROL_TOKEN, INGEST_TOKEN)}
    return env | tokens
