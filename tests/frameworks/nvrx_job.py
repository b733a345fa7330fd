"""A script for NVIDIA's resiliency extension, beside the real package: sections, timeouts, state; rank 1 stops once."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import nvidia_resiliency_ext.fault_tolerance as fault_tolerance
import nvidia_resiliency_ext.inprocess as in_process
import nvidia_resiliency_ext.shared_utils.health_check as health_check
import torch
import torch.distributed as dist

STEPS, HANG_IN = 60, 30


def main() -> None:
    folder = Path(sys.argv[1])
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    client = fault_tolerance.RankMonitorClient()
    client.init_workload_monitoring()
    if rank == 0:
        for each in (fault_tolerance, in_process, health_check):
            print(f"<{each.__name__} of {getattr(each, '__file__', None)}>", flush=True)
    client.start_section("init")
    saved, first = folder / "saved.pt", 0
    if saved.exists():
        content = torch.load(saved)
        client.load_state_dict(content["ft_state"])
        first = content["step"]
    client.end_section("init")
    for step in range(first, STEPS):
        client.start_section("step")
        if rank == 1 and attempt == 0 and step == HANG_IN:
            os.kill(os.getpid(), 19)
        dist.all_reduce(torch.ones(1000))
        client.end_section("step")
        if step % 10 == 9:
            client.start_section("checkpoint")
            if rank == 0:
                torch.save({"step": step + 1, "ft_state": client.state_dict()}, saved)
            dist.barrier()
            client.end_section("checkpoint")
    if rank == 0:
        print(f"<limits {json.dumps(dict(client.section_timeouts.section))}>", flush=True)
    client.calculate_and_set_section_timeouts(selected_sections=["step"], calc_out_of_section=False)
    client.shutdown_workload_monitoring()
    if rank == 0:
        print(f"<attempt {attempt}: from step {first}>", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
