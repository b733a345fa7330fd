"""What the kernel knows of the TCP sockets of this machine (``sock_diag``): their ends, and how many bytes have passed.

Neither ``send`` and ``recv`` nor what the network moves counts in ``/proc/PID/io``; and of a machine with very many
sockets ``/proc/net/tcp`` takes seconds to read, where the kernel finds those of one port by itself.
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
_ESTABLISHED: Final = 1 << 1
_LISTENING: Final = 1 << 10
_CONNECTED: Final = 0xFFF & ~(1 << 10 | 1 << 7 | 1 << 6)
"""All states but LISTEN, CLOSE and TIME_WAIT."""
_FILTER: Final = 1
"""INET_DIAG_REQ_BYTECODE."""
_OPERATION: Final = struct.Struct("=BBH")
_NEAR_AT_LEAST, _NEAR_AT_MOST, _FAR_AT_LEAST, _FAR_AT_MOST = 2, 3, 4, 5
"""INET_DIAG_BC_S_GE, S_LE, D_GE and D_LE."""
_ENDS: Final = struct.Struct(">HH16s16s")
_ENDS_AT, _MESSAGE, _INODE_AT, _BYTES_AT = 4, 72, 68, 120
"""Where the ends are in ``struct inet_diag_msg``, its size, where the inode is in it; where bytes acknowledged and
received are in tcp_info."""
_LARGEST: Final = 1 << 18
_SECONDS: Final = 0.5
_MAPPED: Final = b"\0" * 10 + b"\xff" * 2
"""The beginning of an IPv4 address that an IPv6 socket has."""


def bytes_moved() -> dict[str, int]:
    """Bytes sent and acknowledged, and received, by inode; empty where the kernel does not tell."""
    found: dict[str, int] = {}
    for _, message in _sockets(1 << (_INFO - 1), _CONNECTED, b""):
        inode = struct.unpack_from("=I", message, _INODE_AT)[0]
        if inode and (counted := _counted(message[_MESSAGE:])) is not None:
            found[str(inode)] = counted
    return found


def connections(*, near_port: int = 0, far_port: int = 0) -> Iterator[tuple[str, str, int]]:
    """Near end, far end and inode of each established connection of one port; nothing where the kernel does not tell.

    An end is the address and the port, the same from both sides, also where one has the IPv4 address as IPv6. Without a
    port: of all connections.
    """
    port = near_port or far_port
    least, most = (_NEAR_AT_LEAST, _NEAR_AT_MOST) if near_port else (_FAR_AT_LEAST, _FAR_AT_MOST)
    # Two comparisons, each with its operand in an operation of its own. What does not pass goes beyond the end.
    size = 4 * _OPERATION.size
    wanted = b"".join(
        _OPERATION.pack(code, 2 * _OPERATION.size, size - at + 4) + _OPERATION.pack(0, 0, port)
        for code, at in ((least, 0), (most, 2 * _OPERATION.size))
    )
    only = _ATTRIBUTE.pack(_ATTRIBUTE.size + size, _FILTER) + wanted if port else b""
    for family, message in _sockets(0, _ESTABLISHED, only):
        near_number, far_number, near, far = _ENDS.unpack_from(message, _ENDS_AT)
        inode = struct.unpack_from("=I", message, _INODE_AT)[0]
        yield _end(family, near, near_number), _end(family, far, far_number), inode


def listeners(port: int) -> Iterator[tuple[str, int]]:
    """The end and the inode of each socket that listens at a port; nothing where the kernel does not tell."""
    for family, message in _sockets(0, _LISTENING, b""):
        number, _, address, _ = _ENDS.unpack_from(message, _ENDS_AT)
        if number == port:
            yield _end(family, address, number), struct.unpack_from("=I", message, _INODE_AT)[0]


def address(end: str) -> tuple[str, int]:
    """Where an end of a connection can be reached from this machine; the loopback address for all addresses."""
    host, _, port = end.partition(":")
    given = bytes.fromhex(host)
    if not any(given):
        given = bytes([127, 0, 0, 1]) if len(given) == 4 else bytes(15) + b"\x01"
    return socket.inet_ntop(socket.AF_INET if len(given) == 4 else socket.AF_INET6, given), int(port, 16)


def end_of(address: tuple[str, int]) -> str:
    """An address as an end of a connection."""
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    given = socket.inet_pton(family, host)
    return _end(family, given.ljust(16, b"\0"), port)


def _end(family: int, address: bytes, port: int) -> str:
    if family == socket.AF_INET or address.startswith(_MAPPED):
        address = address[:4] if family == socket.AF_INET else address[len(_MAPPED) :]
    return f"{address.hex().upper()}:{port:04X}"


def _sockets(more: int, states: int, attributes: bytes) -> Iterator[tuple[int, bytes]]:
    """The family and the message of each socket in one of these states; ``more``: what the kernel adds to each."""
    with (
        contextlib.suppress(OSError, struct.error),
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as link,
    ):
        link.settimeout(_SECONDS)
        for family in (socket.AF_INET, socket.AF_INET6):
            request = _REQUEST.pack(family, socket.IPPROTO_TCP, more, states) + attributes
            link.send(_HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _DUMP, family, 0) + request)
            for message in _messages(link):
                yield family, message


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
