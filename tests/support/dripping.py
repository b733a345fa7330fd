"""A peer that answers each request by the byte, for seconds: what waits for a whole answer waits as long."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

BEGUN = (b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n")
"""What it sends at once, before the bytes."""
_PAUSE = 0.05


@contextlib.contextmanager
def dripping(begun: bytes, *, count: int = 100) -> Iterator[tuple[str, list[bytes]]]:
    """Its address, and the requests to which all ``count`` bytes were sent: nobody may wait for so many."""
    answered: list[bytes] = []
    done = threading.Event()

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            request = connection.recv(65536)
            connection.sendall(begun)
            for _ in range(count):
                connection.sendall(b"x")
                if done.wait(_PAUSE):
                    return
            answered.append(request)

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not done.is_set():
                connection, _ = listener.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", answered
        finally:
            done.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
