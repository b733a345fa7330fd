"""Which device computed a result: what tells "the same GPU" from "another GPU" after a resume."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Device:
    """A device and the host it was found in. A GPU is known by its UUID, wherever it is plugged in."""

    host: str
    name: str

    def is_same(self, other: Device) -> bool:
        """Whether both are one piece of hardware, as far as can be known."""
        if self.name.startswith("GPU-") and other.name.startswith("GPU-"):
            return self.name == other.name
        return self == other

    def __str__(self) -> str:
        return f"{self.name} of {self.host}"


def here(name: str | None = None) -> Device:
    """This process's device: ``name`` if given, the current GPU's UUID, or the local rank where there is no GPU."""
    return Device(socket.gethostname(), name or _gpu() or f"local rank {os.environ.get('LOCAL_RANK', '0')}")


def _gpu() -> str | None:
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_available():
        return None
    # A MIG slice or an older torch shows no UUID of its own: host and number are what is left.
    number = torch.cuda.current_device()
    uuid = getattr(torch.cuda.get_device_properties(number), "uuid", None)
    return f"GPU-{str(uuid).removeprefix('GPU-')}" if uuid is not None else f"cuda:{number}"
