"""Requests that no lane takes wait in the line of their sender, who is not the proxy that passes them on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from rankwatch_monitor.http.fastlane.protocol import OTHERS, FastLaneProtocol
from rankwatch_monitor.http.fastlane.requests import sender_of
from rankwatch_monitor.ingest.work_queue import WorkQueue

PROXY, OTHER = ("127.0.0.1", 5), ("10.0.0.9", 5)
LATER = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n%s\r\n"


def test_a_proxy_on_this_machine_tells_whose_a_request_is() -> None:
    for client, more, expected in (
        (PROXY, b"X-Forwarded-For: forged, 10.0.0.7\r\n", "10.0.0.7"),
        (PROXY, b"X-Forwarded-For: forged\r\nx-forwarded-for:10.0.0.7\r\n", "10.0.0.7"),
        (PROXY, b"", "127.0.0.1"),
        (PROXY, b"\r\nX-Forwarded-For: in the body\r\n", "127.0.0.1"),
        (OTHER, b"X-Forwarded-For: forged\r\n", "10.0.0.9"),
    ):
        assert sender_of(LATER % more, client) == expected
    assert sender_of(b"GET / HTTP/1.1\r\nX-Forwarded-For: 10.0.0.7\r\n", PROXY) == "127.0.0.1", "its head is not whole"


class Noted(WorkQueue):
    """Notes in whose line work waits, and does it."""

    def __init__(self) -> None:
        super().__init__()
        self.senders: list[str] = []

    def submit(self, work: Callable[[], None], size: int = 0, sender: str = "") -> None:
        self.senders.append(sender)
        super().submit(work, size, sender)


async def app(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


def test_requests_behind_a_proxy_wait_each_in_the_line_of_its_sender() -> None:
    async def scene() -> list[str]:
        noted = Noted()
        config = uvicorn.Config(app, http=FastLaneProtocol, lifespan="off", log_level="critical")
        config.load()

        def protocol() -> FastLaneProtocol:
            return FastLaneProtocol(config=config, server_state=ServerState(), app_state={OTHERS: noted})

        server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            for sender in (b"10.0.0.7", b"10.0.0.8"):
                for part in (LATER % (b"X-Forwarded-For: %s\r\n" % sender) + b"abc", b"def\r\n\r\n"[:6]):
                    writer.write(part)
                    before = len(noted.senders)
                    while len(noted.senders) == before:
                        await asyncio.sleep(0.001)
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
            writer.close()
        return noted.senders

    assert asyncio.run(scene()) == ["10.0.0.7", "10.0.0.7", "10.0.0.8", "10.0.0.8"]
