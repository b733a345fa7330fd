"""Lightning: callbacks that show a run to Rankwatch, with the names and parameters that NVRx and NeMo users know.

How this works
--------------
============================  ========================================================================================
FaultToleranceCallback        the sections setup, step, evaluation and checkpointing around Lightning's hooks, learned
                              timeouts, the finished flag, simulated faults
StragglerDetectionCallback    the monitor's report of slow ranks in the log of rank 0, their scores in the run's loggers
PreemptionCallback            a signal becomes a checkpoint and a clean end on every rank after the same step
============================  ========================================================================================

Each works without the others and brings the sections along (``watching.py``); all of them stop the run with a saved
checkpoint once :func:`rankwatch.should_stop` says so (``stopping.py``). None of them issues a collective, save the
checkpoint itself.
"""

from __future__ import annotations

from rankwatch.integrations.lightning.fault_tolerance import FaultToleranceCallback, FaultToleranceSectionsCallback
from rankwatch.integrations.lightning.preemption import PreemptionCallback
from rankwatch.integrations.lightning.simulated import SimulatedFaultParams
from rankwatch.integrations.lightning.stragglers import StragglerDetectionCallback, straggler_det_callback

__all__ = [
    "FaultToleranceCallback",
    "FaultToleranceSectionsCallback",
    "PreemptionCallback",
    "SimulatedFaultParams",
    "StragglerDetectionCallback",
    "straggler_det_callback",
]
