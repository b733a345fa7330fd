"""All checks of one node; a new one is a file of this folder and a line here."""

from __future__ import annotations

from typing import Final

from rankwatch_launcher.checks import command, gpu, gpu_memory, host, network, nvlink, storage
from rankwatch_launcher.checks.check import Check

CHECKS: Final[tuple[Check, ...]] = (
    gpu.CHECK,
    gpu_memory.CHECK,
    nvlink.CHECK,
    network.CHECK,
    storage.CHECK,
    host.CHECK,
    command.CHECK,
)
