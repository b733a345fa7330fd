"""Lightning callbacks with the names and parameters of NVRx and NeMo.

============================  ========================================================================================
FaultToleranceCallback        sections setup, step, evaluation and checkpointing from Lightning's hooks, learned
                              timeouts, the finished flag, simulated faults
StragglerDetectionCallback    the monitor's straggler report in the log of rank 0, scores in the run's loggers
PreemptionCallback            a signal leads to a checkpoint and a clean end on every rank after the same step
============================  ========================================================================================

Each works without the others and records the sections (``fit_monitor.py``); each stops the run with a checkpoint once
:func:`rankwatch.should_stop` is true (``graceful_stop.py``). None issues a collective other than the checkpoint's.
"""

from __future__ import annotations

from rankwatch.integrations.lightning.fault_tolerance import FaultToleranceCallback, FaultToleranceSectionsCallback
from rankwatch.integrations.lightning.preemption import PreemptionCallback
from rankwatch.integrations.lightning.simulated_fault import SimulatedFaultParams
from rankwatch.integrations.lightning.stragglers import StragglerDetectionCallback, straggler_det_callback

__all__ = [
    "FaultToleranceCallback",
    "FaultToleranceSectionsCallback",
    "PreemptionCallback",
    "SimulatedFaultParams",
    "StragglerDetectionCallback",
    "straggler_det_callback",
]
