"""The parallel layout of real ranks that declare none, from the groups of a device mesh and of Megatron's kind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support import forked
from telemetry.receiver import Receiver

SCRIPT = """
import os, sys, time
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
import rankwatch

url, store, kind, *declared = sys.argv[1:]
children = []
for rank in range(4):
    if not (child := os.fork()):
        rankwatch.init(
            monitor=url, job_id="j", rank=rank, world_size=4, export_interval=0.1,
            attributes={"dl.pipeline_parallel.rank": int(declared[0])} if declared else {},
        )
        dist.init_process_group("gloo", store=dist.FileStore(store, 4), rank=rank, world_size=4)
        if kind == "mesh":
            init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
        else:
            for ranks in ((0, 2), (1, 3)):
                dist.new_group(ranks, group_desc="PIPELINE_MODEL_PARALLEL_GROUP")
            for ranks in ((0, 1), (2, 3)):
                dist.new_group(ranks, group_desc="TENSOR_MODEL_PARALLEL_GROUP")
        with rankwatch.step():
            dist.barrier()
        rankwatch.shutdown()
        dist.destroy_process_group()
        os._exit(0)
    children.append(child)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


@pytest.mark.parametrize("kind", ["mesh", "megatron"])
def test_ranks_report_the_coordinates_that_their_process_groups_show(
    receiver: Receiver, tmp_path: Path, kind: str
) -> None:
    run(receiver, tmp_path, kind)
    found = {}
    for report in receiver.reports:
        resource = report.resource
        if {"dl.pipeline_parallel.rank", "dl.tensor_parallel.rank"} <= resource.keys():  # groups are made one by one
            found[resource["dl.rank"]] = tuple(resource[f"dl.{each}_parallel.rank"] for each in ("pipeline", "tensor"))
            assert resource["dl.pipeline_parallel.size"] == 2
    assert found == {0: (0, 0), 1: (0, 1), 2: (1, 0), 3: (1, 1)}


def test_a_declared_coordinate_is_not_replaced(receiver: Receiver, tmp_path: Path) -> None:
    run(receiver, tmp_path, "mesh", "7")
    assert {report.resource["dl.pipeline_parallel.rank"] for report in receiver.reports} == {7}
    assert not any("dl.tensor_parallel.rank" in report.resource for report in receiver.reports)


def run(receiver: Receiver, folder: Path, *kind: str) -> None:
    command = [sys.executable, "-c", SCRIPT, receiver.url, str(folder / "store"), *kind]
    done = forked.run(command)
    assert done.returncode == 0, done.stderr[-2000:]
