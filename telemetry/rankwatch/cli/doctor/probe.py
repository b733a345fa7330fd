"""What the doctor asks torch and the devices, in a process of its own: ``python -m rankwatch.cli.doctor.probe``.

Importing torch takes seconds and memory, a broken build can end the process that imports it, and a sick driver can keep
it for minutes. None of this must happen to whoever asks, so the answers come as lines of JSON, each as soon as it is
known: what was answered before a probe died or got stuck still counts.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from typing import Any

from rankwatch.contract.enums import KernelSource
from rankwatch.profiling import nvml, sampler

SLOWEST_ANSWER = 8
"""Times that NVML is asked again while it wakes up: a driver without persistence takes seconds."""


def answers() -> Iterator[tuple[str, Any]]:
    """One thing after the other, the safest first."""
    yield "driver", nvml.driver_present()
    yield "nvml", _nvml()
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        yield "torch_missing", str(error)
        return
    yield "torch", str(torch.__version__)
    yield "launcher", _launcher()
    yield "control_plane", _control_plane()
    if torch.cuda.is_available():
        torch.cuda.init()
        yield "gpus", torch.cuda.device_count()
    made = sampler.choose_source(KernelSource.AUTO, torch, lambda: None)
    yield "kernels", {"source": made.source.name if made.source else None, "reason": made.reason}


def _nvml() -> dict[str, Any]:
    devices = nvml.Devices(0)
    for _ in range(SLOWEST_ANSWER):
        found = devices.read()
        if found is not None:
            return {"metrics": len(found), "reason": None}
    return {"metrics": 0, "reason": devices.reason}


def _launcher() -> dict[str, Any]:
    """What the launcher says of this torch. By its name: the rank side imports nothing of the launcher."""
    try:
        torch_compat = importlib.import_module("rankwatch_launcher.torch_compat")
        return {
            "complaint": torch_compat.complaint(),
            "standby": torch_compat.prewarm_complaint(),
            "supported": torch_compat.SUPPORTED,
        }
    except (ImportError, AttributeError) as error:
        return {"complaint": f"the launcher cannot be imported: {error}", "standby": None, "supported": []}


def _control_plane() -> str | None:
    """Why torch cannot tell how far its collectives have come; None when it can."""
    try:
        bindings: Any = importlib.import_module("torch._C._distributed_c10d")
    except ImportError as error:
        return f"this torch is built without distributed support ({error})"
    return None if hasattr(bindings, "_WorkerServer") else "this torch has no worker control plane"


def main() -> int:
    """Print the answers, one a line."""
    for name, value in answers():
        sys.stdout.write(json.dumps({name: value}) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
