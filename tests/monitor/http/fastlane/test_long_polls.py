"""Launchers that wait on the short way: the order of answers, waiting by the thousand, and how it ends."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
import uvicorn

from monitor.http.raw_launcher import EMPTY_HEADER, SHORT, Line, Raw, Served
from rankwatch_monitor.app import create_app
from rankwatch_monitor.http.fastlane.protocol import MOST_PIPELINED, FastLaneProtocol
from rankwatch_monitor.service.monitor import Monitor
from support.launcher import PlayedLauncher
from support.monitor_process import Api, RunningMonitor, running_monitor
from support.waiting import wait_for

CROWD = 1_200
LIVE = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def raw(monitor: RunningMonitor, api: Api, job: str) -> Raw:
    PlayedLauncher(api, job).register()
    return Raw(Served(monitor.url), job)


def order(api: Api, raw: Raw) -> None:
    """Have the next directive issued."""
    answer = api.post(f"/api/v1/jobs/{raw.job}/actions", json={"action": "capture", "reason": "I am curious"})
    assert answer.status_code == 202


def reason(api: Api, raw: Raw) -> object:
    """What the launcher reported last of its role."""
    return api.job(raw.job)["nodes"][0]["role_reason"]


# In their order -------------------------------------------------------------------------------------------------------


def test_requests_one_behind_the_other_are_answered_in_their_order(raw: Raw, api: Api) -> None:
    order(api, raw)
    with Line(raw.served) as line:
        for number in range(10):
            line.send(raw.observe(f"word {number}"), raw.ask(), LIVE, raw.ask(after=1))
        received = [line.receive() for _ in range(40)]
    assert [each.status for each in received] == [204, 200, 200, 200] * 10
    assert [[each["id"] for each in reported.directives] for reported in received[1::4]] == [[1]] * 10
    assert [json.loads(live.content)["status"] for live in received[2::4]] == ["alive"] * 10
    assert [reported.directives for reported in received[3::4]] == [[]] * 10
    assert reason(api, raw) == "word 9"


@pytest.mark.parametrize("size", [1, 61, 997])
def test_requests_come_in_any_pieces(raw: Raw, api: Api, size: int) -> None:
    frames = [{"function": f"f{n}", "file": "train.py", "line": n} for n in range(3)]
    stacks = [{"rank": rank, "pid": 1, "method": "py-spy", "frames": frames} for rank in range(4)]
    evidence = {"node": raw.node, "attempt": 0, "incident_id": None, "stacks": stacks}
    whole = raw.observe("in pieces") + raw.post("evidence", evidence) + raw.ask() + raw.observe("whole again")
    with Line(raw.served) as line:
        for at in range(0, len(whole), size):
            line.send(whole[at : at + size])
        assert [line.receive().status for _ in range(4)] == [204, 204, 200, 204]
    assert reason(api, raw) == "whole again"


def test_a_body_that_comes_later_than_its_head_goes_the_short_way(raw: Raw, api: Api) -> None:
    large = raw.observe("it was long", ranks=[], more="x" * 200_000)
    head = large.index(b"\r\n\r\n") + 4
    with Line(raw.served) as line:
        for begin, end in ((0, head), (head, head + 1), (head + 1, 100_000), (100_000, len(large) - 1)):
            line.send(large[begin:end])
        assert reason(api, raw) == "", "it is not whole"
        received = line.send(large[-1:], raw.ask()).receive()
        assert (received.status, received.short) == (204, True)
        assert line.receive().short
    assert reason(api, raw) == "it was long"


def test_what_is_sent_while_a_question_waits_is_answered_behind_it(raw: Raw, api: Api) -> None:
    with Line(raw.served) as line:
        raw.wait(line)
        line.send(raw.observe("said while waiting"), LIVE, raw.ask(after=1, wait=30))
        assert reason(api, raw) == ""
        order(api, raw)
        reported, word, live = line.receive(), line.receive(), line.receive()
        assert [each["id"] for each in reported.directives] == [1]
        assert (word.status, json.loads(live.content)["status"]) == (204, "alive")
        assert (reported.short, word.short, live.short) == (True, True, False)
        wait_for(lambda: reason(api, raw) == "said while waiting", "what was behind is taken in")
        api.change_policy(raw.job, heartbeat_timeout=100)
        assert [each["kind"] for each in line.receive().directives] == ["settings"], "and the next question waited too"


def test_questions_behind_each_other_wait_one_after_the_other(raw: Raw, api: Api) -> None:
    with Line(raw.served) as line:
        raw.wait(line)
        line.send(raw.ask(after=1, wait=30), raw.ask(after=2, wait=0))
        order(api, raw)
        assert [each["id"] for each in line.receive().directives] == [1]
        api.change_policy(raw.job, heartbeat_timeout=100)
        assert [each["id"] for each in line.receive().directives] == [2]
        assert line.receive().directives == []


# By the thousand ------------------------------------------------------------------------------------------------------


@pytest.fixture
def many_files() -> Iterator[None]:
    """As many open connections as the crowd needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < CROWD + 300:
        pytest.skip(f"needs {CROWD + 300} open files; the limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, CROWD + 300), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def wait_in(raw: Raw) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Begin to wait on a new connection."""
    where = urlsplit(raw.served.url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write(raw.observe() + raw.ask(wait=30))
    assert b" 204 " in await reader.readuntil(b"\r\n\r\n")
    return reader, writer


async def received_by(reader: asyncio.StreamReader) -> list[int]:
    """The numbers of the directives that one learns of."""
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    length = int(head.lower().partition(b"content-length:")[2].split()[0])
    return [each["id"] for each in json.loads(await reader.readexactly(length))["directives"]]


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("leave", [0, CROWD // 2], ids=["all stay", "half of them leave"])
def test_a_directive_reaches_all_waiting_requests(raw: Raw, api: Api, leave: int) -> None:
    async def scene() -> list[list[int]]:
        lines: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        try:
            for _ in range(0, CROWD, 100):
                lines += await asyncio.gather(*(wait_in(raw) for _ in range(100)))
            for _, writer in lines[:leave]:
                writer.transport.abort()
            await asyncio.to_thread(order, api, raw)
            return await asyncio.wait_for(asyncio.gather(*(received_by(reader) for reader, _ in lines[leave:])), 60)
        finally:
            for _, writer in lines:
                writer.transport.abort()

    assert asyncio.run(scene()) == [[1]] * (CROWD - leave)
    assert api.get("/readyz").status_code == 200


# How it ends ----------------------------------------------------------------------------------------------------------


class Inside(NamedTuple):
    """A monitor in this process, whose inside can be looked at."""

    monitor: Monitor
    raw: Raw
    server: uvicorn.Server

    def waiting(self) -> int:
        return sum(len(asked) for asked in self.monitor.broker._waiters.values())

    def on_its_loop(self, call: str, *arguments: str) -> None:
        assert self.monitor._loop is not None
        self.monitor._loop.call_soon_threadsafe(getattr(self.monitor, call), *arguments)


@pytest.fixture
def inside() -> Iterator[Inside]:
    monitor = Monitor()
    config = uvicorn.Config(
        create_app(monitor),
        host="127.0.0.1",
        port=0,
        http=FastLaneProtocol,
        log_level="error",
        timeout_graceful_shutdown=3,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started, "the server listens")
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        with Api(url) as api:
            PlayedLauncher(api, "inside").register()
        yield Inside(monitor, Raw(Served(url), "inside"), server)
    finally:
        server.should_exit = True
        thread.join()


def test_a_client_that_leaves_while_waiting_leaves_nothing(inside: Inside) -> None:
    with ExitStack() as stay:
        staying = inside.raw.wait(stay.enter_context(Line(inside.raw.served)))
        with ExitStack() as leave:
            for behind in range(20):
                line = inside.raw.wait(leave.enter_context(Line(inside.raw.served)))
                line.send(inside.raw.observe("never heard") * behind)
            wait_for(lambda: inside.waiting() == 21, "all wait")
        wait_for(lambda: inside.waiting() == 1, "nothing is left of those who went")
        with Api(inside.raw.served.url) as api:
            order(api, inside.raw)
            assert [each["id"] for each in staying.receive().directives] == [1]
            assert reason(api, inside.raw) == ""
    assert inside.waiting() == 0


def test_a_waiting_request_for_a_dropped_job_is_answered_as_on_the_ordinary_way(inside: Inside) -> None:
    other = Raw(inside.raw.served, inside.raw.job, EMPTY_HEADER)
    with Line(inside.raw.served) as short, Line(inside.raw.served) as ordinary:
        inside.raw.wait(short), other.wait(ordinary)
        short.send(LIVE)
        wait_for(lambda: inside.waiting() == 2, "both wait")
        inside.on_its_loop("drop", inside.raw.job)
        received, received_ordinarily = short.receive(), ordinary.receive()
        assert (received.status, received.content) == (received_ordinarily.status, received_ordinarily.content)
        assert (received.status, received.short) == (404, False)
        assert json.loads(short.receive().content)["status"] == "alive", "what was behind is answered behind it"
    assert inside.waiting() == 0


def test_a_waiting_request_is_answered_when_the_monitor_ends(tmp_path: Path) -> None:
    with running_monitor(tmp_path) as monitor, ExitStack() as lines:
        with Api(monitor.url) as api:
            PlayedLauncher(api, "j").register()
        waiting = [
            Raw(Served(monitor.url), "j", way).wait(lines.enter_context(Line(Served(monitor.url))), questions=questions)
            for way, questions in ((SHORT, 2), (SHORT, 1), (EMPTY_HEADER, 1))
        ]
        monitor.process.send_signal(signal.SIGTERM)
        for line in waiting:
            assert line.receive().directives == []
        assert waiting[0].receive().directives == [], "nor does the question behind wait"
        assert monitor.process.wait(30) == 0


def test_bytes_without_end_behind_a_question_end_its_connection(raw: Raw, api: Api, monitor: RunningMonitor) -> None:
    with Line(raw.served) as line, Line(raw.served) as other:
        raw.wait(line), raw.wait(other)
        with pytest.raises(ConnectionError):  # it is cut, not only left unread
            line.send(*[b"x" * MOST_PIPELINED] * 1_000)
        order(api, raw)
        assert [each["id"] for each in other.receive().directives] == [1]
    assert "Traceback" not in monitor.printed()


def test_a_few_bytes_behind_a_question_do_not(raw: Raw, api: Api) -> None:
    words = [raw.observe(f"word {number}") for number in range(100)]
    assert 10_000 < sum(map(len, words)) < MOST_PIPELINED
    with Line(raw.served) as line:
        raw.wait(line).send(*words)
        order(api, raw)
        assert [each["id"] for each in line.receive().directives] == [1]
        assert [line.receive().status for _ in words] == [204] * 100
    assert reason(api, raw) == "word 99"


def test_answers_that_are_not_read_do_not_pile_up(inside: Inside) -> None:
    raw = inside.raw
    with Api(raw.served.url) as api, Line(raw.served) as line:
        for limit in range(1, 21):
            api.change_policy("inside", section_timeouts={f"section {n}": limit for n in range(50)})
        for _ in range(60):  # 23 MB of answers, of which the kernel holds the first 6
            line.send(raw.ask() * 20)
            assert api.get("/livez").status_code == 200, "what was sent before has been read"
        assert (
            max(each.transport.get_write_buffer_size() for each in inside.server.server_state.connections) < 1_000_000
        )
