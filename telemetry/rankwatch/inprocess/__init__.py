"""Restarts of the training function within its processes, the first layer before the launcher's.

::

    @rankwatch.inprocess.Wrapper(soft_timeout=60, active_world_size=8)
    def train():
        torch.distributed.init_process_group("gloo")
        ...

What an exception, a hang or the loss of a rank costs then is a new process group and a load of the checkpoint: no new
interpreter, no imports, no CUDA context. Parameters: :class:`rankwatch.inprocess.options.Options`.
"""

from __future__ import annotations

from rankwatch.inprocess.assignment import (
    ActiveWorldSizeDivisibleBy,
    FillGaps,
    KeepWorldSize,
    MaxActiveWorldSize,
    Places,
    ShiftRanks,
    Situation,
    compose,
)
from rankwatch.inprocess.health import AllOf, CudaHealthCheck
from rankwatch.inprocess.state import (
    FaultCounterExceededError,
    HealthCheckError,
    InProcessError,
    Mode,
    RankShouldRestart,
    State,
)
from rankwatch.inprocess.wrapper import CallWrapper, Wrapper, atomic, iteration, ping

__all__ = [
    "ActiveWorldSizeDivisibleBy",
    "AllOf",
    "CallWrapper",
    "CudaHealthCheck",
    "FaultCounterExceededError",
    "FillGaps",
    "HealthCheckError",
    "InProcessError",
    "KeepWorldSize",
    "MaxActiveWorldSize",
    "Mode",
    "Places",
    "RankShouldRestart",
    "ShiftRanks",
    "Situation",
    "State",
    "Wrapper",
    "atomic",
    "compose",
    "iteration",
    "ping",
]
