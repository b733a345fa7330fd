"""Names, sizes and factors of collectives: those of NCCL's own tests."""

from __future__ import annotations

import pytest
import torch

from rankwatch.contract.collectives import (
    BARRIER,
    OPERATIONS,
    OTHER,
    bus_factor,
    is_point_to_point,
    operation_of,
    parsed,
    series,
    size_of,
    tensor_bytes,
)


@pytest.mark.parametrize(
    ("recorded", "operation"),
    [
        ("gloo:all_reduce", "all_reduce"),
        ("nccl:_all_gather_base", "all_gather"),
        ("nccl:_reduce_scatter_base", "reduce_scatter"),
        ("nccl:all_to_allv", "all_to_all"),
        ("nccl:all_reduce_barrier", BARRIER),
        ("gloo:barrier", BARRIER),
        ("nccl:anything else", OTHER),
    ],
)
def test_an_operation_has_one_name_for_all_backends(recorded: str, operation: str) -> None:
    assert operation_of(recorded) == operation
    assert operation in OPERATIONS


@pytest.mark.parametrize(
    ("operation", "factor"),
    [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("all_to_all", 0.75), ("broadcast", 1.0)],
)
def test_the_factors_of_the_bus_bandwidth_of_four_ranks(operation: str, factor: float) -> None:
    assert bus_factor(operation, 4) == factor


def test_without_a_peer_or_a_size_there_is_no_bus_bandwidth() -> None:
    assert (bus_factor("all_reduce", 1), bus_factor(BARRIER, 4), bus_factor("all_reduce", 0)) == (0.0, 0.0, 0.0)


def test_a_size_is_that_of_the_whole_array() -> None:
    assert size_of("all_gather", 4, 100, 400) == 400
    assert size_of("reduce_scatter", 4, 400, 100) == 400
    assert size_of("all_reduce", 4, 100, 100) == 100
    assert size_of("scatter", 4, 0, 100) == 400
    assert size_of(BARRIER, 4, 8, 8) == 0


@pytest.mark.parametrize("name", ["Float", "BFloat16", "Long", "Byte", "Bool", "ComplexDouble", "Half", "Int"])
def test_types_have_torch_s_sizes(name: str) -> None:
    names = {"Byte": "uint8", "ComplexDouble": "complex128"}
    kind = getattr(torch, names.get(name, name.lower()))
    assert tensor_bytes([[3, 5]], [name]) == 15 * torch.empty((), dtype=kind).element_size()


def test_a_type_that_is_not_known_has_no_size() -> None:
    assert tensor_bytes([[3], [4]], ["Float", "QInt99"]) == 0
    assert tensor_bytes([[3], [0, 4]], ["Float", "Float"]) == 12
    assert tensor_bytes([[16]], ["Float8_e4m3fn"]) == 16


def test_a_series_has_its_operation_and_group_whatever_the_group_is_called() -> None:
    assert parsed(series("all_reduce", "mesh_dp (3)")) == ("all_reduce", "mesh_dp (3)")
    assert parsed("unheard_of dp") == (OTHER, "dp")


def test_sends_and_receives_are_told_from_collectives() -> None:
    assert is_point_to_point("nccl:recv 1<-0")
    assert not is_point_to_point("gloo:all_reduce")
