"""Who this launcher is to the monitor and to the other launchers."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from rankwatch_launcher.schedulers import kubernetes, slurm


@dataclass(frozen=True, slots=True)
class Identity:
    """One launcher, from its start to its end."""

    hostname: str
    host: str
    """The node's name in its scheduler, which is what can be excluded; else the host's name."""
    name: str
    """Unique to this launcher."""

    @classmethod
    def of(cls, env: Mapping[str, str]) -> Identity:
        """That of this process."""
        hostname = socket.gethostname()
        host = slurm.node_name(env) or kubernetes.node_name(env) or hostname
        # A pod that replaces another has its host name and, like it, pid 1.
        return cls(hostname, host, f"{hostname}-{os.getpid()}-{secrets.token_hex(2)}")
