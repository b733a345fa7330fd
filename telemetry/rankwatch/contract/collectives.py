"""Collective operations: what torch and NCCL call them, how many bytes one moves, and its bus bandwidth.

Sizes and factors are those of NCCL's own tests (``doc/PERFORMANCE.md`` of NVIDIA/nccl-tests), so that figures can be
compared with theirs: the algorithm bandwidth is the size of an operation over its time; times the factor it is the bus
bandwidth, which does not depend on the number of ranks and can be compared with what a link can do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

BARRIER: Final = "barrier"
POINT_TO_POINT: Final = ("send", "recv")

_ALIASES: Final[Mapping[str, str]] = {
    "allreduce_coalesced": "all_reduce",
    "sparse_allreduce": "all_reduce",
    "_all_gather_base": "all_gather",
    "_allgather_base": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_allv": "all_to_all",
    "all_reduce_barrier": BARRIER,
}
"""What backends of torch call an operation, where that is not its name."""

_FACTORS: Final[Mapping[str, int]] = {
    "all_reduce": 2,
    **dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"), 1),
    **dict.fromkeys(("broadcast", "reduce"), 0),
}
"""Times (n - 1) / n of n ranks, it is the factor of the bus bandwidth; 0: that is 1, as all has to pass one rank."""
OTHER: Final = "other"
"""An operation that is none of these."""
OPERATIONS: Final = (*_FACTORS, BARRIER, OTHER)
"""All names of operations that are reported."""

_ITEM_BYTES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("Byte", "Char", "Bool"), 1),
    **dict.fromkeys(("Short", "Half", "BFloat16", "UInt16"), 2),
    **dict.fromkeys(("Int", "Float", "UInt32", "ComplexHalf"), 4),
    **dict.fromkeys(("Long", "Double", "UInt64", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
"""Bytes of one element, by the name of c10's scalar type."""


def operation_of(recorded: str) -> str:
    """``all_gather`` for ``nccl:_all_gather_base``; one of :data:`OPERATIONS`."""
    name = recorded.partition(":")[2]
    name = _ALIASES.get(name, name)
    return name if name in _FACTORS or name == BARRIER else OTHER


def is_point_to_point(recorded: str) -> bool:
    """Whether it is a ``gloo:send`` or ``nccl:recv 1<-0``."""
    return recorded.partition(":")[2].startswith(POINT_TO_POINT)


def tensor_bytes(shapes: list[list[int]], types: list[str]) -> int:
    """Bytes of tensors; 0: unknown, since torch has a type that this module does not know."""
    total = 0
    for shape, kind in zip(shapes, types, strict=False):
        size = 1 if kind.startswith(("Float8", "Float4")) else _ITEM_BYTES.get(kind, 0)
        for each in shape:
            size *= each
        if not size and 0 not in shape:
            return 0
        total += size
    return total


def size_of(operation: str, ranks: int, given: int, received: int) -> int:
    """The size of an operation, as NCCL's tests count it: that of the whole array.

    Args:
        operation: one of :data:`OPERATIONS`.
        given: bytes of this rank's input.
        received: bytes of its output.
    """
    if operation in ("all_gather", "gather"):
        return given * ranks
    if operation == "scatter":
        return received * ranks
    return given if operation in _FACTORS else 0


def bus_factor(operation: str, ranks: int) -> float:
    """By which the algorithm bandwidth is multiplied to be the bus bandwidth; 0: there is none."""
    if operation not in _FACTORS or ranks < 2:
        return 0.0
    return _FACTORS[operation] * (ranks - 1) / ranks or 1.0


def series(operation: str, group: str) -> str:
    """The name under which the figures of an operation in a group are sent."""
    return f"{operation} {group}"


def parsed(name: str) -> tuple[str, str]:
    """Operation and group of a :func:`series`; an operation that is not known is :data:`OTHER`."""
    operation, _, group = name.partition(" ")
    return operation if operation in OPERATIONS else OTHER, group
