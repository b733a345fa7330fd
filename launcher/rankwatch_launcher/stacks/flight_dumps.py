"""Reads what torch's flight recorder has dumped into a file by itself, when a watchdog found a collective stuck.

The file is a pickle, which could run code: only the types of plain data are read.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import resource
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Final, Never

from rankwatch.contract.messages import Collective
from rankwatch_launcher.stacks import collectives

DEFAULTS: Final = ("/tmp/nccl_trace_rank_", "{home}/.cache/torch/comm_lib_trace_rank_")
"""Where torch dumps to without TORCH_FR_DUMP_TEMP_FILE, by version."""
MOST_MEMORY: Final = 1 << 30
"""Bytes for all dumps of a node at a time; the largest that torch writes takes a tenth."""


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
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
                about = os.fstat(file.fileno())
                if about.st_uid != uid or not stat.S_ISREG(about.st_mode) or about.st_mtime < time.time() - age:
                    continue
                return collectives.from_flight_recorder(plain(file.read(collectives.MAX_BYTES)))
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
        ValueError: it is none, or names a class or function.
    """
    try:
        return _Plain(io.BytesIO(data)).load()
    except Exception as error:  # noqa: BLE001 - a broken pickle raises nearly anything
        raise ValueError(f"no pickle of plain data: {error!r}") from None


class _Plain(pickle._Unpickler):  # that in C cannot be kept from what is below
    """Reads trees of plain data.

    Where a container may be in another one twice, 80 bytes are a key of tuples whose hash takes hours, with the
    interpreter's lock held, or a list whose text fills all memory.
    """

    memo: dict[int, object]
    append: Callable[[object], None]

    def find_class(self, module: str, name: str) -> Never:
        raise pickle.UnpicklingError(f"{module}.{name} is no plain data")

    def persistent_load(self, pid: object) -> Never:
        raise pickle.UnpicklingError(f"{pid!r} is no plain data")

    def _get(self, at: int) -> None:
        if not isinstance(again := self.memo[at], str | bytes | int | float):
            raise pickle.UnpicklingError("what is there twice is no plain data")
        self.append(again)

    def _twice(self) -> Never:
        raise pickle.UnpicklingError("what is there twice is no plain data")

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **pickle._Unpickler.dispatch,
        pickle.DUP[0]: _twice,
        pickle.GET[0]: lambda self: self._get(int(self.readline())),
        pickle.BINGET[0]: lambda self: self._get(self.read(1)[0]),
        pickle.LONG_BINGET[0]: lambda self: self._get(int.from_bytes(self.read(4), "little")),
    }
