"""Health checks for ``Wrapper(health_check=...)``."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from rankwatch.inprocess.state import HealthCheckError, State


@dataclass(frozen=True, slots=True)
class CudaHealthCheck:
    """Synchronizes the rank's CUDA device. Does nothing if CUDA is not in use.

    ``timeout`` is in seconds, or a ``timedelta``.
    """

    timeout: float | timedelta = 30.0

    def __call__(self, _: State) -> None:
        """Wait for the device.

        Raises:
            HealthCheckError: it does not synchronize in time, or reports an error.
        """
        if "torch" not in sys.modules:
            return
        cuda: Any = importlib.import_module("torch.cuda")
        if not cuda.is_available() or not cuda.is_initialized():
            return
        index = _device_of_rank(cuda)
        seconds = self.timeout.total_seconds() if isinstance(self.timeout, timedelta) else self.timeout
        call_with_timeout(seconds, lambda: cuda.synchronize(index), f"device {index}")


def _device_of_rank(cuda: Any) -> int:
    """The device that the script has chosen, else the local rank's; ranks that share a device have no such one."""
    current, local_rank = cuda.current_device(), int(os.environ.get("LOCAL_RANK", 0))
    return current if current or local_rank >= cuda.device_count() else local_rank


@dataclass(frozen=True, slots=True)
class AllOf:
    """Runs several health checks in order."""

    checks: tuple[Callable[[State], Any], ...]

    def __call__(self, state: State) -> None:
        """Run them; the first that raises ends it."""
        for check in self.checks:
            check(state)


def call_with_timeout(seconds: float, action: Callable[[], Any], what: str) -> None:
    """Call ``action`` in a daemon thread, which is abandoned after the timeout.

    Raises:
        HealthCheckError: it raised, or did not finish in time.
    """
    problem: list[BaseException] = []

    def attempt() -> None:
        try:
            action()
        except BaseException as error:  # noqa: BLE001 - raised again in the calling thread
            problem.append(error)

    thread = threading.Thread(target=attempt, name="rankwatch-health", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise HealthCheckError(f"{what} does not answer within {seconds:g} s")
    if problem:
        raise HealthCheckError(f"{what} fails: {problem[0]}") from problem[0]
