"""The state machine's part of a checkpoint, which matters only if a step is to be re-run from it.

The state differs between ranks: the rejected result, its device, random numbers and microbatches. It is packed into one
tensor of bytes, which any checkpoint format can hold; Megatron's distributed format keeps plain values of the first
rank only, so it is given a sharded object instead. The tensor is read as ``torch.load(..., weights_only=True)`` reads a
file, so that such a checkpoint runs no code.
"""

from __future__ import annotations

import ctypes
import io
import logging
import pickle
import sys
from dataclasses import dataclass, field
from typing import Any, Final

from rankwatch.rerun import collectives
from rankwatch.rerun.device import Device
from rankwatch.rerun.validation import RejectedResult
from rankwatch.rerun.verdicts import PENDING, RerunState

VERSION: Final = 1
MEGATRON_FORMAT: Final = "torch_dist"

_log = logging.getLogger("rankwatch")


@dataclass(slots=True)
class SavedRankState:
    """The saved state of one rank."""

    rank: int
    step: int
    mode: str
    pending: bool = False
    """Whether the step is to be re-run."""
    rejection: RejectedResult | None = None
    injector: dict[str, Any] = field(default_factory=dict)
    beginning: dict[str, Any] = field(default_factory=dict)
    """Random numbers and further state at the beginning of the step."""
    data: list[dict[str, Any]] | None = None
    """States of the data iterators; None: this rank did not exist when the checkpoint was written."""
    counts: dict[str, int] = field(default_factory=dict)
    largest: dict[str, float] = field(default_factory=dict)
    """State of the :class:`~rankwatch.rerun.comparison.SpikeDetector`, by context."""


def to_state_dict(saved: SavedRankState, ckpt_format: str | None = None) -> dict[str, Any]:
    """Return a rank's state for a checkpoint."""
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
        "sharded": _sharded(pack(mine)) if ckpt_format == MEGATRON_FORMAT else pack(mine),
    }


def is_pending(state: dict[str, Any] | None) -> bool:
    """Whether a step is to be re-run from a checkpoint's state, of one rank or of all."""
    if not state:
        return False
    one = state["ranks"][0] if "ranks" in state else state
    return one.get("state") in {each.name for each in PENDING}


def from_state_dict(state: dict[str, Any], rank: int) -> SavedRankState:
    """Read this rank's part of a checkpoint's state, of one rank or of all.

    Raises:
        ValueError: this is not the state of a re-run state machine, or of a later version, or holds objects of classes
            that were not allowed.
    """
    ranks = state.get("ranks") or [state]
    one = ranks[min(rank, len(ranks) - 1)]
    if not isinstance(one, dict) or not {"mode", "state", "current_iteration"} <= one.keys():
        raise ValueError(
            "this is not the state of a re-run state machine: pass to load_state_dict() what state_dict() or "
            "gather_state_dict() returned when the checkpoint was written"
        )
    if "version" not in one or "sharded" not in one:
        # Megatron returns this if its own machine wrote the checkpoint, or if the job is sharded differently now.
        _log.warning("the checkpoint's re-run state is not of this job and is ignored: no step is re-run")
        return SavedRankState(rank, int(one["current_iteration"]), str(one["mode"]))
    if one["version"] != VERSION:
        raise ValueError(
            f"the checkpoint's re-run state has version {one.get('version')}, and only {VERSION} is supported"
        )
    saved = SavedRankState(rank, int(one["current_iteration"]), str(one.get("mode")), is_pending(one))
    if "ranks" in state and rank >= len(ranks):
        return saved  # the job has more ranks now; a new rank runs the step without a rejection of its own
    mine = unpack(one["sharded"])
    if mine["rank"] != rank:
        raise ValueError(
            f"this is the re-run state of rank {mine['rank']}, but rank {rank} loads it: save the state of each "
            "rank, or use gather_state_dict() if one rank writes the checkpoint"
        )
    saved.rejection = None if mine["rejection"] is None else _rejection(mine["rejection"])
    saved.injector = mine["injector"]
    saved.counts, saved.largest = dict(mine["large_value_counts"]), dict(mine["max_values"])
    saved.beginning, saved.data = mine.get("beginning", {}), mine.get("data_iterators")
    return saved


def _plain(rejection: RejectedResult) -> dict[str, Any]:
    names = ("message", "number", "step", "value", "fatal", "rank")
    plain = {name: getattr(rejection, name) for name in names}
    return {**plain, "host": rejection.device.host, "device": rejection.device.name}


def _rejection(plain: dict[str, Any]) -> RejectedResult:
    names = ("message", "number", "step", "value", "fatal", "rank")
    return RejectedResult(**{name: plain[name] for name in names}, device=Device(plain["host"], plain["device"]))


def _sharded(mine: Any) -> Any:
    """Return Megatron's object for a value of each rank; the value itself if Megatron is not loaded."""
    mapping: Any = sys.modules.get("megatron.core.dist_checkpointing.mapping")
    if mapping is None:
        return mine
    size = distributed.get_world_size() if (distributed := collectives.torch_distributed()) is not None else 1
    return mapping.ShardedObject("rerun_state_machine_state", mine, (size,), (collectives.rank(),))


def pack(state: Any) -> Any:
    """Return any state as one tensor of bytes, which every checkpoint format can hold."""
    torch: Any = sys.modules["torch"]
    buffer = io.BytesIO()
    torch.save(state, buffer)
    if names := _not_allowed(buffer):
        _log.warning("the re-run state can only be loaded after torch.serialization.add_safe_globals([%s])", names)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def unpack(data: Any) -> Any:
    """Return a packed state; CUDA tensors are placed on this process's current device.

    Raises:
        ValueError: it holds objects of classes that were not allowed.
    """
    torch: Any = sys.modules["torch"]

    def place(storage: Any, location: str) -> Any:
        return storage.cuda() if location.startswith("cuda") and torch.cuda.is_available() else storage

    content = data.cpu().contiguous()
    written = ctypes.string_at(content.data_ptr(), content.numel())  # without numpy, which may not be installed
    try:
        return torch.load(io.BytesIO(written), map_location=place, weights_only=True)
    except pickle.UnpicklingError as error:
        if not (names := _not_allowed(io.BytesIO(written))):
            raise
        raise ValueError(
            f"the checkpoint's re-run state holds {names}: if you trust it, call "
            f"torch.serialization.add_safe_globals([{names}]) before load_state_dict()"
        ) from error


def _not_allowed(saved: io.BytesIO) -> str:
    """What a saved state names besides tensors and plain values."""
    torch: Any = sys.modules["torch"]
    saved.seek(0)
    return ", ".join(sorted(torch.serialization.get_unsafe_globals_in_checkpoint(saved)))
