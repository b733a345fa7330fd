"""A connection that has ended leaves nothing behind: full collections of garbage are rare in a monitor."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import shutil
import socket
import ssl
import subprocess
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
async def serving(state: ServerState, tls: ssl.SSLContext | None) -> AsyncIterator[tuple[str, int]]:
    config = uvicorn.Config(app, http=FastLaneProtocol, lifespan="off", log_level="critical")
    config.load()

    def protocol() -> FastLaneProtocol:
        return FastLaneProtocol(config=config, server_state=state, app_state={})

    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield server.sockets[0].getsockname()


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The contexts of a server with a certificate of its own and of a client that trusts it."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the program openssl")
    folder = tmp_path_factory.mktemp("certificate")
    key, cert = str(folder / "key.pem"), str(folder / "cert.pem")
    kind = ["-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    name = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [openssl, "req", "-x509", *kind, *name, "-keyout", key, "-out", cert], check=True, capture_output=True
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    return server, ssl.create_default_context(cafile=cert)


def socket_transports(state: ServerState) -> list[weakref.ref[Any]]:
    """The transports of all connections: asyncio's own, and those of TLS over them."""
    transports = [each.transport for each in state.connections]
    inner = [each._ssl_protocol._transport for each in transports if hasattr(each, "_ssl_protocol")]
    return [weakref.ref(each) for each in (*transports, *inner)]


def abort_all(state: ServerState) -> None:
    for each in list(state.connections):
        each.transport.abort()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("sent", [b"", REQUEST], ids=["without a request", "after a response"])
@pytest.mark.parametrize("by_server", [False, True], ids=["closed by the client", "aborted by the server"])
def test_closed_tls_connections_leave_nothing_to_the_collector_of_cycles(
    certificate: tuple[ssl.SSLContext, ssl.SSLContext], sent: bytes, by_server: bool
) -> None:
    state = ServerState()

    async def open_and_close() -> list[weakref.ref[Any]]:
        clients = []
        async with serving(state, certificate[0]) as address, asyncio.timeout(60):
            for _ in range(5):
                reader, writer = await asyncio.open_connection(*address, ssl=certificate[1])
                clients.append(writer)
                writer.write(sent)
                if sent:
                    await reader.readuntil(b"\r\n\r\n")
            while len(state.connections) < len(clients):
                await asyncio.sleep(0.001)
            transports = socket_transports(state)
            if by_server:
                abort_all(state)
            for client in clients:
                client.close()
                with contextlib.suppress(OSError):
                    await client.wait_closed()
            while state.connections:
                await asyncio.sleep(0.001)
        return transports

    transports = asyncio.run(open_and_close())
    assert len(transports) == 10
    assert [each() for each in transports] == [None] * 10


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("sent", [b"", REQUEST], ids=["without a request", "after a response"])
def test_closed_connections_leave_nothing_to_the_collector_of_cycles(sent: bytes) -> None:
    state = ServerState()

    async def open_and_close() -> list[weakref.ref[Any]]:
        loop, clients = asyncio.get_running_loop(), [socket.socket() for _ in range(5)]
        async with serving(state, None) as address, asyncio.timeout(60):
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
