"""Bodies of senders without a right, and bodies above their limit: refused by the head, and never kept in memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import select
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from rankwatch_monitor.app import create_app
from rankwatch_monitor.http import request_gate
from rankwatch_monitor.http.auth import Tokens
from rankwatch_monitor.http.fastlane.requests import sender
from rankwatch_monitor.http.origins import Origins
from rankwatch_monitor.http.request_gate import LARGEST, LARGEST_EVIDENCE, RequestGate
from rankwatch_monitor.http.sessions import Sessions
from rankwatch_monitor.ingest import admission, json_body
from rankwatch_monitor.ingest.admission import Admission
from rankwatch_monitor.ingest.limits import Counters
from rankwatch_monitor.service.monitor import Monitor
from support.monitor_process import Api, RunningMonitor, running_monitor

TOKEN, INGEST = "control-secret", "ingest-secret"
MIB = 1024 * 1024
NODE = {"node": "n", "host": "h", "launcher_pid": 1, "local_world_size": 1}
JSON = {"Content-Type": "application/json"}
PATHS = ("policy", "actions", "observations", "evidence", "process-events", "nodes")
WAIT = 90.0


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMonitor]:
    flags = ("--token", TOKEN, "--ingest-token", INGEST)
    with running_monitor(tmp_path_factory.mktemp("guarded"), *flags) as monitor:
        with Api(monitor.url, TOKEN) as api:
            assert api.post("/api/v1/jobs/j/nodes", json=NODE).status_code == 200
        yield monitor


def head(path: str, length: str, token: str | None = None, host: str = "127.0.0.1") -> bytes:
    method = "PATCH" if path == "policy" else "POST"
    lines = [f"{method} /api/v1/jobs/j/{path} HTTP/1.1", f"host: {host}", "content-type: application/json", length]
    lines += [f"authorization: Bearer {token}"] if token else []
    return "\r\n".join([*lines, "", ""]).encode()


@contextlib.contextmanager
def connected(monitor: RunningMonitor) -> Iterator[socket.socket]:
    place = urlsplit(monitor.url)
    with socket.create_connection((place.hostname, place.port), timeout=WAIT) as line:
        yield line


def status(line: socket.socket) -> int:
    """The status of the response, without waiting for more of it."""
    received = b""
    while b"\r\n" not in received:
        more = line.recv(65_536)
        assert more, "the connection was closed without a response"
        received += more
    return int(received.split()[1])


def peak(monitor: RunningMonitor) -> int:
    """The largest resident memory so far, in bytes."""
    lines = Path(f"/proc/{monitor.pid}/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("length", ["content-length: 400000", "transfer-encoding: chunked"])
def test_without_a_token_a_request_is_refused_before_its_body_is_sent(
    guarded: RunningMonitor, path: str, length: str
) -> None:
    for token, expected in ((None, 401), ("guess", 401)):
        with connected(guarded) as line:
            line.sendall(head(path, length, token))
            assert status(line) == expected


@pytest.mark.parametrize("path", PATHS)
def test_a_declared_length_above_the_limit_is_refused_before_the_body_is_sent(
    guarded: RunningMonitor, path: str
) -> None:
    limit = LARGEST_EVIDENCE if path == "evidence" else LARGEST
    with connected(guarded) as line:
        line.sendall(head(path, f"content-length: {limit + 1}", TOKEN))
        assert status(line) == 413


@pytest.mark.parametrize("path", ["policy", "observations"])
def test_a_chunked_body_is_refused_at_its_limit(guarded: RunningMonitor, path: str) -> None:
    with connected(guarded) as line:
        line.sendall(head(path, "transfer-encoding: chunked", TOKEN))
        with contextlib.suppress(ConnectionError):  # refused in the middle of it
            for _ in range(40):
                line.sendall(b"10000\r\n" + b" " * 65_536 + b"\r\n")
        assert status(line) == 413


NAMES = b"{" + b",".join(b'"%x":0' % n for n in range(400_000)) + b"}"


@pytest.mark.parametrize("body", [b"[" + b"[]," * 400_000 + b"1]", b"[" + b"1," * 800_000 + b"1]", NAMES])
def test_evidence_of_many_values_is_refused_before_it_is_decoded(guarded: RunningMonitor, body: bytes) -> None:
    """Others would wait for two seconds."""
    with Api(guarded.url, TOKEN) as api:
        answer = api.post("/api/v1/jobs/j/evidence", content=body, headers={"Content-Type": "application/json"})
        assert (answer.status_code, "values" in answer.text) == (413, True)


@pytest.mark.parametrize("path", ["observations", "nodes", "logs", "process-events", "runs", "actions", "policy"])
def test_a_body_of_many_values_is_refused_before_it_is_decoded(guarded: RunningMonitor, path: str) -> None:
    with Api(guarded.url, TOKEN) as api:
        method = "PATCH" if path == "policy" else "POST"
        sent = b"[" + b"[]," * 200_000 + b"1]"
        answer = api.request(method, f"/api/v1/jobs/j/{path}", content=sent, headers=JSON)
        assert (answer.status_code, "values" in answer.text) == (413, True)


def test_evidence_of_many_names_is_refused_however_they_are_written(guarded: RunningMonitor) -> None:
    sent = b"{" + b",".join(b'"%x" :0' % n for n in range(100_000)) + b"}"
    with Api(guarded.url, TOKEN) as api:
        answer = api.post("/api/v1/jobs/j/evidence", content=sent, headers=JSON)
        assert (answer.status_code, "names" in answer.text) == (413, True)


STACK = {"rank": 0, "pid": 1, "method": "py-spy"}
INVALID: dict[str, dict[str, object]] = {
    "observations": {"node": "n", "attempt": 1, "ranks": [{}] * 1_000},
    "nodes": {**NODE, "facts": {str(n): [] for n in range(1_000)}},
    "process-events": {"events": [{}] * 1_000},
    "evidence": {"node": "n", "attempt": 1, "incident_id": None, "stacks": [{**STACK, "frames": [0] * 1_000}] * 9},
    "logs": {"node": "n", "request": "x", "parts": [{}] * 1_000},
    "actions": {"action": "restart", "ranks": ["x"] * 1_000},
}


@pytest.mark.parametrize("path", INVALID)
def test_of_many_wrong_entries_the_first_is_described(guarded: RunningMonitor, path: str) -> None:
    """A MiB of empty objects has more than a million errors, to describe which takes 20 s."""
    with Api(guarded.url, TOKEN) as api:
        answer = api.post(f"/api/v1/jobs/j/{path}", json=INVALID[path])
        assert answer.status_code == 422
        assert len(answer.json()["errors"]) <= 3, answer.text


def test_a_large_body_is_read_as_a_small_one() -> None:
    document = {"a": [1, -2.5, 1e300, None, True, "\u00e9\n"], "b": {"a": [{}, []]}}
    small = json.dumps(document).encode()
    large = json.dumps({**document, "c": "x" * json_body.SMALL}).encode()
    assert json_body.decode(large) == {**json_body.decode(small), "c": "x" * json_body.SMALL}
    for wrong in (small[:-1], b"\xff" + small, small.decode().encode("utf-16"), b"[" * 5_000):
        for padding in (b"", b" " * json_body.SMALL):
            with pytest.raises((ValueError, RecursionError)):
                json_body.decode(wrong + padding)


def test_a_sender_of_many_large_bodies_delays_others_by_one() -> None:
    order: list[str] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0)
        order.append(scope["client"][0])

    async def scene() -> None:
        counters = Counters()
        gate = RequestGate(
            application,
            tokens=Tokens(),
            sessions=Sessions(),
            origins=Origins(),
            counters=counters,
            admission=Admission(),
            refuse_evidence=lambda *_: lambda _: None,
        )

        async def ask(host: str) -> None:
            headers = [(b"content-length", b"%d" % LARGEST)]
            scope = {"type": "http", "method": "POST", "path": "/api/v1/jobs/j/nodes", "headers": headers}
            scope |= {"client": (host, 1), "query_string": b"", "http_version": "1.1"}

            async def receive() -> Message:
                return {"type": "http.request", "body": b" " * LARGEST, "more_body": False}

            async def send(_: Message) -> None:
                return None

            await gate(scope, receive, send)

        async with gate._one_large:
            asked = [asyncio.ensure_future(ask("many")) for _ in range(5)] + [asyncio.ensure_future(ask("one"))]
            while len(gate._large_by_sender) < 2:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
        await asyncio.gather(*asked)

    asyncio.run(scene())
    assert order.index("one") == 1


def test_evidence_of_as_many_short_frames_as_a_launcher_sends_is_decoded(guarded: RunningMonitor) -> None:
    frames = [{"function": "f", "file": "a.py", "line": 1}] * 92_000
    stack = {"rank": 0, "pid": 1, "method": "py-spy", "frames": frames}
    with Api(guarded.url, TOKEN) as api:
        sent = {"node": "n", "attempt": 1, "incident_id": None, "stacks": [stack]}
        assert len(json.dumps(sent)) > 4 * MIB
        assert api.post("/api/v1/jobs/none/evidence", json=sent).status_code == 404


def test_large_bodies_without_a_token_cost_no_memory_and_hold_nothing_up(guarded: RunningMonitor) -> None:
    before, answers = peak(guarded), []

    def send() -> None:
        with connected(guarded) as line:
            line.sendall(head("policy", f"content-length: {16 * MIB}"))
            answers.append(status(line))
            with contextlib.suppress(OSError):  # the monitor may close the connection
                line.sendall(b"[" + b"[]," * (16 * MIB // 3))

    threads = [threading.Thread(target=send, daemon=True) for _ in range(20)]
    for thread in threads:
        thread.start()
    with Api(guarded.url, TOKEN) as api:
        while any(thread.is_alive() for thread in threads):
            assert api.get("/livez", timeout=WAIT).status_code == 200
            for thread in threads:
                thread.join(0.01)
    assert answers == [401] * 20
    assert peak(guarded) - before < 64 * MIB, "20 bodies of 16 MiB were sent"


def test_bodies_of_launchers_are_counted_on_the_fast_lane(guarded: RunningMonitor) -> None:
    size, many = 500_000, admission.HELD_BYTES // 500_000 + 20
    with contextlib.ExitStack() as lines:
        opened = [lines.enter_context(connected(guarded)) for _ in range(many)]
        for line in opened:
            with contextlib.suppress(ConnectionError):  # refused in the middle of it
                line.sendall(head("process-events", f"content-length: {size}", INGEST) + b" " * (size - 1))
        answered, _, _ = select.select(opened, [], [], WAIT)
        assert status(answered[0]) == 429


def test_a_sender_behind_a_proxy_cannot_pose_as_many() -> None:
    proxy = ("127.0.0.1", 5)
    assert sender(proxy, {"x-forwarded-for": "forged, 10.0.0.7"}) == "10.0.0.7"
    assert sender(proxy, {"x-forwarded-for": ""}) == sender(proxy, {}) == "127.0.0.1"
    assert sender(("10.0.0.7", 5), {"x-forwarded-for": "forged"}) == "10.0.0.7"


def test_a_sender_cannot_hold_the_memory_for_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "HELD_BYTES", 100_000)

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b" " * 50_000

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(Monitor()))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            json = {"content-type": "application/json"}
            return await client.patch("/api/v1/jobs/j/policy", content=parts(), headers=json)

    answer = asyncio.run(ask())
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) > 0
    assert answer.headers["content-type"] == "application/problem+json"


def test_large_bodies_are_decoded_each_in_a_turn_of_the_loop_of_its_own() -> None:
    turn, decoded = 0, list[tuple[int, int]]()

    async def app(_: Scope, receive: Receive, __: Send) -> None:
        size = 0
        while True:
            message = await receive()
            size += len(message["body"])
            if not message["more_body"]:
                break
        decoded.append((turn, size))

    size = 3 * request_gate.LARGE

    async def one(gate: RequestGate) -> None:
        parts = [{"type": "http.request", "body": b" " * (size // 2), "more_body": more} for more in (True, False)]

        async def receive() -> Message:
            return parts.pop(0)

        headers = [(b"content-length", str(size).encode())]
        asked = {"type": "http", "path": "/api/v1/jobs/j/process-events", "method": "POST", "query_string": b""}
        await gate({**asked, "headers": headers, "client": None}, receive, lambda _: asyncio.sleep(0))

    async def scene() -> None:
        nonlocal turn
        gate = RequestGate(
            app, tokens=Tokens(), sessions=Sessions(), origins=Origins(), counters=Counters(), admission=Admission(),
            refuse_evidence=Monitor().refuse_evidence,
        )  # fmt: skip
        senders = [asyncio.ensure_future(one(gate)) for _ in range(4)]
        while not all(each.done() for each in senders):
            turn += 1
            await asyncio.sleep(0)
        await asyncio.gather(*senders)

    asyncio.run(scene())
    assert [each for _, each in decoded] == [size] * 4
    assert len({turn for turn, _ in decoded}) == 4


def test_a_reader_that_does_not_read_is_refused_more_and_keeps_no_other_reader_waiting() -> None:
    async def app(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(request_gate.MOST_UNSENT + 1), "more_body": False})

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def scene() -> None:
        gate = RequestGate(
            app, tokens=Tokens(), sessions=Sessions(), origins=Origins(), counters=Counters(), admission=Admission(),
            refuse_evidence=Monitor().refuse_evidence,
        )  # fmt: skip

        async def read(host: str, taken: asyncio.Event) -> tuple[int, list[int]]:
            """The status and the sizes of the pieces, of which the connection takes none before it is ``taken``."""
            status, sizes = 0, list[int]()

            async def send(message: Message) -> None:
                nonlocal status
                status = message.get("status", status)
                if "body" in message:
                    await taken.wait()
                    sizes.append(len(message["body"]))

            asked = {"type": "http", "path": "/api/v1/jobs/j", "method": "GET", "query_string": b"", "headers": []}
            await gate({**asked, "client": (host, 1)}, receive, send)
            return status, sizes

        later, now = asyncio.Event(), asyncio.Event()
        now.set()
        first = asyncio.ensure_future(read("10.0.0.1", later))
        while not gate._unsent:
            await asyncio.sleep(0)
        assert (await read("10.0.0.1", now))[0] == 429
        assert (await read("10.0.0.2", now))[0] == 200
        later.set()
        status, sizes = await first
        assert (status, sum(sizes)) == (200, request_gate.MOST_UNSENT + 1)
        assert max(sizes) == request_gate.PIECE
        assert (await read("10.0.0.1", now))[0] == 200
        assert not gate._unsent

    asyncio.run(scene())
