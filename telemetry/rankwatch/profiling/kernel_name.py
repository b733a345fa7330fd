"""Names of CUDA kernels: short enough to send, and the same on every rank.

A kernel's linker name is mangled and often thousands of characters long, most of it namespaces and types. Sent is its
C++ name without return type, parameters and namespaces, and its launch shape. What is still too long is cut, and ends
with a checksum of the whole, so that two kernels never become one.
"""

from __future__ import annotations

import ctypes
import re
import zlib
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any, Final

from rankwatch.profiling.source import MAX_KERNEL_NAME

COLLECTIVE: Final = "ncclDev"
"""What the names of all of NCCL's kernels contain, and no others'."""

_NAMESPACES: Final = re.compile(r"(?:\b[A-Za-z_]\w*::)+")
_ANONYMOUS: Final = "(anonymous namespace)::"


def is_collective(name: str) -> bool:
    """Whether a kernel is one of NCCL's."""
    return COLLECTIVE in name


@lru_cache(8192)
def kernel_key(name: str, shape: tuple[int, int, int, int, int, int]) -> str:
    """Return the short name with grid and block: ``name<<<gx,gy,gz bx,by,bz>>>``, of 128 characters at most."""
    launch = f"<<<{_joined(shape[:3])} {_joined(shape[3:])}>>>"
    return _fitted(short_name(name), name, MAX_KERNEL_NAME - len(launch)) + launch


@lru_cache(8192)
def short_name(name: str) -> str:
    """Return a kernel's C++ name without return type, parameters and namespaces; 128 characters at most."""
    full = demangled(name).replace(_ANONYMOUS, "")
    begin, end = _bare(full)
    return _fitted(_NAMESPACES.sub("", full[begin:end]).replace("> >", ">>") or name, name, MAX_KERNEL_NAME)


def demangled(name: str) -> str:
    """Return what the C++ compiler called it, or the name itself where it is not mangled or cannot be told."""
    demangle = _demangler()
    if demangle is None or not name.startswith("_Z"):
        return name
    status = ctypes.c_int(0)
    text = demangle(name.encode(), None, None, ctypes.byref(status))
    if not text:
        return name
    try:
        return ctypes.string_at(text).decode(errors="replace")
    finally:
        _free()(text)


def _bare(full: str) -> tuple[int, int]:
    """Where the name itself begins and ends: after the last blank and before the first bracket outside of ``<>``."""
    depth = begin = 0
    for position, character in enumerate(full):
        if character == "<":
            depth += 1
        elif character == ">":
            depth -= 1
        elif depth == 0 and character == " ":
            begin = position + 1
        elif depth == 0 and character == "(":
            return begin, position
    return (begin, len(full)) if depth == 0 else (0, len(full))


def _fitted(short: str, name: str, room: int) -> str:
    return short if len(short) <= room else f"{short[: room - 9]}~{zlib.crc32(name.encode()):08x}"


def _joined(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


@cache
def _demangler() -> Any:
    """The C++ runtime's own function; torch has loaded that library already."""
    with suppress(OSError, AttributeError):
        function = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
        function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        function.restype = ctypes.c_void_p  # not a string: what it returns has to be freed
        return function
    return None


@cache
def _free() -> Any:
    function = ctypes.CDLL(None).free
    function.argtypes, function.restype = [ctypes.c_void_p], None
    return function
