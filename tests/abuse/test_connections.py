"""Idle, slow, dead and half-closed connections in numbers: a sender and a launcher are served all the while, and what
strangers held is given back. Short limits of file descriptors make the numbers small; the long test has 10,000."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from rankwatch_monitor.cli import ACCEPTED
from rankwatch_monitor.http import deadlines
from rankwatch_monitor.ingest.work_queue import TURN_LEAST
from support.launcher import PlayedLauncher, polling
from support.monitor_process import Api, RunningMonitor, running_monitor
from support.otlp import rank_report, reports_of_all
from support.waiting import wait_for

WORLD = 3
HEAD = b"POST /v1/metrics HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-protobuf\r\n"


def address(monitor: RunningMonitor) -> tuple[str, int]:
    parts = urlsplit(monitor.url)
    return str(parts.hostname), int(parts.port or 0)


def descriptors(monitor: RunningMonitor) -> int:
    return len(list(Path(f"/proc/{monitor.pid}/fd").iterdir()))


def resident(monitor: RunningMonitor) -> int:
    """Bytes of memory in use."""
    return int(Path(f"/proc/{monitor.pid}/statm").read_text().split()[1]) * resource.getpagesize()


def cpu_seconds(monitor: RunningMonitor) -> float:
    fields = Path(f"/proc/{monitor.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


class Crowd(contextlib.ExitStack):
    """Sockets of strangers, all closed in the end."""

    def __init__(self, monitor: RunningMonitor) -> None:
        super().__init__()
        self.address = address(monitor)
        self.members: list[socket.socket] = []

    def join(self, first_words: bytes = b"") -> socket.socket:
        member = self.enter_context(socket.create_connection(self.address, timeout=15))
        member.sendall(first_words)
        self.members.append(member)
        return member

    def alive(self) -> int:
        """How many the monitor has not closed; what it answers is read away."""
        left = 0
        for member in self.members:
            poll = select.poll()
            poll.register(member, select.POLLIN | select.POLLHUP | select.POLLRDHUP | select.POLLERR)
            left += not poll.poll(0)
        return left


def limit_files(monitor: RunningMonitor, limit: int) -> None:
    """Set the soft limit of a process that runs, as `prlimit` does."""
    _, hard = resource.prlimit(monitor.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(monitor.pid, resource.RLIMIT_NOFILE, (min(limit, hard), hard))


_numbers = count(1)


@pytest.fixture(scope="module")
def monitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMonitor]:
    with running_monitor(tmp_path_factory.mktemp("crowded")) as running:
        yield running


@contextlib.contextmanager
def served(monitor: RunningMonitor, polls: bool = True) -> Iterator[PlayedLauncher]:
    """A job with a sender and a launcher; in the end a hang of it is found and the launcher learns of it.

    ``polls`` states that one long poll, of 30 s at most, is to last through all of it.
    """
    job = f"served-{next(_numbers)}"
    with Api(monitor.url) as api, Api(monitor.url) as orders:
        launcher = PlayedLauncher(orders, job, ranks=range(WORLD))
        launcher.register(policy={"section_timeouts": {"step": 2.0}})
        launcher.start(1, WORLD)
        with polling(launcher, 30.0) as poll:
            send(api, job)
            yield launcher
            send(api, job)
            assert not polls or poll.is_alive() or poll.found, "the launcher's long poll was cut"
            send(api, job, overdue=5.0)
        assert any(directive["kind"] == "capture" for directive in poll.found or launcher.directives(10.0))


def send(api: Api, job: str, overdue: float = 0.0) -> None:
    """Report of all ranks."""
    api.report(*reports_of_all(job, WORLD, overdue=overdue))


def given_back(monitor: RunningMonitor, before: int) -> None:
    wait_for(lambda: descriptors(monitor) <= before + 8, "file descriptors are given back")


COUNTED: Final = """
import asyncio.base_events as events, pathlib, socket
accepted, most, accept, turn = 0, 0, socket.socket.accept, events.BaseEventLoop._run_once

def counted(self):
    global accepted
    found = accept(self)
    accepted += 1
    return found

def one_turn(self):
    global accepted, most
    accepted = 0
    turn(self)
    if accepted > most:
        most = accepted
        pathlib.Path(FILE).write_text(str(most))

socket.socket.accept, events.BaseEventLoop._run_once = counted, one_turn
"""


def test_of_many_new_connections_a_few_are_accepted_in_a_turn_of_the_loop(tmp_path: Path) -> None:
    file = tmp_path / "most"
    with running_monitor(tmp_path, before=f"FILE = {str(file)!r}\n{COUNTED}") as monitor, Crowd(monitor) as crowd:
        os.kill(monitor.pid, signal.SIGSTOP)
        try:
            for _ in range(10 * ACCEPTED):
                crowd.join(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        finally:
            os.kill(monitor.pid, signal.SIGCONT)
        for each in crowd.members:
            each.settimeout(100.0)
            assert each.recv(12) == b"HTTP/1.1 200"
        assert 1 < int(file.read_text()) <= ACCEPTED


MANY = 20
BEGUN = """
from asyncio.base_events import BaseEventLoop
from uvicorn.protocols.http.h11_impl import RequestResponseCycle
from rankwatch_monitor.ingest import work_queue
work_queue.TURN_SECONDS = 0.0
most, begun, run, once = 0, 0, RequestResponseCycle.run_asgi, BaseEventLoop._run_once

def counted(*given):
    global begun
    begun += 1
    return run(*given)

def one_turn(loop):
    global most, begun
    once(loop)
    if begun > most:
        most = begun
        open(FILE, "w").write(str(most))
    begun = 0

RequestResponseCycle.run_asgi, BaseEventLoop._run_once = counted, one_turn
"""


def test_of_many_requests_at_once_a_few_begin_in_a_turn_of_the_loop(tmp_path: Path) -> None:
    """Also of those that are refused, and of those behind each other on their connections: each costs a millisecond,
    and whoever is on the machine may hold thousands of connections."""
    file, words = tmp_path / "most", b"GET /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n"
    before = f"FILE = {str(file)!r}\n{BEGUN}"
    with running_monitor(tmp_path, "--token", "t", before=before) as monitor, Crowd(monitor) as crowd:
        for _ in range(8 * TURN_LEAST):
            crowd.join(words)
        for each in crowd.members:
            assert each.recv(4096).startswith(b"HTTP/1.1 401")
        os.kill(monitor.pid, signal.SIGSTOP)
        try:
            for each in crowd.members:
                each.sendall(MANY * words)
        finally:
            os.kill(monitor.pid, signal.SIGCONT)
        for each in crowd.members:
            each.settimeout(100.0)
            answers = b""
            while answers.count(b"HTTP/1.1 401") < MANY:
                more = each.recv(4096)
                assert more, answers
                answers += more
        assert 1 < int(file.read_text()) <= TURN_LEAST


@pytest.mark.long
def test_a_client_that_sends_no_request_or_one_by_the_byte_is_dropped(monitor: RunningMonitor) -> None:
    before = descriptors(monitor)
    with Crowd(monitor) as crowd:
        for words in (b"", b"G", HEAD, HEAD + b"X-Slow: "):
            for _ in range(25):
                crowd.join(words)
        with served(monitor):

            def a_byte_more() -> bool:
                for member in crowd.members[25:]:
                    with contextlib.suppress(OSError):
                        member.sendall(b"a")
                return crowd.alive() == 0

            wait_for(a_byte_more, "all of them are let go, though they go on", deadlines.HEAD + 60)
            printed = crowd.members[-1].recv(1000)
            assert printed == b"" or printed.startswith(b"HTTP/1.1 408 "), printed
    given_back(monitor, before)


@pytest.mark.long
def test_a_client_that_sends_a_body_by_the_byte_is_dropped(tmp_path: Path) -> None:
    allowed = 5.0
    shorter = f"from rankwatch_monitor.http import deadlines; deadlines.BODY = {allowed}"
    with running_monitor(tmp_path, before=shorter) as monitor:
        before = descriptors(monitor)
        with Crowd(monitor) as crowd, served(monitor, polls=False):
            for _ in range(50):
                crowd.join(HEAD + b"Content-Length: 1000000\r\n\r\n")
                crowd.join(HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabc")

            def a_byte_more() -> bool:
                for member in crowd.members:
                    with contextlib.suppress(OSError):
                        member.sendall(b"a")
                return crowd.alive() == 0

            wait_for(a_byte_more, "all of them are let go, though they go on", allowed + 60)
        given_back(monitor, before)


@pytest.mark.long
def test_a_client_that_never_reads_is_dropped(monitor: RunningMonitor) -> None:
    """The answers are larger than what the kernel keeps for both sides."""
    with Api(monitor.url) as api:
        ranks = [rank_report("large", rank, 4000, iteration=7, host="h" * 200) for rank in range(4000)]
        for at in range(0, 4000, 500):
            api.report(*ranks[at : at + 500])
    before = descriptors(monitor)
    with Crowd(monitor) as crowd, served(monitor, polls=False):
        for _ in range(8):
            member = socket.socket()
            crowd.enter_context(member)
            member.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            member.connect(crowd.address)
            member.sendall(b"GET /api/v1/jobs/large/ranks HTTP/1.1\r\nHost: localhost\r\n\r\n" * 12)
        given_back_within = deadlines.UNREAD + 30
        wait_for(lambda: descriptors(monitor) <= before + 8, "they are let go unread", given_back_within)


def test_half_closed_and_broken_connections_leave_nothing(monitor: RunningMonitor) -> None:
    before = descriptors(monitor)
    with Crowd(monitor) as crowd, served(monitor):
        for words in (
            b"",
            HEAD,
            HEAD + b"Content-Length: 10\r\n\r\nabc",
            b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ):
            for _ in range(10):
                crowd.join(words).shutdown(socket.SHUT_WR)
                broken = crowd.join(words)
                broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                broken.close()
                crowd.members.remove(broken)
        given_back(monitor, before + 12)
    given_back(monitor, before)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_ten_thousand_idle_connections(monitor: RunningMonitor) -> None:
    """Each asked once and stays. As many as this process may open: the number stands in a skip, if it is below."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 10_000
    if hard < wanted + 200:
        pytest.skip(f"needs {wanted + 200} open files, but this process may have {hard}: raise ulimit -Hn")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted + 200 if soft < wanted + 200 else soft, hard))
    try:
        before, memory = descriptors(monitor), resident(monitor)
        with Crowd(monitor) as crowd, served(monitor, polls=False):
            for _ in range(wanted):
                crowd.join()
            wait_for(lambda: descriptors(monitor) >= before + wanted // 2, "they are all in", 30)
            assert resident(monitor) - memory < 20 * 1024 * wanted, "20 KiB for each"
            wait_for(lambda: crowd.alive() == 0, "all of them are let go", deadlines.HEAD + 60)
        given_back(monitor, before)
        with Crowd(monitor) as crowd:
            for _ in range(wanted):
                crowd.join()
        given_back(monitor, before)
        first = resident(monitor)
        with Crowd(monitor) as crowd:
            for _ in range(wanted):
                crowd.join()
        given_back(monitor, before)
        assert resident(monitor) < first * 1.2, "a second crowd costs no more than the first"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


GARBAGE = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "an endless head": HEAD + b"X: " + b"a" * 200_000 + b"\r\n\r\n",
    "an endless address": b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "ten thousand headers": HEAD + b"X: a\r\n" * 10_000 + b"\r\n",
    "two lengths": HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    "a length below nothing": HEAD + b"Content-Length: -1\r\n\r\n",
    "a length beyond all": HEAD + b"Content-Length: 99999999999999999999\r\n\r\n",
    "both kinds of length": HEAD
    + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x HTTP/1.1\r\n\r\n",
    "a bad chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a chunk beyond all": HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n",
    "a bad chunk of a stream's request": b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
    b"1\r\na\r\nzz\r\n",
    "an upgrade": b"GET /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
    "a null in the address": b"GET /api/v1/jobs/%00/ranks HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no UTF-8 in the address": b"GET /api/v1/jobs/%ff%ed%a0%80/ranks HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a thousand requests at once": b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000,
}


def test_garbage_is_answered_or_cut_and_fills_no_log(monitor: RunningMonitor) -> None:
    """The monitor's log is looked through for tracebacks when it ends."""
    before = descriptors(monitor)
    for words in GARBAGE.values():
        for _ in range(5):
            with contextlib.suppress(OSError), socket.create_connection(address(monitor), timeout=15) as stranger:
                stranger.sendall(words)
                stranger.shutdown(socket.SHUT_WR)
                while stranger.recv(65536):
                    pass
    with served(monitor):
        given_back(monitor, before + 12)
    assert monitor.printed().count("Invalid HTTP request") <= 1, "a stranger can fill the disk"
    assert len(monitor.printed()) < 20_000


def test_when_descriptors_run_out_it_reports_it_and_serves_those_at_work(tmp_path: Path) -> None:
    """As many strangers as files allow, and more: the longest idle ones make room, and nothing spins."""
    limit = deadlines.RESERVED + 128
    with held_to(limit, tmp_path / "held") as monitor, Crowd(monitor) as crowd:
        assert "at most 128 connections" in monitor.printed()
        with served(monitor):
            for _ in range(limit + 100):
                crowd.join()
            wait_for(lambda: "the limit of 128 connections is reached" in monitor.printed(), "it is logged")
            wait_for(lambda: crowd.alive() <= 128, "no more are kept than there may be")
            with Api(monitor.url) as newcomer:
                assert newcomer.get("/readyz").status_code == 200
        assert len(monitor.printed().splitlines()) < 60


@contextlib.contextmanager
def held_to(limit: int, folder: Path) -> Iterator[RunningMonitor]:
    """A monitor that cannot raise its limit of open files: a shell lowers the hard one before it starts."""
    folder.mkdir()
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nulimit -n {limit}\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(python))
        context = running_monitor(folder)
        monitor = context.__enter__()
    try:
        yield monitor
    finally:
        context.__exit__(*sys.exc_info())


def test_when_the_system_has_no_descriptors_left_it_reports_it_and_does_not_spin(monitor: RunningMonitor) -> None:
    """Taken away while it runs, so that its own bound does not help: the error of accept() is logged once."""
    with served(monitor), Api(monitor.url) as known:
        assert known.get("/livez").status_code == 200
        limit_files(monitor, descriptors(monitor))
        with Crowd(monitor) as crowd:
            for _ in range(20):
                crowd.join(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            wait_for(lambda: "no new connection can be accepted" in monitor.printed(), "it is logged")
            spent = cpu_seconds(monitor)
            # What is open already is served; each answer is a turn of the loop, in which it could have spun.
            for _ in range(20):
                assert known.get("/livez").status_code == 200
            assert monitor.printed().count("no new connection") == 1
            assert cpu_seconds(monitor) - spent < 5
            limit_files(monitor, 1024)
            wait_for(lambda: crowd.alive() == 0, "those that waited are answered once there is room")
