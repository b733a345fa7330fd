"""The network check on trees like those of sysfs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankwatch.contract.node_checks import CheckReason
from rankwatch_launcher.checks import network
from rankwatch_launcher.checks.check import CheckedNode, Failed, Passed, Skipped


class Sysfs:
    """A tree of /sys with InfiniBand devices and network interfaces."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def port(self, device: str, state: str = "4: ACTIVE", rate: str = "400 Gb/sec (4X NDR)", **counters: int) -> None:
        folder = self.root / f"class/infiniband/{device}/ports/1"
        (folder / "counters").mkdir(parents=True, exist_ok=True)
        (folder / "state").write_text(state + "\n")
        (folder / "rate").write_text(rate + "\n")
        for name in network.RISES:
            (folder / "counters" / name).write_text(f"{counters.get(name, 0)}\n")

    def interface(self, name: str, state: str = "up") -> None:
        folder = self.root / f"class/net/{name}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "operstate").write_text(state + "\n")


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path)


@pytest.fixture
def node(sysfs: Sysfs) -> CheckedNode:
    return CheckedNode(sysfs=str(sysfs.root))


def look(node: CheckedNode, **variables: str) -> Any:
    return network.run(replace(node, variables=variables))


def reason(found: Any) -> CheckReason:
    assert isinstance(found, Failed), found
    return found.reason


def after(node: CheckedNode, seconds: float = 60.0) -> CheckedNode:
    """The node as its next check sees it."""
    found = look(node)
    assert isinstance(found, Passed)
    return replace(node, last=found.counters, last_age=seconds)


def test_without_a_device_there_is_nothing_to_check(node: CheckedNode) -> None:
    assert isinstance(look(node), Skipped)


def test_active_ports_pass_and_unused_ones_do_not_matter(node: CheckedNode, sysfs: Sysfs) -> None:
    sysfs.port("mlx5_0")
    sysfs.port("mlx5_1", state="1: DOWN")
    found = look(node)
    assert isinstance(found, Passed)
    assert found.figures == {"ports": "2", "active": "1"}
    assert isinstance(look(after(node)), Passed)


def test_a_port_that_was_active_is_missed(node: CheckedNode, sysfs: Sysfs) -> None:
    sysfs.port("mlx5_0")
    later = after(node)
    sysfs.port("mlx5_0", state="2: INIT")
    found = look(later)
    assert (reason(found), found.evidence["port"], found.evidence["found"]) == (
        CheckReason.PORT_DOWN,
        "mlx5_0:1",
        "INIT",
    )
    sysfs.port("mlx5_0", rate="100 Gb/sec (4X EDR)")
    found = look(later)
    assert (reason(found), found.evidence["found"], found.evidence["before"]) == (
        CheckReason.PORT_SLOWER,
        "100 Gbit/s",
        "400 Gbit/s",
    )


@pytest.mark.parametrize(
    ("counter", "rise", "faulty"),
    [
        ("link_downed", 1, True),
        ("local_link_integrity_errors", 1, True),
        ("symbol_error", 119, False),
        ("symbol_error", 120, True),
        ("link_error_recovery", 5, False),
    ],
)
def test_error_counters_are_compared_with_the_last_check(
    node: CheckedNode, sysfs: Sysfs, counter: str, rise: int, faulty: bool
) -> None:
    sysfs.port("mlx5_0", **dict.fromkeys(network.RISES, 1000))
    later = after(node)
    sysfs.port("mlx5_0", **{**dict.fromkeys(network.RISES, 1000), counter: 1000 + rise})
    found = look(later)
    assert isinstance(found, Failed) is faulty
    if faulty:
        assert (found.reason, found.evidence["counter"], found.evidence["count"]) == (
            CheckReason.PORT_ERRORS,
            counter,
            str(rise),
        )
    assert isinstance(look(replace(later, last=found.counters)), Passed), "once told, it counts from there"
    if rise > 1:
        assert isinstance(look(replace(later, last_age=36_000.0)), Passed), "in ten hours it is little"


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("mlx5_0,mlx5_1", None),
        ("mlx5", None),
        ("=mlx5_0:1", None),
        ("^mlx5_2", None),
        ("mlx5_0:2", CheckReason.HCA_MISSING),
        ("mlx5_0,mlx5_7", CheckReason.HCA_MISSING),
        ("=mlx5", CheckReason.HCA_MISSING),
        ("mlx5_2", CheckReason.PORT_DOWN),
    ],
)
def test_devices_that_nccl_is_told_to_use(
    node: CheckedNode, sysfs: Sysfs, value: str, found: CheckReason | None
) -> None:
    sysfs.port("mlx5_0")
    sysfs.port("mlx5_1")
    sysfs.port("mlx5_2", state="1: DOWN")
    result = look(node, NCCL_IB_HCA=value)
    assert (reason(result) if found is not None else isinstance(result, Passed)) == (found or True)


@pytest.mark.parametrize(
    ("variable", "value", "found"),
    [
        ("NCCL_SOCKET_IFNAME", "eth", None),
        ("NCCL_SOCKET_IFNAME", "ens9,eth", None),
        ("NCCL_SOCKET_IFNAME", "=eth0", None),
        ("NCCL_SOCKET_IFNAME", "^docker", None),
        ("NCCL_SOCKET_IFNAME", "lo", None),
        ("NCCL_SOCKET_IFNAME", "=eth", CheckReason.INTERFACE_MISSING),
        ("NCCL_SOCKET_IFNAME", "ib", CheckReason.INTERFACE_DOWN),
        ("GLOO_SOCKET_IFNAME", "eth", CheckReason.INTERFACE_MISSING),
        ("GLOO_SOCKET_IFNAME", "eth0", None),
    ],
)
def test_interfaces_that_the_collectives_are_told_to_use(
    node: CheckedNode, sysfs: Sysfs, variable: str, value: str, found: CheckReason | None
) -> None:
    sysfs.interface("eth0")
    sysfs.interface("ib0", "down")
    sysfs.interface("lo", "unknown")
    result = look(node, **{variable: value})
    assert (reason(result) if found is not None else isinstance(result, Passed)) == (found or True)
