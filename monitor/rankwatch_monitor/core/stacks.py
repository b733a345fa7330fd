"""Stacks of many ranks, grouped: "15 ranks here, 1 there"."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from rankwatch.wire.control import Frame, RankStack

WAITING_FUNCTIONS: Final = frozenset(
    {
        "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all", "all_to_all_single",
        "barrier", "monitored_barrier", "broadcast", "broadcast_object_list", "reduce", "reduce_scatter",
        "reduce_scatter_tensor", "gather", "gather_object", "scatter", "recv", "send", "irecv", "batch_isend_irecv",
        "wait", "synchronize", "_engine_run_backward",
    }
)  # fmt: skip
"""Functions in whose call a rank waits for its peers: torch.distributed's collectives, the wait for their work, the
synchronisation with a device, and autograd's engine, inside which DDP and FSDP wait for their gradients' reduction."""


class StackGroup(NamedTuple):
    """Ranks whose main threads stand in the same functions. Frames are those of the lowest rank, innermost first."""

    ranks: tuple[int, ...]
    frames: tuple[Frame, ...]
    process_state: str

    @property
    def label(self) -> str:
        """``rank 2`` or ``3 ranks``."""
        return f"rank {self.ranks[0]}" if len(self.ranks) == 1 else f"{len(self.ranks)} ranks"

    @property
    def waits(self) -> bool:
        """The ranks stand in a call that waits for peers."""
        return waits_for_peers(self.frames)


def waits_for_peers(frames: Sequence[Frame]) -> bool:
    """Whether a torch function that waits for peers is on the stack.

    The file must be torch's own: a user's ``wait()`` or ``send()`` says nothing.
    """
    return any(
        frame.function.rsplit(".", 1)[-1] in WAITING_FUNCTIONS and "torch" in frame.file.replace("\\", "/").split("/")
        for frame in frames
    )


def group(stacks: Iterable[RankStack]) -> list[StackGroup]:
    """Group stacks by the functions on them, line numbers aside; smallest group first, since it is the odd one.

    Stacks that could not be had are left out.
    """
    by_place: dict[tuple[tuple[str, str], ...], list[RankStack]] = {}
    for stack in sorted(stacks, key=lambda s: s.rank):
        if stack.frames:
            by_place.setdefault(tuple((f.function, f.file) for f in stack.frames), []).append(stack)
    groups = [
        StackGroup(tuple(s.rank for s in members), tuple(members[0].frames), str(members[0].process_state))
        for members in by_place.values()
    ]
    return sorted(groups, key=lambda g: (len(g.ranks), g.ranks))
