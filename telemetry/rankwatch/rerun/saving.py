"""The machine's part of a checkpoint: small, and of interest only while a step is to be re-run from it.

A rank's state is another one on each rank: what it rejected, on which device, its random numbers and its microbatches.
That part is packed into one tensor of bytes, so that any checkpoint format holds it; Megatron's distributed ones,
which keep only the first rank's plain values, are given a sharded object of theirs instead.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field
from typing import Any, Final

from rankwatch.rerun import agreement
from rankwatch.rerun.device import Device
from rankwatch.rerun.validation import Rejection
from rankwatch.rerun.verdicts import PENDING, RerunState

VERSION: Final = 1
MEGATRON_FORMAT: Final = "torch_dist"

_log = logging.getLogger("rankwatch")


@dataclass(slots=True)
class Saved:
    """What outlives the process of one rank."""

    rank: int
    step: int
    mode: str
    pending: bool = False
    """Whether the step is to be re-run."""
    rejection: Rejection | None = None
    injector: dict[str, Any] = field(default_factory=dict)
    beginning: dict[str, Any] = field(default_factory=dict)
    """Random numbers and further state at the beginning of the step."""
    data: list[dict[str, Any]] | None = None
    """States of the data iterators; None: this rank was not there when the checkpoint was written."""
    counts: dict[str, int] = field(default_factory=dict)
    largest: dict[str, float] = field(default_factory=dict)
    """What is known of normal sizes, by context."""


def state_of(saved: Saved, ckpt_format: str | None = None) -> dict[str, Any]:
    """A rank's state for a checkpoint."""
    mine: dict[str, Any] = {
        "rank": saved.rank,
        "rejection": None if saved.rejection is None else _plain(saved.rejection),
        "injector": saved.injector,
        "large_value_counts": saved.counts,
        "max_values": saved.largest,
    }
    if saved.pending:
        mine |= {"beginning": saved.beginning, "data_iterators": saved.data}
    state = RerunState.WILL_RERUN_FROM_CHECKPOINT if saved.pending else RerunState.NOT_RUNNING_YET
    return {
        "version": VERSION,
        "mode": saved.mode,
        "state": state.name,
        "current_iteration": saved.step,
        "sharded": _sharded(agreement.packed(mine)) if ckpt_format == MEGATRON_FORMAT else agreement.packed(mine),
    }


def is_pending(state: dict[str, Any] | None) -> bool:
    """Whether a checkpoint's state, of one rank or of all, says that a step is to be re-run."""
    if not state:
        return False
    one = state["ranks"][0] if "ranks" in state else state
    return one.get("state") in {each.name for each in PENDING}


def read(state: dict[str, Any], rank: int) -> Saved:
    """This rank's part of a checkpoint's state, of one rank or of all.

    Raises:
        ValueError: this is no state of a re-run state machine, or of a later version.
    """
    ranks = state.get("ranks") or [state]
    one = ranks[min(rank, len(ranks) - 1)]
    if not isinstance(one, dict) or not {"mode", "state", "current_iteration"} <= one.keys():
        raise ValueError(
            "this is no state of a re-run state machine: hand load_state_dict() what state_dict() or "
            "gather_state_dict() returned when the checkpoint was written"
        )
    if "version" not in one or "sharded" not in one:
        # As Megatron hands it over where its own machine wrote it, or where the job is sharded in another way now.
        _log.warning("the checkpoint's re-run state is not of this job and is ignored: its step runs as any other does")
        return Saved(rank, int(one["current_iteration"]), str(one["mode"]))
    if one["version"] != VERSION:
        raise ValueError(f"the checkpoint's re-run state has version {one.get('version')}, and {VERSION} is understood")
    saved = Saved(rank, int(one["current_iteration"]), str(one.get("mode")), is_pending(one))
    if "ranks" in state and rank >= len(ranks):
        return saved  # the job has more ranks now; this one has nothing to repeat, but runs the step with the others
    mine = agreement.unpacked(one["sharded"])
    if mine["rank"] != rank:
        raise ValueError(
            f"this is the re-run state of rank {mine['rank']}, and rank {rank} was to load it: each rank's is another "
            "one, so save it for each rank, or let the one that writes the checkpoint use gather_state_dict()"
        )
    saved.rejection = None if mine["rejection"] is None else _rejection(mine["rejection"])
    saved.injector = mine["injector"]
    saved.counts, saved.largest = dict(mine["large_value_counts"]), dict(mine["max_values"])
    saved.beginning, saved.data = mine.get("beginning", {}), mine.get("data_iterators")
    return saved


def _plain(rejection: Rejection) -> dict[str, Any]:
    names = ("message", "number", "step", "value", "fatal", "rank")
    plain = {name: getattr(rejection, name) for name in names}
    return {**plain, "host": rejection.device.host, "device": rejection.device.name}


def _rejection(plain: dict[str, Any]) -> Rejection:
    names = ("message", "number", "step", "value", "fatal", "rank")
    return Rejection(**{name: plain[name] for name in names}, device=Device(plain["host"], plain["device"]))


def _sharded(mine: Any) -> Any:
    """The object by which Megatron keeps a value of each rank; the value itself where Megatron is not loaded."""
    mapping: Any = sys.modules.get("megatron.core.dist_checkpointing.mapping")
    if mapping is None:
        return mine
    size = distributed.get_world_size() if (distributed := agreement.in_use()) is not None else 1
    return mapping.ShardedObject("rerun_state_machine_state", mine, (size,), (agreement.rank(),))
