"""Finds the coordination store, or starts one: where the ranks meet before and between the iterations.

It is the launcher's where it offers one (``TORCHELASTIC_USE_AGENT_STORE``), else that of a process which rank 0
starts at MASTER_PORT (:mod:`rankwatch.inprocess.store_host`), and which serves all calls of wrapped functions in its
life.
"""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
import threading
from datetime import timedelta
from typing import Any, NamedTuple

from rankwatch.inprocess import store_host
from rankwatch.inprocess.state import InProcessError


class Meeting(NamedTuple):
    """Where the store is, and what the keys of this call begin with."""

    host: str
    port: int
    prefix: str


class StoreHost:
    """The process with the store."""

    def __init__(self, port: int, kept: float, patience: float) -> None:
        """Start it, and wait until it listens; all in seconds.

        Raises:
            InProcessError: it does not; the port may be in use.
        """
        self.port = port
        command = [sys.executable, "-c", f"from {store_host.__name__} import main; main()", str(port), str(kept)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        said: list[bytes] = []
        output = self._process.stdout
        assert output is not None, "it was started with a pipe"
        reader = threading.Thread(target=lambda: said.append(output.readline()), daemon=True)
        reader.start()
        reader.join(patience)
        if not said or said[0] != b"ready\n":
            self._process.kill()
            self._process.wait()
            raise InProcessError(
                f"the coordination store did not start at port {port}, which may be in use; store_port= names another"
            )
        output.close()

    def lives(self) -> bool:
        """Whether it still serves."""
        return self._process.poll() is None


_host: StoreHost | None = None


def find(*, world: int, rank: int, call: int, port: int | None, patience: float) -> Meeting:
    """Find the store, or start it on rank 0. ``call`` counts the calls of wrapped functions in this process.

    Raises:
        InProcessError: MASTER_ADDR or MASTER_PORT is missing, or the store does not start.
    """
    global _host
    address, its_port = os.environ.get("MASTER_ADDR"), port or int(os.environ.get("MASTER_PORT", "0"))
    if world == 1:
        address = address or "127.0.0.1"
        its_port = its_port or (_host.port if _host is not None else free_port())
    if not address or not its_port:
        raise InProcessError("MASTER_ADDR and MASTER_PORT must be set, as by torchrun, srun or `rankwatch run`")
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and port is None:
        # torchrun keeps that store over its restarts.
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return Meeting(address, its_port, f"{store_host.PREFIX}/{restart}/{call}")
    if rank == 0:
        if _host is None or not _host.lives() or _host.port != its_port:
            _host = StoreHost(its_port, patience, patience)
        distributed: Any = importlib.import_module("torch.distributed")
        client = distributed.TCPStore(
            "127.0.0.1", its_port, None, False, timeout=timedelta(seconds=patience), wait_for_workers=False
        )
        distributed.PrefixStore(store_host.PREFIX, client).set(store_host.CURRENT, str(call))
    return Meeting(address, its_port, f"{store_host.PREFIX}/{call}")


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
