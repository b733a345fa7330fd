"""Reads what torch's flight recorder has dumped into a file by itself, when a watchdog found a collective stuck.

The file is a pickle, which could run code: only the types of plain data are read.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import pickle
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Final, Never

from rankwatch.contract.files import opened
from rankwatch.contract.messages import Collective
from rankwatch.liveness import control_plane_client
from rankwatch_launcher.stacks import collectives

DEFAULTS: Final = ("/tmp/nccl_trace_rank_", "{home}/.cache/torch/comm_lib_trace_rank_")
"""Where torch dumps to without TORCH_FR_DUMP_TEMP_FILE, by version."""
MOST_MEMORY: Final = 1 << 30
"""Bytes for all dumps of a node at a time; the largest that torch writes takes a tenth."""
MOST_VALUES: Final = 1 << 23
"""Values in a dump; the largest of torch has 2,000 calls with 100 frames each."""
MOST_BITS: Final = 64
"""Of a whole number."""
LONG_TEXT: Final = 64
"""Characters that count as one more value: a text may be there as often as a list."""
DEEPEST: Final = 32
"""Values within each other; torch has six."""


def of_rank(prefix: str, home: str, rank: int, uid: int, age: float) -> tuple[Collective, ...]:
    """The progress of a rank's process groups by its newest dump; empty: there is none of this process.

    Args:
        prefix: the path without the rank; empty: where torch dumps by default.
        home: the home folder of the process.
        uid: its user, whose file it must be.
        age: seconds since it was started; an older file is another process's.
    """
    for each in (prefix,) if prefix else DEFAULTS:
        path = Path(f"{each.format(home=home) if not prefix else each}{rank}")
        try:
            with opened(path, uid) as file:
                about = os.fstat(file.fileno())
                if about.st_uid != uid or about.st_mtime < time.time() - age:
                    continue
                return collectives.from_flight_recorder(plain(file.read(control_plane_client.MAX_BYTES)))
        except (OSError, ValueError, MemoryError):
            continue
    return ()


@contextlib.contextmanager
def bounded_memory(size: int = MOST_MEMORY) -> Iterator[None]:
    """Context within which this process may map so much more: a pickle of 32 MiB can make 2 GiB of empty lists."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft = min([mapped + size, *(each for each in before if each != resource.RLIM_INFINITY)])
    resource.setrlimit(resource.RLIMIT_AS, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def plain(data: bytes) -> Any:
    """What a pickle of plain data stands for.

    Raises:
        ValueError: it is none, names a class or function, has larger numbers than torch, or stands for more than
            :data:`MOST_VALUES` values.
    """
    try:
        found = _Plain(io.BytesIO(data)).load()
        _count(found, {}, 0)
    except Exception as error:  # noqa: BLE001 - a broken pickle raises nearly anything
        raise ValueError(f"no pickle of plain data: {error!r}") from None
    return found


def _count(value: object, known: dict[int, int], depth: int) -> int:
    """The number of values in this one, each as often as it is there: torch has the frames of equal stacks once.

    80 bytes are lists within lists twice each, whose text fills all memory.
    """
    if not isinstance(value, dict | list | tuple):
        _check_number(value)
        return 1 + len(value) // LONG_TEXT if isinstance(value, str | bytes) else 1
    if id(value) not in known and depth <= DEEPEST:
        known[id(value)] = MOST_VALUES  # where it is within itself
        parts = itertools.chain(value, value.values()) if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count(each, known, depth + 1) for each in parts)
    if depth > DEEPEST or known[id(value)] > MOST_VALUES:
        raise pickle.UnpicklingError(f"it has more than {MOST_VALUES} values, or {DEEPEST} within each other")
    return known[id(value)]


def _check_number(value: object) -> None:
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise pickle.UnpicklingError(f"a number has more than {MOST_BITS} bits")


def _refusal(what: str) -> Callable[[object], Never]:
    def refuse(_: object) -> Never:
        raise pickle.UnpicklingError(f"{what} is no plain data")

    return refuse


_BUILT_IN: Final[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)


class _Plain(pickle._Unpickler):  # that in C does not tell of a key before it takes its hash
    """Reads dicts, lists and tuples.

    Keys are text or small numbers: 80 bytes are a key of tuples whose hash takes hours, with the interpreter's lock
    held, and a million large numbers can have one hash. So can the places of the memo where text gives them.
    """

    stack: list[object]

    def find_class(self, module: str, name: str) -> Never:
        raise pickle.UnpicklingError(f"{module}.{name} is no plain data")

    def persistent_load(self, pid: object) -> Never:
        raise pickle.UnpicklingError(f"{pid!r} is no plain data")

    def _keyed(self, opcode: bytes) -> None:
        keys = self.stack[-2:-1] if opcode == pickle.SETITEM else self.stack[::2]
        if not all(isinstance(key, str | bytes | int | float) for key in keys):
            raise pickle.UnpicklingError("a key is neither text nor a number")
        for key in keys:
            _check_number(key)
        _BUILT_IN[opcode[0]](self)

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **_BUILT_IN,
        **dict.fromkeys((pickle.EMPTY_SET[0], pickle.FROZENSET[0], pickle.ADDITEMS[0]), _refusal("a set")),
        pickle.PUT[0]: _refusal("a memo in text"),
        pickle.SETITEM[0]: lambda self: self._keyed(pickle.SETITEM),
        pickle.SETITEMS[0]: lambda self: self._keyed(pickle.SETITEMS),
        pickle.DICT[0]: lambda self: self._keyed(pickle.DICT),
    }
