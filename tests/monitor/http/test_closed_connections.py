"""A connection that has ended leaves nothing behind: full collections of garbage are rare in a monitor."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from rankwatch_monitor.http.fastlane.protocol import FastLaneProtocol

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    del scope, receive
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


@contextlib.asynccontextmanager
async def serving(state: ServerState) -> AsyncIterator[tuple[str, int]]:
    config = uvicorn.Config(app, http=FastLaneProtocol, lifespan="off", log_level="critical")
    config.load()

    def protocol() -> FastLaneProtocol:
        return FastLaneProtocol(config=config, server_state=state, app_state={})

    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("sent", [b"", REQUEST], ids=["without a request", "after a response"])
def test_closed_connections_leave_nothing_to_the_collector_of_cycles(sent: bytes) -> None:
    state = ServerState()

    async def open_and_close() -> list[weakref.ref[Any]]:
        loop, clients = asyncio.get_running_loop(), [socket.socket() for _ in range(5)]
        async with serving(state) as address, asyncio.timeout(60):
            for client in clients:
                client.setblocking(False)
                await loop.sock_connect(client, address)
                await loop.sock_sendall(client, sent)
                if sent:
                    await loop.sock_recv(client, 4096)
            while len(state.connections) < len(clients):
                await asyncio.sleep(0.001)
            transports = [weakref.ref(each.transport) for each in state.connections]
            for client in clients:
                client.close()
            while state.connections:
                await asyncio.sleep(0.001)
        return transports

    transports = asyncio.run(open_and_close())
    assert len(transports) == 5
    assert [each() for each in transports] == [None] * 5
