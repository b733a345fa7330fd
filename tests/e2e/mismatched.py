"""Ranks that all_reduce in every step, until rank 1 calls another: ``mismatched.py barrier|group|order STEP``."""

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
        couple = dist.new_group([0, 1])
        dist.barrier()
    for step in range(100_000):
        with rankwatch.step(step):
            gradient = torch.ones(4)
            if other == "order":
                reduce_twice(gradient, couple if rank < 2 else None, first=rank == 1 and step == at)
            elif rank == 1 and step == at:
                differ(other, gradient, pair)
            else:
                dist.all_reduce(gradient)  # most ranks


def reduce_twice(gradient: torch.Tensor, couple: dist.ProcessGroup | None, *, first: bool) -> None:
    if first:
        dist.all_reduce(gradient)  # too early
    if couple is not None:
        dist.all_reduce(gradient, group=couple)
    if not first:
        dist.all_reduce(gradient)


def differ(other: str, gradient: torch.Tensor, pair: dist.ProcessGroup) -> None:
    if other == "barrier":
        dist.barrier()  # other
    elif other == "group":
        dist.all_reduce(gradient, group=pair)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
