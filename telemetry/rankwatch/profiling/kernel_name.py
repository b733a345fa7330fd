"""Names of CUDA kernels: short enough to send, and the same on every rank.

A kernel's linker name is mangled and often thousands of characters long, mostly namespaces and types. The key that is
sent is the C++ name without return type, parameters and namespaces, with the launch shape. A longer one is truncated
and ends with a checksum of the whole demangled name, so that different kernels keep different keys and every source of
timings gives the same one.
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
"""Contained in the names of all NCCL kernels, and only in theirs."""

_NAMESPACES: Final = re.compile(r"(?:\b[A-Za-z_]\w*::)+")
_ANONYMOUS: Final = "(anonymous namespace)::"


def is_collective(name: str) -> bool:
    """Whether a kernel is one of NCCL's."""
    return COLLECTIVE in name


@lru_cache(8192)
def kernel_key(name: str, shape: tuple[int, int, int, int, int, int]) -> str:
    """Return the short name with grid and block: ``name<<<gx,gy,gz bx,by,bz>>>``, of 128 characters at most."""
    launch = f"<<<{_comma_separated(shape[:3])} {_comma_separated(shape[3:])}>>>"
    return _truncated(short_name(name), demangled(name), MAX_KERNEL_NAME - len(launch)) + launch


@lru_cache(8192)
def short_name(name: str) -> str:
    """Return a kernel's C++ name without return type, parameters and namespaces; 128 characters at most."""
    whole = demangled(name)
    full = whole.replace(_ANONYMOUS, "")
    begin, end = _bare_name(full)
    return _truncated(_NAMESPACES.sub("", full[begin:end]).replace("> >", ">>") or name, whole, MAX_KERNEL_NAME)


def demangled(name: str) -> str:
    """Return the demangled C++ name, or ``name`` itself if it is not mangled or cannot be demangled."""
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


def _bare_name(full: str) -> tuple[int, int]:
    """Begin and end of the bare name: after the last space, before the first parenthesis outside of ``<>``."""
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


def _truncated(short: str, name: str, limit: int) -> str:
    return short if len(short) <= limit else f"{short[: limit - 9]}~{zlib.crc32(name.encode()):08x}"


def _comma_separated(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


@cache
def _demangler() -> Any:
    """``__cxa_demangle`` of the C++ runtime, which torch has loaded."""
    with suppress(OSError, AttributeError):
        function = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
        function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        function.restype = ctypes.c_void_p  # not c_char_p: the pointer is needed to free the result
        return function
    return None


@cache
def _free() -> Any:
    function = ctypes.CDLL(None).free
    function.argtypes, function.restype = [ctypes.c_void_p], None
    return function
