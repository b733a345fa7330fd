"""Which sockets are connected with which, as the kernel tells: ``/proc/net`` and, for local ones, ``sock_diag``."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from rankwatch_launcher import procfs

_OPEN: Final = ("0A", "07")
"""States of a socket that listens, and of one for datagrams that is connected with nobody."""
_HEADER: Final = struct.Struct("=IHHII")
_REQUEST: Final = struct.Struct("=BBHIIIII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 4, 20, 1
_UDIAG_SHOW_PEER, _UNIX_DIAG_PEER, _UNIX_DIAG_SIZE, _ANY = 4, 2, 16, 0xFFFFFFFF
_TIME_LIMIT: Final = 0.2


class Connection(NamedTuple):
    """One line of ``/proc/net/tcp`` or ``/proc/net/udp``."""

    local: str
    remote: str
    accepts: bool
    """It is connected with nobody, and anybody may send to it."""
    inode: str


def connections(folder: Path) -> Iterator[Connection]:
    """Those of the network namespace with this ``/proc/PID/net``."""
    for name in ("tcp", "tcp6", "udp", "udp6"):
        for line in procfs.text(folder / name).splitlines()[1:]:
            words = line.split()
            if len(words) > 9:
                yield Connection(_address(words[1]), _address(words[2]), words[3] in _OPEN, words[9])


def unix_peer(inode: int) -> int | None:
    """The inode of the other end of a unix socket of this network namespace; 0: it is connected with nobody; None:
    there is no such socket, or the kernel does not tell.
    """
    body = _REQUEST.pack(socket.AF_UNIX, 0, 0, _ANY, inode, _UDIAG_SHOW_PEER, _ANY, _ANY)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(_TIME_LIMIT)
            kernel.send(_HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0) + body)
            answer = kernel.recv(8192)
    except OSError:
        return None
    if len(answer) < _HEADER.size or _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    at = _HEADER.size + _UNIX_DIAG_SIZE
    while at + _ATTRIBUTE.size <= len(answer):
        length, kind = _ATTRIBUTE.unpack_from(answer, at)
        if kind == _UNIX_DIAG_PEER:
            return int.from_bytes(answer[at + 4 : at + 8], "little")
        at += max(_ATTRIBUTE.size, length + 3 & ~3)
    return 0


def _address(text: str) -> str:
    """``0100007F:1F90`` as ``127.0.0.1:8080``: words of four bytes, each with its lowest first."""
    host, _, port = text.partition(":")
    data = b"".join(bytes.fromhex(host[i : i + 8])[::-1] for i in range(0, len(host), 8))
    if len(data) == 16 and data[:12] == bytes(10) + b"\xff\xff":
        data = data[12:]
    if len(data) == 4:
        return f"{'.'.join(map(str, data))}:{int(port, 16)}"
    groups = ":".join(f"{int.from_bytes(data[i : i + 2]):x}" for i in range(0, len(data), 2))
    return f"[{groups}]:{int(port, 16)}"
