"""Assigns the collectives of a profiled step to process groups and sizes, from torch's flight recorder.

========  ============================================================================================================
host      gloo's events have a name and a time: the n-th of a name is the recorder's n-th entry of that name
device    kernels have a kind and a stream, the recorder's entries a kind, a group and the time of their call. Those
          of one kind are the same in the same order where the step has as many of both, and one stream or one group;
          with several, where each stream has as many as exactly one group. Else they keep the stream's name
timing    with ``TORCH_NCCL_ENABLE_TIMING=1`` entries have ``duration_ms``, which NCCL's events measure: no kernel is
          needed for it
========  ============================================================================================================

The recorder's own times are those at which a watchdog looks, every 100 ms, and are not used. Sends and receives have no
bandwidth here: each waits for one peer.

The dump is asked from torch's control plane, whose threads make it without the GIL, and read in small batches. Torch's
binding holds the GIL for 20 ms (2,000 entries): without a control plane it is used only where there are several groups,
which nothing else tells apart.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from rankwatch.contract import collectives as operations
from rankwatch.contract.semconv import POINT_TO_POINT
from rankwatch.liveness import torch_control_plane
from rankwatch.liveness.control_plane_client import FLIGHT_RECORDER, query
from rankwatch.profiling.source import Collective, Interval, Trace, Transfer

DEFAULT_GROUP: Final = "default_pg"
UNKNOWN_GROUP: Final = "unknown"
BATCH: Final = 128
"""Entries read between two pauses, under 1 ms; in a pause the script can acquire the GIL."""
PAUSE: Final = 0.001

ANSWER: Final = 5.0
"""Seconds for an answer of the control plane."""
MAX_DUMP: Final = 8 << 20
"""Bytes of a dump that are read; torch's 2,000 entries are 1 MB."""

_KERNEL: Final = re.compile(r"Kernel_(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv)")
_OF_KERNEL: Final[Mapping[str, str]] = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "SendRecv": "send_recv",
}
_KERNEL_OF: Final[Mapping[str, str]] = {
    operations.BARRIER: "all_reduce",
    **dict.fromkeys(("all_to_all", "gather", "scatter"), "send_recv"),
}
"""Operations that NCCL does by a kernel of another name."""
_GAP: Final = re.compile(r"[\s,]*")


class Recorded(NamedTuple):
    """One entry of the flight recorder."""

    name: str
    group: str
    operation: str
    size: int
    """0: unknown."""
    ranks: int
    """Members of the group; 0: unknown."""
    created_ns: int
    took_ns: int
    """As NCCL's events measured it; 0: they did not."""
    point_to_point: bool


def with_groups(trace: Trace, step: Interval) -> Trace:
    """The trace with the groups of its collectives, and what they moved; ``step`` is in nanoseconds since the epoch."""
    if not trace.collectives:
        return trace
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    if distributed is None:
        return trace if trace.on_device else _unnamed(trace, DEFAULT_GROUP)
    members: dict[str, int] = {}
    try:
        world = distributed._world
        members = {name: len(world.pg_group_ranks.get(group, ())) for group, name in list(world.pg_names.items())}
        recorded = [_entry(each, members) for each in flight_recorder(binding=len(members) > 1)]
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        recorded = []  # a release of torch without, or with another recorder: the times are known all the same
    if trace.on_device:
        return _of_device(trace, [each for each in recorded if step[0] <= each.created_ns <= step[1]])
    if not recorded:
        return _unnamed(trace, UNKNOWN_GROUP if len(members) > 1 else DEFAULT_GROUP)
    return _of_host(trace, recorded, UNKNOWN_GROUP if len(members) > 1 else DEFAULT_GROUP)


def flight_recorder(*, binding: bool) -> Iterator[dict[str, Any]]:
    """The flight recorder's entries of the newest collectives, oldest first.

    Args:
        binding: whether torch's binding, which holds the GIL, is asked where there is no control plane.

    Raises:
        ValueError: it has another form.
    """
    dump = _asked()
    bindings = sys.modules.get("torch._C._distributed_c10d") if binding else None
    if dump is None and bindings is not None:
        dump = bindings._dump_fr_trace_json()
    text = (dump or b"{}").decode(errors="replace")
    if (at := text.find('"entries"')) < 0:
        return
    decoder, at, number = json.JSONDecoder(), text.index("[", at) + 1, 0
    while not text.startswith("]", at := _end_of_gap(text, at)):
        entry, at = decoder.raw_decode(text, at)
        yield entry
        number += 1
        if number % BATCH == 0:
            time.sleep(PAUSE)


def _asked() -> bytes | None:
    """The dump as this process's own control plane gives it; None: it has none, or does not answer."""
    path = torch_control_plane.own_server()
    if path is None:
        return None
    try:
        return query(path, FLIGHT_RECORDER, time.monotonic() + ANSWER, most=MAX_DUMP)
    except (OSError, ValueError):
        return None


def _end_of_gap(text: str, at: int) -> int:
    found = _GAP.match(text, at)
    return found.end() if found is not None else at


def _entry(entry: Mapping[str, Any], members: Mapping[str, int]) -> Recorded:
    name, ranks = entry["profiling_name"], members.get(entry["process_group"][0], 0)
    operation = operations.operation_of(name)
    given = operations.tensor_bytes(entry["input_sizes"], entry["input_dtypes"])
    received = operations.tensor_bytes(entry["output_sizes"], entry["output_dtypes"])
    return Recorded(
        name,
        group_name(*entry["process_group"][:2]),
        operation,
        operations.size_of(operation, ranks, given, received),
        ranks,
        entry["time_created_ns"],
        round(1e6 * entry.get("duration_ms", 0.0)),
        bool(entry.get("is_p2p")) or operations.is_point_to_point(name),
    )


def _transfer(entry: Recorded, took_ns: int) -> Transfer:
    return Transfer(entry.group, entry.operation, entry.size, entry.ranks, took_ns)


def _of_host(trace: Trace, recorded: Sequence[Recorded], unknown: str) -> Trace:
    collectives: list[Collective] = []
    transfers: list[Transfer] = []
    for name in {each.name for each in trace.collectives}:
        of_name = sorted((each for each in trace.collectives if each.name == name), key=lambda each: each[2:])
        newest = of_name[-1].start_ns
        entries = [each for each in recorded if each.name == name and each.created_ns <= newest][-len(of_name) :]
        lost = len(of_name) - len(entries)
        collectives += [each._replace(group=_p2p(name) or unknown) for each in of_name[:lost]]
        for each, entry in zip(of_name[lost:], entries, strict=True):
            collectives.append(each._replace(group=_p2p(name) or entry.group))
            if not entry.point_to_point:
                transfers.append(_transfer(entry, each.end_ns - each.start_ns))
    return replace(trace, collectives=collectives, transfers=transfers)


def _unnamed(trace: Trace, group: str) -> Trace:
    return replace(trace, collectives=[each._replace(group=_p2p(each.name) or group) for each in trace.collectives])


def _of_device(trace: Trace, recorded: Sequence[Recorded]) -> Trace:
    """``recorded``: called within the step. A group of one rank has no kernels."""
    kernels: dict[str, list[Collective]] = {}
    others: list[Collective] = []
    for kernel in sorted(trace.collectives, key=lambda each: each.start_ns):
        found = _KERNEL.search(kernel.name)
        (kernels.setdefault(_OF_KERNEL[found[1]], []) if found else others).append(kernel)
    transfers = [_transfer(each, each.took_ns) for each in recorded if each.took_ns and not each.point_to_point]
    timed = bool(transfers)
    for kind, of_kind in kernels.items():
        entries = [each for each in recorded if each.ranks != 1 and _kernel_of(each) == kind]
        for kernel, entry in _matched(of_kind, entries):
            others.append(kernel if entry is None else kernel._replace(group=_group_of(entry)))
            if entry is not None and not timed and not entry.point_to_point:
                transfers.append(_transfer(entry, kernel.end_ns - kernel.start_ns))
    return replace(trace, collectives=others, transfers=transfers)


def _kernel_of(entry: Recorded) -> str:
    return "send_recv" if entry.point_to_point else _KERNEL_OF.get(entry.operation, entry.operation)


def _group_of(entry: Recorded) -> str:
    return POINT_TO_POINT if entry.point_to_point else entry.group


def _matched(
    kernels: Sequence[Collective], entries: Sequence[Recorded]
) -> Iterator[tuple[Collective, Recorded | None]]:
    """Each kernel of one kind with its entry, both in order; None: it cannot be told."""
    of_stream, of_group = Counter(each.group for each in kernels), Counter(_group_of(each) for each in entries)
    if len(kernels) != len(entries):
        yield from ((kernel, None) for kernel in kernels)
    elif len(of_stream) == 1 or len(of_group) == 1:
        yield from zip(kernels, entries, strict=True)
    else:
        groups = {number: group for group, number in of_group.items()}
        pairs = {stream: groups.get(number) for stream, number in of_stream.items()}
        unique = len(groups) == len(of_group) and set(pairs.values()) == of_group.keys() and len(pairs) == len(groups)
        left = {group: iter([each for each in entries if _group_of(each) == group]) for group in of_group}
        for kernel in kernels:
            group = pairs[kernel.group]
            yield kernel, next(left[group]) if unique and group is not None else None


def _p2p(name: str) -> str:
    return POINT_TO_POINT if operations.is_point_to_point(name) else ""


def group_name(name: str, description: str) -> str:
    """A name that is the same on all ranks of a group and unique to it: rows of a device mesh share a description."""
    if description in ("", "undefined") or description == name:
        return name
    return description if description == DEFAULT_GROUP else f"{description} ({name})"
