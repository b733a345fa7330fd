"""In-process restarts: restarts the training function within its processes, before the launcher restarts the ranks.

::

    @rankwatch.inprocess.Wrapper(soft_timeout=60, active_world_size=8)
    def train():
        torch.distributed.init_process_group("gloo")
        ...

After an exception, a hang or the loss of a rank this costs a new process group and a checkpoint load, but no new
interpreter, imports or CUDA context. Enters: a function and :class:`rankwatch.inprocess.options.WrapperOptions`;
leaves: its result, restart notices to the monitor, or ``InProcessError``, which ends the process. Start with
``call.py``.
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
