"""Identity of the device that computed a result, comparable across processes and hosts."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Device:
    """A device and its host. A GPU is identified by its UUID on any host."""

    host: str
    name: str

    def is_same(self, other: Device) -> bool:
        """Whether both are the same hardware, as far as known."""
        if self.name.startswith("GPU-") and other.name.startswith("GPU-"):
            return self.name == other.name
        return self == other

    def __str__(self) -> str:
        return f"{self.name} of {self.host}"


def here(name: str | None = None) -> Device:
    """Return this process's device: ``name`` if given, else the current GPU's UUID, else the local rank."""
    return Device(socket.gethostname(), name or _gpu() or f"local rank {os.environ.get('LOCAL_RANK', '0')}")


def _gpu() -> str | None:
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_available():
        return None
    # A MIG slice or an older torch has no UUID of its own; use the device index.
    number = torch.cuda.current_device()
    uuid = getattr(torch.cuda.get_device_properties(number), "uuid", None)
    return f"GPU-{str(uuid).removeprefix('GPU-')}" if uuid is not None else f"cuda:{number}"
