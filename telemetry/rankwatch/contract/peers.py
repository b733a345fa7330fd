"""Which functions of torch wait for the other ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rankwatch.contract.messages import Frame
from rankwatch.contract.packages import package_of

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


def waiting_call(frames: Sequence[Frame]) -> Frame | None:
    """The innermost torch function on the stack that waits for peers, if there is one.

    The file must be torch's own: a user's ``wait()`` or ``send()`` does not count.
    """
    for frame in frames:
        named = frame.function.rsplit(".", 1)[-1] in WAITING_FUNCTIONS
        if named and package_of(frame.file) == "torch":
            return frame
    return None


def waits_for_peers(frames: Sequence[Frame]) -> bool:
    """Whether a torch function that waits for peers is on the stack; see :func:`waiting_call`."""
    return waiting_call(frames) is not None
