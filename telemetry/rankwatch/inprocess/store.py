"""Locates the coordination store, or starts its process.

It is the launcher's where it offers one (``TORCHELASTIC_USE_AGENT_STORE``), else that of a process which rank 0 starts
at MASTER_PORT (:mod:`rankwatch.inprocess.store_server`) and which serves all calls of wrapped functions.
"""

from __future__ import annotations

import contextlib
import importlib
import ipaddress
import os
import socket
import subprocess
import threading
from datetime import timedelta
from typing import Any, Final, NamedTuple

from rankwatch.contract import env
from rankwatch.contract.interpreter import own_python
from rankwatch.inprocess import store_server
from rankwatch.inprocess.state import InProcessError

LOOPBACK: Final = {"localhost": "127.0.0.1", "127.0.0.1": "127.0.0.1", "::1": "::1"}
"""Where the store listens, by MASTER_ADDR, if no other host has ranks."""


class StoreAddress(NamedTuple):
    """Address of the store, and prefix of the keys of this call."""

    host: str
    port: int
    prefix: str


class StoreProcess:
    """A process that serves the store."""

    def __init__(self, port: int, idle_timeout: float, timeout: float, address: str = "") -> None:
        """Start it and wait until it listens, on ``address`` alone if one is given; durations in seconds.

        Raises:
            InProcessError: it does not listen within ``timeout``; the port may be in use.
        """
        self.port = port
        program = f"from {store_server.__name__} import main; main()"
        command = own_python("-c", program, str(port), str(idle_timeout), *([address] if address else ()))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        first_line: list[bytes] = []
        output = self._process.stdout
        assert output is not None, "it was started with a pipe"
        reader = threading.Thread(target=lambda: first_line.append(output.readline()), daemon=True)
        reader.start()
        reader.join(timeout)
        if not first_line or first_line[0] != b"ready\n":
            self._process.kill()
            self._process.wait()
            raise InProcessError(
                f"the coordination store did not start at port {port}, which may be in use; store_port= names another"
            )
        output.close()

    def is_running(self) -> bool:
        """Whether the process still serves."""
        return self._process.poll() is None


_process: StoreProcess | None = None


def locate(*, world: int, rank: int, call: int, port: int | None, timeout: float) -> StoreAddress:
    """Return the address of the store, which rank 0 starts if necessary.

    ``call`` is the number of this call among the calls of wrapped functions in this process.

    Raises:
        InProcessError: MASTER_ADDR or MASTER_PORT is missing, or the store does not start.
    """
    global _process
    address, store_port = os.environ.get("MASTER_ADDR"), port or int(os.environ.get("MASTER_PORT", "0"))
    if world == 1:
        address = address or "127.0.0.1"
        store_port = store_port or (_process.port if _process is not None else free_port())
    if not address or not store_port:
        raise InProcessError("MASTER_ADDR and MASTER_PORT must be set, as by torchrun, srun or `rankwatch run`")
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and port is None:
        # torchrun keeps this store across restarts, and counts these for each node: a node that joins late begins at 0.
        attempt = os.environ.get(env.ATTEMPT) or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return StoreAddress(address, store_port, f"{store_server.PREFIX}/{attempt}/{call}")
    if rank == 0:
        only = listens_on(address)
        if _process is None or not _process.is_running() or _process.port != store_port:
            _process = StoreProcess(store_port, timeout, timeout, only)
        distributed: Any = importlib.import_module("torch.distributed")
        client = distributed.TCPStore(
            only or "127.0.0.1", store_port, None, False, timeout=timedelta(seconds=timeout), wait_for_workers=False
        )
        distributed.PrefixStore(store_server.PREFIX, client).set(store_server.CURRENT, str(call))
    return StoreAddress(address, store_port, f"{store_server.PREFIX}/{call}")


def listens_on(host: str) -> str:
    """The one address on which a store for clients of ``host`` listens; empty: on all.

    Where it is one address of this machine, as a number or by name. Another name may be loopback here alone, have
    several addresses, or lead here through a service of a cluster.
    """
    if host in LOOPBACK:
        return LOOPBACK[host]
    own = set()
    try:
        for family, _, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family) as probe:
                probe.bind(address)
                own.add(str(address[0]))
    except OSError:
        return ""
    only = own.pop() if len(own) == 1 else ""
    return "" if only != host and ipaddress.ip_address(only or "::1").is_loopback else only


def free_port() -> int:
    """Return a port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
