"""Public names of NVRx 0.4.1 that Rankwatch lacks, each with its replacement as docs/migrate-from-nvrx.md lists it.

A replacement that begins with "none" is words: nothing has to be called. Others are names below
``rankwatch.inprocess``, unless they begin with ``rankwatch.``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_CALLABLE: Final = "none: any callable will do"
_INCIDENT: Final = "none: each restart is an incident of the monitor"

REPLACEMENTS: Final[Mapping[str, str]] = {
    "fault_tolerance.RankMonitorServer": "none: one monitor service watches all ranks",
    "fault_tolerance.RankMonitorStateMachine": "none: it was the launcher's own",
    "fault_tolerance.RankMonitorState": "none: it was the launcher's own",
    "fault_tolerance.InvalidStateTransitionException": "none: it was the launcher's own",
    "ptl_resiliency.LocalCheckpointCallback": "none: no checkpointing",
    "ptl_resiliency.HierarchicalCheckpointIO": "none: no checkpointing",
    "inprocess.FrozenState": "State",
    "inprocess.Compose": "compose",
    "inprocess.abort.Abort": _CALLABLE,
    "inprocess.abort.AbortTorchDistributed": "none: always done",
    "inprocess.abort.AbortTransformerEngine": "none: give `abort=` a function of your own",
    "inprocess.completion.Completion": _CALLABLE,
    "inprocess.exception.InternalError": "InProcessError",
    "inprocess.exception.RestartAbort": "none: a `SystemExit` leaves for good",
    "inprocess.exception.RestartError": "InProcessError",
    "inprocess.exception.TimeoutError": "InProcessError",
    "inprocess.finalize.Finalize": _CALLABLE,
    "inprocess.finalize.ThreadedFinalize": "none: give `finalize=` the function",
    "inprocess.health_check.FaultCounter": "Wrapper(max_rank_faults=None)",
    "inprocess.health_check.FaultCounterExceeded": "FaultCounterExceededError",
    "inprocess.health_check.HealthCheck": _CALLABLE,
    "inprocess.initialize.Initialize": _CALLABLE,
    "inprocess.initialize.RetryController": "Wrapper(max_restarts=10)",
    "inprocess.nested_restarter.NestedRestarterAborted": _INCIDENT,
    "inprocess.nested_restarter.NestedRestarterFinalized": _INCIDENT,
    "inprocess.nested_restarter.NestedRestarterHandlingCompleted": _INCIDENT,
    "inprocess.nested_restarter.NestedRestarterHandlingStarting": _INCIDENT,
    "inprocess.rank_assignment.ActivateAllRanks": "none: the default",
    "inprocess.rank_assignment.FilterCountGroupedByKey": "Wrapper(granularity='rank')",
    "inprocess.rank_assignment.Layer": "Wrapper(active_world_size=None, granularity='rank')",
    "inprocess.rank_assignment.LayerFlag": "none: reserves always step in",
    "inprocess.rank_assignment.RankAssignment": _CALLABLE,
    "inprocess.rank_assignment.RankAssignmentCtx": "Situation(places, reserves, lost)",
    "inprocess.rank_assignment.RankDiscarded": "none: a rank that lost its place returns None",
    "inprocess.rank_assignment.RankFilter": _CALLABLE,
    "inprocess.rank_assignment.Tree": "Wrapper(active_world_size=None, granularity='rank')",
    "inprocess.terminate.Terminate": _CALLABLE,
    "inprocess.tools.inject_fault.inject_fault": (
        "rankwatch.faults.simulate(kind, rank='random', delay=None, seed=None)"
    ),
}
"""By the name below ``nvidia_resiliency_ext``."""

MODULES: Final = frozenset(
    name.rpartition(".")[0] for name in REPLACEMENTS if name.startswith("inprocess.") and name.count(".") > 1
) | {"inprocess.monitor_thread", "inprocess.state", "inprocess.tools"}
"""Modules of NVRx's in-process restart, whose names are looked up in ``rankwatch.inprocess``."""


def replacement_of(name: str) -> str | None:
    """Return what replaces a name below ``nvidia_resiliency_ext``, as a clause; None if there is no such name there."""
    package, _, last = name.rpartition(".")
    listed = REPLACEMENTS.get(name) or next(
        (
            replacement
            for full, replacement in REPLACEMENTS.items()
            if full.rpartition(".")[2] == last and full.startswith(f"{package.partition('.')[0]}.")
        ),
        None,
    )
    if listed is None:
        return None
    if listed.startswith("none: "):
        return f"it is not needed ({listed.removeprefix('none: ')})"
    return f"use {listed if listed.startswith('rankwatch.') else f'rankwatch.inprocess.{listed}'}"
