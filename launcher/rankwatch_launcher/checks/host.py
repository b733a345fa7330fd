"""The host: memory, shared memory, open files, and its clock against the monitor's."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Final

from rankwatch.contract.node_checks import CheckName, CheckReason
from rankwatch.monitor_client import clock_ahead
from rankwatch_launcher import procfs
from rankwatch_launcher.checks.check import Check, CheckedNode, Failed, Found, Passed

LITTLE_MEMORY: Final = 256 << 20
"""Bytes of memory with which not even one rank can import torch."""
LITTLE_SHARED_MEMORY: Final = 4 << 20
"""The slots of a node may not fit, and those of NCCL and of data loaders do not."""
FEW_FILES: Final = 256
CLOCK_APART: Final = 60.0
"""Seconds from which times in logs and checkpoints are worthless. A monitor that is busy answers late."""


def run(node: CheckedNode) -> Found:
    """Check them; a figure that cannot be read is left out."""
    figures: dict[str, str] = {}
    available = procfs.field(Path(node.proc, "meminfo"), "MemAvailable")
    if available is not None:
        figures["available"] = f"{available >> 10} MiB"
        if available * procfs.KIB < LITTLE_MEMORY:
            return Failed(CheckReason.LITTLE_MEMORY, {"found": figures["available"]})
    try:
        state = os.statvfs(node.shared_memory)
    except OSError:
        pass  # slots go elsewhere
    else:
        free = state.f_bavail * state.f_frsize
        figures["shared_memory"] = f"{free >> 20} MiB"
        if free < LITTLE_SHARED_MEMORY:
            found = {"found": figures["shared_memory"], "path": node.shared_memory}
            return Failed(CheckReason.LITTLE_SHARED_MEMORY, found)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    figures["open_files"] = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
    if soft != resource.RLIM_INFINITY and soft < FEW_FILES:
        return Failed(CheckReason.FEW_FILES, {"found": str(soft)})
    if node.monitor and (ahead := clock_ahead(node.monitor)) is not None:
        figures["clock"] = f"{ahead:+.0f} s"
        if abs(ahead) > CLOCK_APART:
            direction = "ahead of" if ahead > 0 else "behind"
            return Failed(CheckReason.CLOCK_OFF, {"seconds": f"{abs(ahead):.0f}", "direction": direction})
    return Passed(figures)


CHECK: Final = Check(CheckName.HOST, run, limit=5.0)
