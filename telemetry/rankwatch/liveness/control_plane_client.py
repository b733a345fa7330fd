"""Asks torch's worker control plane, which :mod:`~rankwatch.liveness.torch_control_plane` serves, over a unix socket.

Native threads answer while the rank's main thread is stuck and, for the flight recorder, while the GIL is held; a
stopped process does not answer, so every call has a deadline.
"""

from __future__ import annotations

import http.client
import socket
import time
from pathlib import Path
from typing import Final

from rankwatch.liveness.torch_control_plane import process_and_user

FLIGHT_RECORDER: Final = "/handler/fr_trace_json"
MAX_BYTES: Final = 32 * 2**20
"""Limit on one answer. The flight recorder's 2,000 entries (torch's default) are about 1 MB."""

_CHUNK: Final = 2**16


def query(path: Path, what: str, until: float, owner: int | None = None, most: int = MAX_BYTES) -> bytes:
    """The answer of a control plane.

    Args:
        path: its socket.
        what: the handler.
        until: on the monotonic clock.
        owner: the user who named it, which may be able to reach less than this one: a process of that user listens.
        most: bytes of the answer.

    Raises:
        OSError: no answer in time, or another user listens.
        ValueError: the answer is an error, or too large.
    """
    connection = _UnixConnection(path, until, owner)
    try:
        connection.request("POST", what)
        response = connection.getresponse()
        found = bytearray()
        while chunk := response.read1(_CHUNK):
            found += chunk
            if len(found) > most:
                raise ValueError(f"the answer has more than {most} bytes")
            connection.set_remaining_timeout()
    except http.client.HTTPException as error:
        raise ValueError(f"invalid answer of the control plane: {error!r}") from None
    finally:
        connection.close()
    if response.status != 200:
        raise ValueError(f"the control plane answered {response.status}: {found[:100].decode(errors='replace')}")
    return bytes(found)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket with one deadline for all operations."""

    def __init__(self, path: Path, until: float, owner: int | None) -> None:
        super().__init__("localhost")
        self._path, self._until, self._owner = path, until, owner
        self._line = socket.socket(socket.AF_UNIX)  # http.client detaches its own when the answer begins

    def connect(self) -> None:
        self.set_remaining_timeout()
        self._line.connect(str(self._path))
        if self._owner is not None:
            _, user = process_and_user(self._line)
            if user != self._owner:
                raise PermissionError(f"a process of another user (uid {user}) listens at {self._path}")
        self.sock = self._line

    def close(self) -> None:
        super().close()
        self._line.close()

    def set_remaining_timeout(self) -> None:
        """Set the socket's timeout to the remaining time; raises ``TimeoutError`` (an OSError) when none is left."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        self._line.settimeout(left)
