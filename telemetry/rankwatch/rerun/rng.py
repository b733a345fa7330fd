"""Random numbers go back to where they were: Python's, NumPy's and torch's, on the CPU and on every CUDA device.

Nothing is imported for it: a generator that the script has not imported has given it no number.
"""

from __future__ import annotations

import random
import sys
from typing import Any


def capture() -> dict[str, Any]:
    """The state of every generator in use; for :func:`restore`, and fit for a checkpoint."""
    state: dict[str, Any] = {"python": random.getstate()}
    if (numpy := sys.modules.get("numpy")) is not None:
        # An attribute that numpy loads when it is first asked for, which the step itself may be the first to do.
        state["numpy"] = numpy.random.get_state()
    if (torch := _torch()) is not None:
        state["torch"] = torch.get_rng_state()
        # Asking a CUDA that is not initialized would initialize it, in a script that may never use it.
        if torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore(state: dict[str, Any]) -> None:
    """Go back to a captured state. What was captured by a process with other devices is taken as far as it goes."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))  # a checkpoint may have made a list of the tuple
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
    """torch, once the script has imported it to the end."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "get_rng_state") and hasattr(torch, "cuda") else None
