"""Probes torch and the devices in a separate process: ``python -m rankwatch.cli.doctor.probe``.

Importing torch takes seconds and memory, a broken build can crash the process, and a faulty driver can block it for
minutes. Results are printed as lines of JSON, each at once, so that those before a crash or hang are kept.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from typing import Any

from rankwatch.contract.enums import KernelSource
from rankwatch.profiling import nvml, sampler

FLIGHT_RECORDER = "fr_trace_json"
"""The handler that the launcher asks; before 2.10 or 2.11 there is one for NCCL only."""
SLOWEST_ANSWER = 8
"""Attempts to read NVML: a driver without persistence mode takes seconds to initialise."""


def answers() -> Iterator[tuple[str, Any]]:
    """Yield results by name, the safest probe first."""
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
    """The launcher's check of torch, imported by name, as this package must not depend on the launcher."""
    try:
        torch_compat = importlib.import_module("rankwatch_launcher.torch_compat")
        return {
            "complaint": torch_compat.complaint(),
            "untested": torch_compat.untested(),
            "missing": torch_compat.missing_features(),
        }
    except (ImportError, AttributeError) as error:
        return {"complaint": f"the launcher cannot be imported: {error}", "untested": None, "missing": []}


def _control_plane() -> str | None:
    """Why torch cannot report the progress of collectives; None if it can."""
    try:
        bindings: Any = importlib.import_module("torch._C._distributed_c10d")
    except ImportError as error:
        return f"this torch is built without distributed support ({error})"
    if not hasattr(bindings, "_WorkerServer"):
        return "this torch has no worker control plane"
    names = getattr(bindings, "_get_handler_names", None)
    if names is not None and FLIGHT_RECORDER not in names():
        return "the control plane of this torch does not report collectives of all backends; 2.11 does"
    return None


def main() -> int:
    """Print the results, one per line."""
    for name, value in answers():
        sys.stdout.write(json.dumps({name: value}) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
