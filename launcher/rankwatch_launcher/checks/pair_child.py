"""The process that measures: matrix products of its own, and an all-reduce with the ranks of a group. One line a round.

In: ``{"host", "port", "prefix", "rank", "size", "device", "nccl", "seconds"}``. Out: first the number of GPUs, then for
each round ``{"compute", "all_reduce"}`` in seconds, null what did not end in time; the first of them also at once.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from rankwatch_launcher.torch_compat import PrefixStore, TCPStore

CPU_SIZE: Final = 512
CPU_PRODUCTS: Final = 40
"""About 0.2 s on one core: longer than the period of a CPU quota."""
GPU_SIZE: Final = 8192
GPU_PRODUCTS: Final = 60
CPU_BYTES: Final = 1 << 20
GPU_BYTES: Final = 64 << 20
REPEATED: Final = 8
"""All-reduces at most; fewer where one takes long."""
ENOUGH_SECONDS: Final = 0.5


def compute(device: torch.device) -> float:
    """Seconds of a fixed number of matrix products."""
    gpu = device.type == "cuda"
    size, dtype = (GPU_SIZE, torch.bfloat16) if gpu else (CPU_SIZE, torch.float32)
    left = torch.ones(size, size, dtype=dtype, device=device)
    _ = left @ left
    _wait(device)
    began = time.perf_counter()
    for _ in range(GPU_PRODUCTS if gpu else CPU_PRODUCTS):
        left @ left
    _wait(device)
    return time.perf_counter() - began


def all_reduce(order: dict[str, Any], device: torch.device) -> float:
    """Seconds of one all-reduce in the group.

    Raises:
        RuntimeError: it failed, or did not end in time.
    """
    limit = timedelta(seconds=order["seconds"])
    store = TCPStore(order["host"], order["port"], is_master=False, wait_for_workers=False, timeout=limit)
    dist.init_process_group(
        "nccl" if order["nccl"] else "gloo",
        store=PrefixStore(order["prefix"], store),
        rank=order["rank"],
        world_size=order["size"],
        timeout=limit,
    )
    try:
        tensor = torch.ones((GPU_BYTES if device.type == "cuda" else CPU_BYTES) // 4, device=device)
        first = _timed(tensor, 1, device)  # makes the connections, too
        first = _timed(tensor, 1, device)
        longest = torch.tensor([first], device=device)
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)  # all must repeat it as often
        times = max(1, min(REPEATED, int(ENOUGH_SECONDS / max(float(longest), 1e-6))))
        return _timed(tensor, times, device)
    finally:
        with contextlib.suppress(RuntimeError, ValueError):
            dist.destroy_process_group()


def _timed(tensor: torch.Tensor, times: int, device: torch.device) -> float:
    began = time.perf_counter()
    for _ in range(times):
        dist.all_reduce(tensor)
    _wait(device)
    return (time.perf_counter() - began) / times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> int:
    """Measure for every line, until there is none."""
    torch.set_num_threads(1)
    _say({"gpus": torch.cuda.device_count() if torch.cuda.is_available() else 0})
    for line in sys.stdin:
        order = json.loads(line)
        device = torch.device("cuda", order["device"]) if order["nccl"] else torch.device("cpu")
        found: dict[str, Any] = {"prefix": order["prefix"], "compute": None, "all_reduce": None}
        try:
            if order["nccl"]:
                torch.cuda.set_device(device)
            began = time.perf_counter()
            found["compute"] = compute(device)
            _say({**found, "whole": False})
            left = max(1.0, order["seconds"] - (time.perf_counter() - began))
            found["all_reduce"] = all_reduce({**order, "seconds": left}, device)
        except RuntimeError as error:  # of torch: a device or a peer that fails is what is looked for
            sys.stderr.write(f"{error}\n")
        _say(found)
    return 0


def _say(content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
