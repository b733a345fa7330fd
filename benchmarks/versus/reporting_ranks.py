"""A rank of the other side that makes straggler reports (``reports.py``): its generator, gloo, made-up statistics."""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from pathlib import Path

import torch.distributed as dist
from nvidia_resiliency_ext.straggler.reporting import ReportGenerator
from nvidia_resiliency_ext.straggler.statistics import Statistic

WARM_UP = 2
"""Reports that are not counted: in the first one the ranks agree on names."""


def statistics(rng: random.Random, seconds: float) -> dict[Statistic, float]:
    """One name's statistics in milliseconds, as their own collectors make them."""
    middle = 1e3 * seconds * rng.uniform(0.98, 1.02)
    return {
        Statistic.MIN: 0.97 * middle,
        Statistic.MAX: 1.05 * middle,
        Statistic.MED: middle,
        Statistic.AVG: middle,
        Statistic.STD: 0.01 * middle,
        Statistic.NUM: 48,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    for name in ("rounds", "kernels", "sections"):
        parser.add_argument(f"--{name}", type=int, required=True)
    asked = parser.parse_args()
    rank = int(os.environ["RANK"])
    rng = random.Random(rank)
    dist.init_process_group("gloo")
    generator = ReportGenerator(
        scores_to_compute=["relative_perf_scores", "individual_perf_scores"], gather_on_rank0=True, node_name="node"
    )
    wall, cpu = [], []
    for number in range(asked.rounds + WARM_UP):
        sections = {f"section_{s}": statistics(rng, 0.1) for s in range(asked.sections)}
        kernels = {f"kernel_{k}_<128,1,1>": statistics(rng, 1e-4) for k in range(asked.kernels)}
        dist.barrier()
        used, began = time.process_time(), time.perf_counter()
        report = generator.generate_report(sections, kernels)
        if number >= WARM_UP:
            wall.append(1e3 * (time.perf_counter() - began))
            cpu.append(1e3 * (time.process_time() - used))
        assert rank or len(report.gpu_relative_perf_scores) == dist.get_world_size()
    (asked.folder / f"rank-{rank}.json").write_text(json.dumps({"rank": rank, "wall": wall, "cpu": cpu}))
    dist.barrier()
    # gloo's threads may abort the interpreter's end, which has nothing to do with what is measured.
    os._exit(0)


if __name__ == "__main__":
    main()
