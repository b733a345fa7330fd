"""The processes that take part: how each is known to the others, and whether one on this host is still alive."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Member:
    """One process, by the rank that it started with."""

    rank: int
    node: str
    """What is lost as one with granularity ``node``: a host, or one launcher's part of it."""
    host: str
    """Unique to a set of processes that see each other's pids."""
    pid: int
    started: str
    """When the process began, as the kernel counts: tells it from another with its number."""
    address: str
    """Where the others reach a port that it opens."""

    def to_json(self) -> str:
        """Return it as text for the store."""
        return json.dumps(asdict(self))


def own(rank: int, store_host: str, store_port: int) -> Member:
    """Describe this process."""
    name = socket.gethostname()
    namespace = _read(lambda: os.readlink("/proc/self/ns/pid"))
    boot = _read(lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    node = f"{name}/{group}" if (group := os.environ.get("GROUP_RANK")) else name
    address = _address_towards(store_host, store_port)
    return Member(rank, node, f"{name}/{boot}/{namespace}", os.getpid(), _started(os.getpid()) or "", address)


def is_dead(member: Member) -> bool:
    """Whether a process of this host has ended; one that nobody has collected yet has."""
    return _started(member.pid) != member.started


def _started(pid: int) -> str | None:
    """When it began; None for one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[19] if fields[0] not in "ZX" else None


def _address_towards(host: str, port: int) -> str:
    """This host's address as the store sees it. Where that is its loopback, the store's host is this one."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            address = str(probe.getsockname()[0])
    except OSError:
        return host
    return host if address.startswith("127.") or address == "::1" else address


def _read(what: object) -> str:
    try:
        return str(what())  # type: ignore[operator]
    except OSError:
        return ""
