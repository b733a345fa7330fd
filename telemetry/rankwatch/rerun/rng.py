"""Captures and restores the random state of Python, NumPy and torch, on the CPU and every CUDA device.

It imports none of them: a library that the script has not imported has no state to restore.
"""

from __future__ import annotations

import random
import sys
from typing import Any


def capture() -> dict[str, Any]:
    """Return the state of every generator in use, for :func:`restore`; it can be saved in a checkpoint."""
    state: dict[str, Any] = {"python": random.getstate()}
    if (numpy := sys.modules.get("numpy")) is not None:
        # ``numpy.random`` is loaded lazily, possibly first by the step itself.
        found = numpy.random.get_state()
        # As numbers: torch loads no array of NumPy with weights_only=True.
        state["numpy"] = tuple(each.tolist() if isinstance(each, numpy.ndarray) else each for each in found)
    if (torch := _torch()) is not None:
        state["torch"] = torch.get_rng_state()
        # Reading the state would initialize CUDA in a script that may never use it.
        if torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore(state: dict[str, Any]) -> None:
    """Restore a captured state; states of CUDA devices that this process does not have are ignored."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))  # a checkpoint format may have turned the tuple into a list
    if "numpy" in state and (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.set_state(tuple(state["numpy"]))
    if (torch := _torch()) is None:
        return
    if "torch" in state:
        torch.set_rng_state(state["torch"].cpu())
    if "cuda" in state and torch.cuda.is_available():
        for device, one in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(one.cpu(), device)


def _torch() -> Any:
    """Return torch, if it is imported completely."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "get_rng_state") and hasattr(torch, "cuda") else None
