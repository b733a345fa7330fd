"""A network cable in a process of its own: forwards TCP connections; SIGSTOP cuts it, SIGCONT mends it.

    python benchmarks/_cable.py FILE HOST:PORT [HOST:PORT ...]

For each address a port of loopback is opened that forwards to it; the ports are written to FILE as a JSON list. While
the process is stopped, the kernel accepts connections and bytes, and nothing arrives: what a host without a network
looks like from both sides.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path

CHUNK = 1 << 16


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(CHUNK):
            target.write(data)
            await target.drain()
    except OSError:
        pass
    finally:
        target.close()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
    try:
        there, back = await asyncio.open_connection(host, port)
    except OSError:
        writer.close()
        return
    await asyncio.gather(_copy(reader, back), _copy(there, writer))


async def main(ready: Path, addresses: list[str]) -> None:
    """Forward until killed."""
    ports = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        server = await asyncio.start_server(
            lambda r, w, host=host, port=int(port): _forward(r, w, host, port), "127.0.0.1", 0
        )
        ports.append(server.sockets[0].getsockname()[1])
    written = ready.with_suffix(".tmp")
    written.write_text(json.dumps(ports))
    os.replace(written, ready)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(Path(sys.argv[1]), sys.argv[2:]))
