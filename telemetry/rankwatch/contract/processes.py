"""Whether a process that a private file names still serves its address: it lives, and no other user has its port."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

_LISTENS: Final = "0A"
_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))

Address = IPv4Address | IPv6Address


def start_time(pid: int) -> str | None:
    """Start time in clock ticks since boot, by which processes that reuse a pid differ; None: it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[19] if fields[0] not in "ZX" else None


def serves(file: Path, url: str, pid: int, started: str) -> bool:
    """Whether what a private file names may be sent its token; the file of a process that has ended is removed.

    A pid is used again, and a port that is free again is taken by whoever wants to be sent the token.

    Raises:
        OSError: the file cannot be removed.
        ValueError: ``url`` is no address.
    """
    if start_time(pid) != started:
        file.unlink()
        return False
    return not _others_listen(url)


def _others_listen(url: str) -> bool:
    """Whether another user's socket accepts connections to an address of this host; False: the kernel does not tell."""
    parts = urlsplit(url)
    try:
        wanted = {ip_address(str(each[4][0])) for each in socket.getaddrinfo(parts.hostname, parts.port)}
    except OSError:
        return False
    listeners = list(_listeners(parts.port or 0))
    for address in wanted:
        exact = [uid for at, uid in listeners if at == address]
        if {*(exact or (uid for at, uid in listeners if at.is_unspecified))} - {os.geteuid()}:
            return True
    return False


def _listeners(port: int) -> Iterator[tuple[Address, int]]:
    """Addresses at which sockets of this network namespace listen on a port, each with the user of its socket."""
    for table in _TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for words in map(str.split, lines):
            host, _, number = words[1].partition(":")
            if words[3] == _LISTENS and int(number, 16) == port:
                yield _address(host), int(words[7])


def _address(host: str) -> Address:
    """``0100007F`` as 127.0.0.1: words of four bytes, each in this machine's order."""
    words = (int(host[at : at + 8], 16) for at in range(0, len(host), 8))
    found = ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))
    return getattr(found, "ipv4_mapped", None) or found
