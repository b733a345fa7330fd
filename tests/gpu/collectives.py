"""Collectives of one profiled step in two groups, with what the flight recorder tells of them; JSON on rank 0.

With several GPUs a rank has one of its own, over NCCL: kernels get groups and sizes. With one, the recorder is read.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

import torch
import torch.distributed as dist

from rankwatch.profiling import process_groups
from rankwatch.profiling.kineto import KinetoSource
from rankwatch.profiling.source import Source
from rankwatch.profiling.statistics import by_operation

ELEMENTS = 1 << 20


def main() -> None:
    """Profile one step of collectives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    cuda = parser.parse_args().device == "cuda"
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    ranks = dist.get_world_size()
    pair = dist.new_group(list(range(ranks)), group_desc="pair")
    tensor = torch.ones(ELEMENTS, device="cuda" if cuda else "cpu")
    parts = [torch.empty_like(tensor) for _ in range(ranks)]

    def step() -> None:
        for _ in range(3):
            dist.all_reduce(tensor)
        for _ in range(2):
            dist.all_reduce(tensor, group=pair)
        dist.all_gather(parts, tensor)
        if cuda:
            torch.cuda.synchronize()

    step()
    source: Source = KinetoSource(torch, on_device=cuda, end_window=lambda: None)
    if cuda:
        from rankwatch.profiling.cupti import CuptiSource

        source.close()
        source = CuptiSource()
    began = time.time_ns()
    source.start()
    step()
    raw, ended = source.stop(), time.time_ns()
    time.sleep(0.3)  # NCCL's watchdog looks every 100 ms, and only then knows how long one took
    trace = process_groups.with_groups(source.read(raw, 50_000), (began, ended))
    entries = list(process_groups.flight_recorder(binding=True))
    found = {
        "ranks": ranks,
        "recorded": len(entries),
        "timed by the recorder": sum("duration_ms" in entry for entry in entries),
        "groups": sorted({each.group for each in trace.collectives}),
        "operations": {name: each._asdict() for name, each in by_operation(trace.transfers).items()},
    }
    if dist.get_rank() == 0:
        print("collectives:", json.dumps(found), flush=True)
    source.close()
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
