"""Reads the record of a job whose monitor has ended, through a read-only monitor that lives as long as the question.

So each command has one way to ask, whether the job runs or not.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from rankwatch.cli import monitors, readers
from rankwatch.contract import access, env, records
from rankwatch.contract.interpreter import own_python
from rankwatch.contract.text import decoded
from rankwatch.monitor_client import DEFAULT_MONITOR, EXIT_AWAY, EXIT_WRONG, MonitorClient, MonitorError, path_of

START_SECONDS: Final = 60.0
"""Within which the read-only monitor must listen; it takes about two."""
LEFT_SECONDS: Final = 600
"""The monitor of an opened page ends this long after the page was closed."""
READ_TOKEN: Final = "RANKWATCH_MONITOR_READ_TOKEN"
ENDING_SECONDS: Final = 5.0
"""Within which a monitor that no longer answers has ended, where it ends with its job."""
_CONNECT_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.02


def add_database_flag(parser: argparse.ArgumentParser) -> None:
    """Add ``--database``."""
    parser.add_argument(
        "--database",
        metavar="FILE",
        help="read this record of an ended job; without it that of JOB, or the newest, if no monitor runs for it "
        "('rankwatch jobs' lists them)",
    )


@contextlib.contextmanager
def asked(command: str, arguments: argparse.Namespace, *, stays: bool = False) -> Iterator[MonitorClient]:
    """A client of the monitor to ask: a living one, else one that reads the record.

    ``stays``: the second one goes on until its page is left.

    Raises:
        MonitorError: no monitor and no record can be asked.
    """
    if (record := record_to_ask(arguments, os.environ)) is None:
        yield monitors.client(arguments)
        return
    if not arguments.database:
        sys.stderr.write(f"{command}: no monitor runs for it; read from the record {record}\n")
    with reader(record, stays=stays) as client:
        yield client


def record_to_ask(arguments: argparse.Namespace, variables: Mapping[str, str]) -> Path | None:
    """The record that answers a command; None: a monitor does.

    Raises:
        MonitorError: there is neither.
    """
    if not hasattr(arguments, "database"):
        return None
    if (given := arguments.database) is not None:
        if "://" in given:
            words = f"--database takes the file of a record; for {urlsplit(given).scheme} start a monitor on it"
            raise MonitorError(words, EXIT_WRONG)
        path = Path(given).expanduser()
        if not path.is_file():
            raise MonitorError(f"there is no record {path}: 'rankwatch jobs' lists those there are", EXIT_WRONG)
        return path
    if arguments.monitor:
        return None
    job, own = arguments.job, access.running()
    if own and (job is None or any(each.job_id == job for each in own)):
        return None
    record = records.of_job(job, variables) if job is not None else None
    if any(each.job_id for each in own):
        return record.path if record is not None else None
    if own or _listens(DEFAULT_MONITOR):
        return record.path if record is not None and not _knows(arguments, job) else None
    if job is None:
        record = next(iter(records.found(variables)), None)
    elif record is None and records.found(variables):
        words = f"no monitor runs here, and there is no record of job {job!r}: 'rankwatch jobs' lists those there are"
        raise MonitorError(words, EXIT_WRONG)
    return record.path if record is not None else None


def ended_meanwhile(arguments: argparse.Namespace) -> bool:
    """Whether the monitor that was asked ended with its job in that moment, so that its record answers."""
    if not hasattr(arguments, "database") or arguments.database is not None or arguments.monitor:
        return False
    until = time.monotonic() + ENDING_SECONDS
    while (record := record_to_ask(arguments, os.environ)) is None and access.running() and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
    return record is not None


@contextlib.contextmanager
def reader(record: Path, *, stays: bool = False) -> Iterator[MonitorClient]:
    """A client of a read-only monitor over a record, which ends with this block, or by itself if it ``stays``.

    One that was left running for the page of the same record is used again.

    Raises:
        MonitorError: the record cannot be read.
    """
    if (running := readers.running(record)) is not None:
        yield running
        return
    if any(find_spec(name) is None for name in ("rankwatch_monitor", "fastapi", "sqlalchemy")):
        words = f"the record {record} is read by the monitor's packages: pip install 'rankwatch[monitor]'"
        raise MonitorError(words, EXIT_WRONG)
    token, written = secrets.token_urlsafe(24), readers.written(record)
    with tempfile.TemporaryDirectory(prefix="rankwatch-reader-", ignore_cleanup_errors=True) as name:
        ready, log = Path(name) / "ready.json", Path(name) / "log"
        command = own_python("-m", "rankwatch_monitor", "--host", "127.0.0.1", "--port", "0")
        command += ["--read-only", str(record), "--ready-file", str(ready), "--log-level", "warning"]
        command += ["--idle-exit", str(LEFT_SECONDS)] if stays else ["--parent-pid", str(os.getpid())]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env=_environment(os.environ, token),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C ends the command, which then ends this
            )
        done = False
        try:
            client = MonitorClient(_address(process, ready, log), token)
            yield client
            done = True
        finally:
            if stays and done:
                process.returncode = 0  # it outlives this command, which is no mistake to warn of
                readers.publish(record, client.url, token, written, process.pid)
            else:
                process.terminate()
                process.wait()


def _address(process: subprocess.Popen[bytes], ready: Path, log: Path) -> str:
    until = time.monotonic() + START_SECONDS
    while (facts := _read(ready)) is None:
        if process.poll() is not None or time.monotonic() > until:
            lines = log.read_text(errors="replace").strip().splitlines()
            last = lines[-1].removeprefix("rankwatch monitor: ") if lines else f"it ended with {process.returncode}"
            raise MonitorError(last if process.poll() is not None else "the record's reader does not start", EXIT_AWAY)
        time.sleep(_LOOK_SECONDS)
    return str(facts["url"])


def _read(ready: Path) -> dict[str, Any] | None:
    try:
        found = decoded(ready.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _environment(variables: Mapping[str, str], token: str) -> dict[str, str]:
    ours = env.of_ranks(variables)  # settings of the environment are not meant for this monitor
    for name in (env.TOKEN, env.MONITOR_URL):
        ours.pop(name, None)
    return ours | {READ_TOKEN: token}


def _listens(url: str) -> bool:
    parts = urlsplit(url)
    try:
        with socket.create_connection((parts.hostname, parts.port), _CONNECT_SECONDS):
            return True
    except OSError:
        return False


def _knows(arguments: argparse.Namespace, job: str) -> bool:
    try:
        monitors.client(arguments).read(path_of(job))
    except MonitorError:
        return False
    return True
