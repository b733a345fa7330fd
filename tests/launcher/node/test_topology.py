"""The labels of a node: told, of Slurm, and the NVLink domain by NVML."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from rankwatch.contract import topology as contract
from rankwatch.profiling import nvml as reader
from rankwatch_launcher.node.topology import labels, nvlink_domain
from support.emulated_gpus import Gpu, Node

TREE = {"SLURM_JOB_ID": "7", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"}


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Node]:
    def make(*gpus: Gpu) -> Node:
        node = Node(*gpus)
        for name, function in node.functions().items():
            monkeypatch.setattr(pynvml, name, function)
        monkeypatch.setattr(reader, "driver_present", lambda: True)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        return node

    return make


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({**TREE, "SLURM_TOPOLOGY_ADDR": "s0.s4.tux1"}, ("switch=s0", "switch=s4")),
        ({**TREE, "SLURM_TOPOLOGY_ADDR_PATTERN": "block.node", "SLURM_TOPOLOGY_ADDR": "b1.n1"}, ("block=b1",)),
        ({**TREE, "SLURM_TOPOLOGY_ADDR": ".s4.tux1"}, ("switch=s4",)),
        ({**TREE, "SLURM_TOPOLOGY_ADDR": "tux1.example.org.x"}, ()),
        ({"SLURM_JOB_ID": "7", "SLURM_TOPOLOGY_ADDR_PATTERN": "node", "SLURM_TOPOLOGY_ADDR": "tux1"}, ()),
        ({"SLURM_TOPOLOGY_ADDR_PATTERN": "switch.node", "SLURM_TOPOLOGY_ADDR": "s0.tux1"}, ()),
        ({}, ()),
    ],
    ids=["tree", "block", "unnamed", "dotted", "flat", "no job", "no Slurm"],
)  # fmt: skip
def test_slurm_names_switches_and_blocks(env: dict[str, str], expected: tuple[str, ...]) -> None:
    assert labels((), env, lambda: "") == expected


def test_what_was_told_is_the_widest_and_the_nvlink_domain_the_narrowest() -> None:
    env = {**TREE, "SLURM_TOPOLOGY_ADDR": "s0.s4.tux1"}
    assert labels(("rack=r1",), env, lambda: "ab.0") == ("rack=r1", "switch=s0", "switch=s4", "nvlink=ab.0")


def fabric(cluster: bytes, clique: int = 7, state: int = 3) -> Any:
    return Gpu(f"GPU-{clique}", fabric=(state, 0), cluster=cluster, clique=clique)


def test_the_nvlink_domain_is_cluster_and_clique_of_all_gpus(emulated: Callable[..., Node]) -> None:
    emulated(fabric(bytes(range(16))), fabric(bytes(range(16))))
    assert nvlink_domain() == f"{bytes(range(16)).hex()}.7"


@pytest.mark.parametrize(
    "gpus",
    [
        (fabric(bytes(16)),),
        (fabric(bytes(range(16)), state=2),),
        (fabric(bytes(range(16)), 1), fabric(bytes(range(16)), 2)),
        (Gpu("GPU-a", fabric=pynvml.NVMLError_NotSupported()),),
        (Gpu("GPU-a", fabric=pynvml.NVMLError_GpuIsLost()),),
        (),
    ],
    ids=["own switch", "not ready", "two cliques", "no fabric", "lost", "no GPU"],
)
def test_without_a_domain_that_all_gpus_share_there_is_no_label(
    emulated: Callable[..., Node], gpus: tuple[Gpu, ...]
) -> None:
    emulated(*gpus)
    assert nvlink_domain() == ""


def test_no_gpu_no_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "driver_present", lambda: False)
    assert nvlink_domain() == ""


@pytest.mark.parametrize("text", ["", "rack", "=r1", "rack=", "a=b\x1b[2J", "a=b,c"])
def test_what_is_no_label_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="KEY=VALUE"):
        contract.label(text)
    assert contract.valid([text, "rack=r1"]) == ("rack=r1",)
