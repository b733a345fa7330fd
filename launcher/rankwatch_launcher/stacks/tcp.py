"""How many bytes have passed through each TCP socket of this machine, as the kernel counts them (``sock_diag``).

Neither ``send`` and ``recv`` nor what the network moves counts in ``/proc/PID/io``.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from typing import Final

_SOCK_DIAG: Final = 4
"""NETLINK_SOCK_DIAG."""
_BY_FAMILY, _DONE, _ERROR, _DUMP = 20, 3, 2, 0x301
_HEADER: Final = struct.Struct("=IHHII")
_REQUEST: Final = struct.Struct("=BBBxI48x")
_ATTRIBUTE: Final = struct.Struct("=HH")
_INFO: Final = 2
"""INET_DIAG_INFO, whose answer is a ``struct tcp_info``."""
_CONNECTED: Final = 0xFFF & ~(1 << 10 | 1 << 7 | 1 << 6)
"""All states but LISTEN, CLOSE and TIME_WAIT."""
_MESSAGE, _INODE_AT, _BYTES_AT = 72, 68, 120
"""Size of ``struct inet_diag_msg``; where the inode is in it; where bytes acknowledged and received are in tcp_info."""
_LARGEST: Final = 1 << 18
_SECONDS: Final = 0.5


def bytes_moved() -> dict[str, int]:
    """Bytes sent and acknowledged, and received, by inode; empty where the kernel does not tell."""
    found: dict[str, int] = {}
    with (
        contextlib.suppress(OSError, struct.error),
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as link,
    ):
        link.settimeout(_SECONDS)
        for family in (socket.AF_INET, socket.AF_INET6):
            request = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), _CONNECTED)
            link.send(_HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _DUMP, family, 0) + request)
            for message in _messages(link):
                inode = struct.unpack_from("=I", message, _INODE_AT)[0]
                if inode and (counted := _counted(message[_MESSAGE:])) is not None:
                    found[str(inode)] = counted
    return found


def _messages(link: socket.socket) -> Iterator[bytes]:
    while data := link.recv(_LARGEST):
        at = 0
        while at + _HEADER.size <= len(data):
            length, kind, *_ = _HEADER.unpack_from(data, at)
            if kind in (_DONE, _ERROR) or length < _HEADER.size:
                return
            yield data[at + _HEADER.size : at + length]
            at += (length + 3) & ~3


def _counted(attributes: bytes) -> int | None:
    at = 0
    while at + _ATTRIBUTE.size <= len(attributes):
        length, kind = _ATTRIBUTE.unpack_from(attributes, at)
        if length < _ATTRIBUTE.size:
            return None
        if kind == _INFO and length - _ATTRIBUTE.size >= _BYTES_AT + 16:
            return int(sum(struct.unpack_from("=QQ", attributes, at + _ATTRIBUTE.size + _BYTES_AT)))
        at += (length + 3) & ~3
    return None
