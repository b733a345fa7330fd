"""What ranks of a training job agree on about a step, over their own process group.

This is no monitoring: whether a step is run again is part of the training, and all ranks have to do the same. In mode
``validate_results`` one number a rank is reduced (MAX) at the end of each run, in mode ``report_determinism_stats``
counts are gathered now and then, and in mode ``disabled`` no collective is ever issued.
Where torch.distributed is not in use, a rank agrees with itself.
"""

from __future__ import annotations

import ctypes
import io
import os
import sys
from typing import Any

from rankwatch.rerun.verdicts import Wish


def in_use() -> Any:
    """torch.distributed, if the script has a process group; else None."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def rank(group: Any = None) -> int:
    """This rank's number in the job."""
    distributed = in_use()
    if distributed is None:
        return int(os.environ.get("RANK", "0"))
    return int(distributed.get_rank(group))


def largest(wish: Wish, group: Any = None) -> Wish:
    """The largest wish of all ranks, the same on each: a collective of one number."""
    distributed = in_use()
    if distributed is None or distributed.get_world_size(group) == 1:
        return wish
    torch: Any = sys.modules["torch"]
    number = torch.tensor([int(wish)], dtype=torch.int32, device=_device(distributed, group))
    distributed.all_reduce(number, op=distributed.ReduceOp.MAX, group=group)
    return Wish(int(number.item()))


def gathered(value: Any, group: Any = None) -> list[Any] | None:
    """What every rank has, on the first rank of the group; None on all others: a collective."""
    distributed = in_use()
    if distributed is None or distributed.get_world_size(group) == 1:
        return [value]
    first = distributed.get_rank(group) == 0
    values: list[Any] | None = [None] * distributed.get_world_size(group) if first else None
    distributed.gather_object(value, values, group=group, group_dst=0)
    return values


def _device(distributed: Any, group: Any) -> str:
    """Where a tensor must be for this group: on the CPU if it can be, else on the current GPU."""
    backends = str(distributed.get_backend_config(group))
    if "cpu:" in backends:
        return "cpu"
    return f"cuda:{sys.modules['torch'].cuda.current_device()}"


def packed(state: Any) -> Any:
    """Any state as one tensor of bytes: every checkpoint format and every reader of tensors takes that."""
    torch: Any = sys.modules["torch"]
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def unpacked(data: Any) -> Any:
    """What was packed; what lay on a GPU lies on this process's current one."""
    torch: Any = sys.modules["torch"]

    def place(storage: Any, location: str) -> Any:
        return storage.cuda() if location.startswith("cuda") and torch.cuda.is_available() else storage

    # As trustworthy as the checkpoint it comes out of, and it holds the user's own objects.
    content = data.cpu().contiguous()
    written = ctypes.string_at(content.data_ptr(), content.numel())  # numpy need not be there
    return torch.load(io.BytesIO(written), map_location=place, weights_only=False)
