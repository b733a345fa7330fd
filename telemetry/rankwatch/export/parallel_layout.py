"""The place of this rank in the parallel layout, read from torch's process groups where the job declares none.

A device mesh and Megatron describe each of their groups by the dimension it belongs to; the rank's index in the group
is its coordinate. Nothing is imported and no collective is issued: torch's own bookkeeping is read.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from rankwatch.contract import semconv

DIMENSIONS: Final[Mapping[str, str]] = {
    "mesh_dp": "data_parallel",
    "mesh_tp": "tensor_parallel",
    "mesh_pp": "pipeline_parallel",
    "mesh_ep": "expert_parallel",
    "DATA_PARALLEL_GROUP": "data_parallel",
    "TENSOR_MODEL_PARALLEL_GROUP": "tensor_parallel",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pipeline_parallel",
    "EXPERT_MODEL_PARALLEL_GROUP": "expert_parallel",
}
"""By the description of a process group."""


class ParallelLayout:
    """Reads the layout again whenever the number of process groups has changed."""

    def __init__(self, declared: Mapping[str, object], rank: int) -> None:
        """Prepare.

        Args:
            declared: resource attributes of the process; one that declares a coordinate switches the reading off.
        """
        names = {f"dl.{dimension}.rank" for dimension in semconv.PARALLEL_DIMENSIONS}
        self._declared = any(name.removeprefix("nv.") in names for name in declared)
        self._rank = rank
        self._groups = 0
        self._found: dict[str, int] = {}

    def attributes(self) -> dict[str, int]:
        """``dl.<dimension>.rank`` and ``.size`` of each dimension that has a process group; empty: none is known.

        Never raises: torch's bookkeeping differs between releases and changes while it is read.
        """
        distributed = sys.modules.get("torch.distributed.distributed_c10d")
        if self._declared or distributed is None:
            return {}
        try:
            members = distributed._world.pg_group_ranks
            if len(members) != self._groups:
                self._found, self._groups = self._read(dict(members)), len(members)
        except Exception:  # noqa: BLE001 - boundary to torch's internals
            return self._found
        return self._found

    def _read(self, members: Mapping[object, Mapping[int, int]]) -> dict[str, int]:
        found: dict[str, int] = {}
        for group, index_of in members.items():
            dimension = DIMENSIONS.get(getattr(group, "group_desc", ""))
            if dimension is not None and self._rank in index_of:
                found[f"dl.{dimension}.rank"] = index_of[self._rank]
                found[f"dl.{dimension}.size"] = len(index_of)
        return found
