"""The processes of the job: how each identifies itself to the others, and whether one on this host is alive."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from rankwatch.contract.processes import start_time


@dataclass(frozen=True, slots=True)
class RankProcess:
    """One process, by its initial rank."""

    rank: int
    node: str
    """The unit that is lost with granularity ``node``: a host, or one launcher's part of it."""
    host: str
    """Equal for processes of the same boot and pid namespace, which see each other's pids."""
    pid: int
    started: str
    """Start time in clock ticks since boot; distinguishes processes that reuse a pid."""
    address: str
    """Address at which other ranks reach this process."""


def own(rank: int, store_host: str, store_port: int) -> RankProcess:
    """Describe this process."""
    name = socket.gethostname()
    namespace = _read(lambda: os.readlink("/proc/self/ns/pid"))
    boot = _read(lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    node = f"{name}/{group}" if (group := os.environ.get("GROUP_RANK")) else name
    address = _address_towards(store_host, store_port)
    return RankProcess(rank, node, f"{name}/{boot}/{namespace}", os.getpid(), start_time(os.getpid()) or "", address)


def is_dead(member: RankProcess) -> bool:
    """Whether a process of this host has ended; a zombie has."""
    return start_time(member.pid) != member.started


def _address_towards(host: str, port: int) -> str:
    """Return this host's address on the route to the store; on the store's own host, the store's address."""
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
