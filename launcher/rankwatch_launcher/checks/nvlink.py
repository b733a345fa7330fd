"""NVLink: links that were active are, their error counters, and the fabric of NVSwitches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from rankwatch.contract.node_checks import CheckName, CheckReason
from rankwatch_launcher.checks.check import Check, CheckedNode, Failed, Found, Passed, Skipped
from rankwatch_launcher.checks.gpu import Gpus, opened

MAX_LINKS: Final = 18
FABRIC_STATES: Final = {1: "not started", 2: "still in progress"}
FABRIC_DONE: Final = 3
RISES: Final = {"recovery": 1, "replay": 1000}
"""Error counters, and from which rise in an hour a link counts as faulty: a recovery stops the traffic, a replay costs
one packet."""


def run(node: CheckedNode) -> Found:
    """Check all visible GPUs; the first fault is the result."""
    gpus = opened()
    if isinstance(gpus, Failed):
        return Skipped(CheckReason.NOT_READABLE, {"what": "NVLink", "error": ""})  # told by the check of the GPUs
    if isinstance(gpus, Skipped):
        return gpus
    counters: dict[str, int] = {}
    faults: list[Failed] = []
    for index, handle in enumerate(gpus.handles):
        try:
            faults += _faults(node, gpus, handle, str(index), counters)
        except gpus.nvml.NVMLError:
            continue  # lost: told by the check of the GPUs
    if faults:
        return Failed(faults[0].reason, faults[0].evidence, counters)
    active = sum(value for name, value in counters.items() if name.endswith(" nvlinks"))
    if not active:
        return Skipped(CheckReason.NOTHING_HERE, {"what": "NVLink"})
    return Passed({"links": str(active)}, counters)


def _faults(node: CheckedNode, gpus: Gpus, handle: Any, gpu: str, counters: dict[str, int]) -> Iterator[Failed]:
    nvml = gpus.nvml
    identity = nvml.nvmlDeviceGetUUID(handle)
    links = [link for link in range(MAX_LINKS) if gpus.ask(partial(nvml.nvmlDeviceGetNvLinkState, handle, link)) == 1]
    counters[f"{identity} nvlinks"] = len(links)
    before = node.last.get(f"{identity} nvlinks", 0)
    if len(links) < before:
        counts = {"active": str(len(links)), "expected": str(before), "compared": "at the last check"}
        yield Failed(CheckReason.LINK_INACTIVE, {"gpu": gpu, **counts})
    yield from _fabric(gpus, handle, gpu)
    kinds = {"recovery": nvml.NVML_NVLINK_ERROR_DL_RECOVERY, "replay": nvml.NVML_NVLINK_ERROR_DL_REPLAY}
    hours = max(1.0, node.last_age / 3600)
    for link in links:
        for name, kind in kinds.items():
            count = gpus.ask(partial(nvml.nvmlDeviceGetNvLinkErrorCounter, handle, link, kind))
            if count is None:
                continue
            counter = f"{identity} nvlink {link} {name}"
            counters[counter] = count
            rise = node.rise(counter, count)
            if rise >= (RISES[name] if RISES[name] == 1 else RISES[name] * hours):
                yield Failed(
                    CheckReason.LINK_ERRORS, {"gpu": gpu, "link": str(link), "counter": name, "count": str(rise)}
                )


def _fabric(gpus: Gpus, handle: Any, gpu: str) -> Iterator[Failed]:
    """The registration with the fabric manager, without which CUDA does not start on an NVSwitch system."""
    info = gpus.fabric(handle)
    if info is None:
        return
    # A virtual machine with one GPU of a board needs no fabric, and has none.
    if info.state in FABRIC_STATES and len(gpus.handles) > 1:
        yield Failed(CheckReason.FABRIC_NOT_READY, {"gpu": gpu, "fabric": FABRIC_STATES[info.state]})
    if info.state == FABRIC_DONE and info.status != 0:
        yield Failed(CheckReason.FABRIC_FAILED, {"gpu": gpu, "status": str(info.status)})


CHECK: Final = Check(CheckName.NVLINK, run, limit=20.0)
