"""Which source of kernel timings this process can use, and why not another.

Nothing is imported for it but what the script has imported: whether a GPU is used is what torch says of itself once
the first steps have been made.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

from rankwatch.contract.enums import KernelSource
from rankwatch.profiling.cupti import CuptiSource
from rankwatch.profiling.kineto import KinetoSource
from rankwatch.profiling.source import Source, SourceUnavailable


class Choice(NamedTuple):
    """A source, or none, and why it is not another."""

    source: Source | None
    reason: str


def torch_in_use() -> ModuleType | None:
    """The script's torch, once it has been imported to the end."""
    torch = sys.modules.get("torch")
    if torch is None or getattr(torch.__spec__, "_initializing", False):
        return None
    return torch


def uses_gpu(torch: ModuleType) -> bool:
    """Whether this process has begun to use a GPU; asks no driver."""
    return bool(torch.cuda.is_initialized())


def choose(wanted: KernelSource, torch: ModuleType, end_ours: Callable[[], None]) -> Choice:
    """Make the source that ``wanted`` names; ``end_ours`` ends an open window when the user starts a profiler."""
    gpu = uses_gpu(torch)
    try:
        if wanted is KernelSource.CUPTI or (wanted is KernelSource.AUTO and gpu):
            if not gpu:
                raise SourceUnavailable("cupti needs a GPU, and this process uses none; set kernel_timings=auto")
            return Choice(CuptiSource(), "")
        source = KinetoSource(torch, on_device=gpu, end_ours=end_ours)
        return Choice(source, "kernel_timings=kineto" if gpu else "this process uses no GPU")
    except SourceUnavailable as error:
        return Choice(None, str(error))
    except Exception as error:  # noqa: BLE001 - a foreign library may fail in any way, and training goes on
        lines = str(error).strip().splitlines()
        return Choice(None, f"it cannot be set up: {lines[0][:200] if lines else type(error).__name__}")
