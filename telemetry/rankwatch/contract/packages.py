"""Whose code a file is, by its path: a package's, Python's own, or the script's."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Final

PYTHON: Final = "python"
"""Python's own library."""
RANKWATCH: Final = frozenset(
    {
        "cli", "contract", "export", "faults", "inprocess", "integrations", "launcher_requests.py", "liveness",
        "monitor_client.py", "profiling", "recording", "rerun", "session.py", "settings.py",
    }
)  # fmt: skip
"""What is in the package that runs in ranks."""
TORCH: Final = frozenset(
    {
        "_dynamo", "_functorch", "_inductor", "_jit_internal.py", "_ops.py", "_tensor.py", "accelerator", "autograd",
        "cpu", "cuda", "distributed", "func", "functional.py", "futures", "fx", "jit", "mps", "mtia", "multiprocessing",
        "nn", "optim", "profiler", "random.py", "serialization.py", "storage.py", "utils", "xpu",
    }
)  # fmt: skip
"""What a source tree of torch has, as far as it can be on a stack."""
_SOURCES: Final = {"rankwatch": RANKWATCH, "torch": TORCH}
_INSTALLED: Final = ("site-packages", "dist-packages")


@lru_cache(maxsize=1024)
def package_of(path: str) -> str:
    """The package that a file belongs to; ``python``: that of Python itself; empty: none, so the script's own code.

    A user may have a folder ``torch``, ``wandb`` or ``rankwatch``: a package is what is installed, or given by a
    relative path; of torch and Rankwatch also a source tree, by what is in it.
    """
    parts = path.replace("\\", "/").split("/")
    for index in range(len(parts) - 1, 0, -1):
        if parts[index - 1] in _INSTALLED:
            return parts[index].removesuffix(".py")
    for name, rooms in _SOURCES.items():
        if parts[0] == name or any(pair[0] == name and pair[1] in rooms for pair in pairwise(parts)):
            return name
    return PYTHON if path.startswith("<frozen") or "/lib/python" in path else ""
