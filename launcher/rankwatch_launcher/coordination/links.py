"""What this host's kernel knows of the launchers' connections to the store, and of its own network links.

A launcher that ends closes its connections, also when it is killed, and a host that starts again resets them. Those
over a link that is cut stay open on both sides, and go on when it is back. A host without power looks like a cut link.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rankwatch_launcher import procfs, tcp
from rankwatch_launcher.coordination.membership import Member

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
        open_ = {far for _, far, _ in tcp.connections(near_port=self._port)}
        ended = set()
        for member in members:
            if not open_.isdisjoint(member.connections):
                self._seen.add(member.node)
            elif member.node in self._seen:
                ended.add(member.node)
        return ended


def own_connections(port: int) -> tuple[str, ...]:
    """This process's ends of its connections to a port, as the other host's kernel names them."""
    own = procfs.sockets()
    return tuple(near for near, _, inode in tcp.connections(far_port=port) if inode in own)


def links_with_carrier() -> frozenset[str]:
    """This host's network links that are connected to something."""
    found = set()
    with contextlib.suppress(OSError):
        for link in _LINKS.iterdir():
            with contextlib.suppress(OSError):  # a link that is switched off has no carrier to read
                if (link / "carrier").read_text().strip() == "1" and link.name != "lo":
                    found.add(link.name)
    return frozenset(found)
