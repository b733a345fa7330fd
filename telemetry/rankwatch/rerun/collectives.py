"""Collectives of the re-run state machine, over the process group of the training job.

All ranks must decide alike whether a step is run again, so this is part of the training, not of monitoring. Mode
``validate_results`` reduces one number per rank (MAX) at the end of each run; mode ``disabled`` issues no collective.
Without torch.distributed there is one rank.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from rankwatch.rerun.verdicts import Vote


def torch_distributed() -> Any:
    """Return torch.distributed if the script has a process group, else None."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def rank(group: Any = None) -> int:
    """Return this rank."""
    distributed = torch_distributed()
    if distributed is None:
        return int(os.environ.get("RANK", "0"))
    return int(distributed.get_rank(group))


def max_vote(vote: Vote, group: Any = None) -> Vote:
    """Return the largest vote of all ranks: a collective of one number."""
    distributed = torch_distributed()
    if distributed is None or distributed.get_world_size(group) == 1:
        return vote
    torch: Any = sys.modules["torch"]
    number = torch.tensor([int(vote)], dtype=torch.int32, device=_device(distributed, group))
    distributed.all_reduce(number, op=distributed.ReduceOp.MAX, group=group)
    return Vote(int(number.item()))


def gather(value: Any, group: Any = None) -> list[Any] | None:
    """Return the values of all ranks on the first rank of the group, None on the others: a collective."""
    distributed = torch_distributed()
    if distributed is None or distributed.get_world_size(group) == 1:
        return [value]
    first = distributed.get_rank(group) == 0
    values: list[Any] | None = [None] * distributed.get_world_size(group) if first else None
    distributed.gather_object(value, values, group=group, group_dst=0)
    return values


def _device(distributed: Any, group: Any) -> str:
    """Return the device of this group's tensors: the CPU if the backend supports it, else the current GPU."""
    backends = str(distributed.get_backend_config(group))
    if "cpu:" in backends:
        return "cpu"
    return f"cuda:{sys.modules['torch'].cuda.current_device()}"
