"""What this host's kernel knows of the launchers' connections to the store, and of its own network links.

A launcher that ends closes its connections, also when it is killed, and a host that starts again resets them. Those
over a link that is cut stay open on both sides, and go on when it is back. A host without power looks like a cut link.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from rankwatch_launcher.coordination.membership import Member

_ESTABLISHED: Final = "01"
_MAPPED: Final = "0000000000000000FFFF0000"
"""How /proc/net/tcp6 writes the first 12 bytes of an IPv4 address."""
_LINKS: Final = Path("/sys/class/net")


class Connections:
    """The launchers' connections to a store that this process holds."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._seen: set[str] = set()

    def ended(self, members: Iterable[Member]) -> set[str]:
        """Names of launchers whose connections were seen open here, and are open no longer.

        Behind address translation they are never seen.
        """
        open_ = {far for _, far, port, _ in _established() if port == self._port}
        ended = set()
        for member in members:
            if not open_.isdisjoint(member.connections):
                self._seen.add(member.node)
            elif member.node in self._seen:
                ended.add(member.node)
        return ended


def own_connections(port: int) -> tuple[str, ...]:
    """This process's ends of its connections to a port, as the other host's kernel names them."""
    own = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            own.add(os.readlink(descriptor))
    return tuple(near for near, far, _, inode in _established() if _port(far) == port and f"socket:[{inode}]" in own)


def links_with_carrier() -> frozenset[str]:
    """This host's network links that are connected to something."""
    found = set()
    with contextlib.suppress(OSError):
        for link in _LINKS.iterdir():
            with contextlib.suppress(OSError):  # a link that is switched off has no carrier to read
                if (link / "carrier").read_text().strip() == "1" and link.name != "lo":
                    found.add(link.name)
    return frozenset(found)


def _established() -> Iterator[tuple[str, str, int, str]]:
    """Near end, far end, near port and inode of each established TCP connection; nothing where that is not readable."""
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        with contextlib.suppress(OSError), open(table) as file:
            for line in file.readlines()[1:]:
                row = line.split()
                if row[3] == _ESTABLISHED:
                    yield _end(row[1]), _end(row[2]), _port(row[1]), row[9]


def _end(text: str) -> str:
    return text.removeprefix(_MAPPED)


def _port(end: str) -> int:
    return int(end.rpartition(":")[2], 16)
