"""Ranks that all_reduce in every step, until rank 1 calls something else: ``mismatched.py barrier|group STEP``."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

import rankwatch


def main(other: str, at: int) -> None:
    rankwatch.init()
    with rankwatch.section("setup"):
        dist.init_process_group("gloo")
        rank = int(os.environ["RANK"])
        pair = dist.new_group([0, 1, 2, 3])
        dist.barrier()
    for step in range(100_000):
        with rankwatch.step(step):
            gradient = torch.ones(4)
            if rank == 1 and step == at:
                differ(other, gradient, pair)
            else:
                dist.all_reduce(gradient)  # most ranks


def differ(other: str, gradient: torch.Tensor, pair: dist.ProcessGroup) -> None:
    if other == "barrier":
        dist.barrier()  # other
    elif other == "group":
        dist.all_reduce(gradient, group=pair)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
