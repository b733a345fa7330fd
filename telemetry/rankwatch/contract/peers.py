"""Which functions of torch wait for the other ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from rankwatch.contract.messages import Frame
from rankwatch.contract.packages import package_of

BACKWARD: Final = "_engine_run_backward"
WAITING_FUNCTIONS: Final = frozenset(
    {
        "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all", "all_to_all_single",
        "barrier", "monitored_barrier", "broadcast", "broadcast_object_list", "reduce", "reduce_scatter",
        "reduce_scatter_tensor", "gather", "gather_object", "scatter", "recv", "send", "irecv", "batch_isend_irecv",
        "wait", "synchronize", BACKWARD,
    }
)  # fmt: skip
"""Functions in whose call a rank waits for its peers: torch.distributed's collectives, the wait for their work, the
synchronisation with a device, and autograd's engine, inside which DDP and FSDP wait for their gradients' reduction."""

NONE_LEAVES_FIRST: Final = frozenset(
    {
        "all_reduce", "all_gather", "all_gather_into_tensor", "all_to_all", "all_to_all_single", "barrier",
        "reduce_scatter", "reduce_scatter_tensor",
    }
)  # fmt: skip
"""Collectives that no rank completes before all have entered them."""
NO_PEERS: Final = re.compile(
    "torch/(_dynamo|_functorch|_inductor|distributed/checkpoint|distributed/elastic/multiprocessing|jit|multiprocessing"
    "|utils)/"
)
"""Where torch's functions of these names wait for processes of the rank, for a lock, or call what writes a checkpoint.
Those that wait for peers below them are on the stack themselves."""
COLLECTIVES: Final = NONE_LEAVES_FIRST | {"broadcast", "reduce", "gather", "scatter"}


def waiting_call(frames: Sequence[Frame], *, device: bool = True) -> Frame | None:
    """The innermost torch function on the stack that waits for peers, if there is one.

    The file must be torch's own: a user's ``wait()`` or ``send()`` does not count.

    Args:
        device: whether the process uses one, or may: the launch of any code's kernel in a backward pass then waits for
            it, and so for its peers. Without one autograd's engine waits for nobody while it runs code that is not
            torch's: a function's ``backward()`` or a hook.
    """
    for frame in frames:
        name = frame.function.rsplit(".", 1)[-1]
        named = name in WAITING_FUNCTIONS and package_of(frame.file) == "torch" and not NO_PEERS.search(frame.file)
        if named and (device or name != BACKWARD or not _called(frames)):
            return frame
    return None


def _called(frames: Sequence[Frame]) -> bool:
    """Whether the innermost function is Python that is not torch's."""
    file = frames[0].file
    return file.endswith((".py", ">")) and package_of(file) != "torch"


def waits_for_peers(frames: Sequence[Frame], *, device: bool = True) -> bool:
    """Whether a torch function that waits for peers is on the stack; see :func:`waiting_call`."""
    return waiting_call(frames, device=device) is not None
