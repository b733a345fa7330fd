"""The progress of a rank's process groups, from torch's flight recorder."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rankwatch.contract.messages import Collective, read
from rankwatch.contract.text import decoded
from rankwatch.liveness.control_plane_client import FLIGHT_RECORDER, query
from rankwatch.profiling.process_groups import group_name

MAX_GROUPS: Final = 64
"""Process groups reported per rank: those with the newest collectives."""
MAX_MEMBERS: Final = 64
"""Ranks reported per group; of a larger group none are, since a partial list would be taken as complete."""
MAX_TENSORS: Final = 1024
MAX_DIMENSIONS: Final = 64
"""Of a call whose size is reported; torch's tensors have no more dimensions."""
MAX_TEXT: Final = 100
CALLS_BEFORE: Final = 4
"""Completed collectives reported per group, for ranks that wait in one that others have left."""
CALLS_AFTER: Final = 4
"""Collectives reported per group that are not completed, the oldest first."""
KNOWN_ORDER: Final = 2
"""Times between two calls of a group that must be known before another order than in all of them is reported."""
SAME_SIZE: Final = frozenset(
    {"all_reduce", "broadcast", "reduce", "_all_gather_base", "_allgather_base", "_reduce_scatter_base"}
)
"""Operations to which all ranks pass a tensor of the same size; to others (all_to_all, gather) sizes may differ."""


def dump(path: Path, until: float) -> bytes:
    """What the flight recorder of a rank holds, as JSON; ``until`` is on the monotonic clock.

    Raises:
        OSError: no answer in time.
        ValueError: the answer is an error, or too large.
    """
    return query(path, FLIGHT_RECORDER, until)


def of_rank(path: Path, until: float, owner: int | None = None) -> tuple[Collective, ...]:
    """The progress of each process group of a rank; see :func:`query`.

    Raises:
        OSError: no answer in time, or another user listens.
        ValueError: the answer is not the flight recorder's.
    """
    return from_flight_recorder(decoded(query(path, FLIGHT_RECORDER, until, owner)))


def from_flight_recorder(recorded: Any) -> tuple[Collective, ...]:
    """Reduce the flight recorder's JSON to one entry per process group, sorted by name.

    Only collectives count, by ``collective_seq_id``, which is the same on all ranks of a group. ``pg_status`` is not
    used: some backends count point-to-point calls in it, whose number differs between the stages of a pipeline.

    Raises:
        ValueError: unexpected content.
    """
    try:
        entries = [e for e in recorded.get("entries", ()) if not e.get("is_p2p")]
        members = {str(c["name"]): _ranks(c.get("ranks")) for c in recorded.get("pg_config", {}).values()}
        newest: dict[str, int] = {}
        for entry in entries:
            # A group that was destroyed and created again has the same name, a higher id, and counts from the start.
            name = str(entry["process_group"][0])
            newest[name] = max(newest.get(name, 0), int(entry["pg_id"]))
        found: dict[str, list[dict[str, Any]]] = {}
        for entry in entries:
            name = str(entry["process_group"][0])
            if int(entry["pg_id"]) == newest[name]:
                found.setdefault(name, []).append(entry)
        order = _unusual(sorted((e for of in found.values() for e in of), key=lambda e: int(e["record_id"])))
        latest = sorted(found.items(), key=lambda item: -max(int(e["record_id"]) for e in item[1]))[:MAX_GROUPS]
        positions = (_position(name, of, members.get(name, ()), unusual=name in order) for name, of in latest)
        return tuple(sorted((read(Collective, asdict(each)) for each in positions), key=lambda c: c.group))
    except (ArithmeticError, AttributeError, KeyError, IndexError, TypeError) as error:
        raise ValueError(f"unexpected answer of the flight recorder: {error!r}") from None


def _unusual(entries: list[dict[str, Any]]) -> set[str]:
    """Groups in which the newest call came after calls in other groups than each call before; entries as made."""
    since: dict[str, set[str]] = {}
    past: dict[str, list[set[str]]] = {}
    for entry in entries:
        name = str(entry["process_group"][0])
        for group, others in since.items():
            if group != name:
                others.add(name)
        if name in since:
            past.setdefault(name, []).append(since[name])
        since[name] = set()
    return {name for name, (*before, newest) in past.items() if len(before) >= KNOWN_ORDER and newest not in before}


def _position(name: str, entries: list[dict[str, Any]], members: tuple[int, ...], *, unusual: bool) -> Collective:
    last = max(entries, key=lambda e: int(e["collective_seq_id"]))
    # The recorder is a ring buffer: what it no longer holds was completed long ago.
    before = min(int(e["collective_seq_id"]) for e in entries) - 1
    done = (int(e["collective_seq_id"]) for e in entries if e.get("retired") or e.get("state") == "completed")
    completed = max(done, default=before)
    description = str(last["process_group"][1]) if len(last["process_group"]) > 1 else ""
    return Collective(
        group=group_name(name, description)[:MAX_TEXT],
        operation=_operation(last),
        enqueued=int(last["collective_seq_id"]),
        completed=completed if completed > 0 else -1,
        ranks=members,
        calls_from=(first := max(before + 1, completed - CALLS_BEFORE + 1)),
        calls=_calls(entries, first, completed + CALLS_AFTER),
        thread=int(last.get("thread_id") or 0),
        unusual=unusual,
    )


def _calls(entries: list[dict[str, Any]], first: int, last: int) -> tuple[str, ...]:
    """The calls numbered ``first`` to ``last``, as far as there are such."""
    found = {number: _call(e) for e in entries if first <= (number := int(e["collective_seq_id"])) <= last}
    return tuple(found.get(number, "") for number in range(first, max(found, default=first - 1) + 1))


def _call(entry: dict[str, Any]) -> str:
    """Operation and size: ``all_reduce of 4 Float``."""
    operation = _operation(entry)
    sizes = entry.get("input_sizes")
    if operation not in SAME_SIZE or not sizes or not _are_sizes(sizes):
        return operation
    types = entry.get("input_dtypes") or ("values",)
    return f"{operation} of {sum(map(math.prod, sizes))} {types[0]}"[:MAX_TEXT]


def _are_sizes(tensors: Any) -> bool:
    """Whether these can be sizes of tensors: products of other numbers take hours, of text all memory."""
    return len(tensors) <= MAX_TENSORS and all(
        len(each) <= MAX_DIMENSIONS and all(type(size) is int and 0 <= size < 1 << 63 for size in each)
        for each in tensors
    )


def _operation(entry: dict[str, Any]) -> str:
    return str(entry["profiling_name"]).rpartition(":")[2][:MAX_TEXT]


def _ranks(listed: Any) -> tuple[int, ...]:
    """Global ranks from the recorder's ``"[0, 1, 2]"``."""
    ranks: Iterable[Any] = decoded(listed) if isinstance(listed, str) and listed else listed or ()
    found = tuple(int(r) for r in ranks)
    return found if len(found) <= MAX_MEMBERS else ()
