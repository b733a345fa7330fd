"""A uvicorn server in the process of the tests, which leaves no open transport behind."""

from __future__ import annotations

import asyncio
import socket

import uvicorn

QUIET_ROUNDS = 5


async def served(server: uvicorn.Server, listener: socket.socket | None = None) -> None:
    """Serve until the server should exit, then end the connections that are left.

    A page that comes back in the very moment of the end is accepted after the others were instructed to leave, and a
    stream may outlast the grace period; a transport that is open when the loop closes is a warning in a later test.
    """
    await server.serve(sockets=None if listener is None else [listener])
    quiet = 0
    while quiet < QUIET_ROUNDS:
        left = list(server.server_state.connections)
        for connection in left:
            connection.transport.abort()  # type: ignore[union-attr]
        quiet = 0 if left else quiet + 1
        await asyncio.sleep(0.001)
