"""The network: InfiniBand and RoCE ports in sysfs, and the interfaces and devices that the collectives are told to use.

A port that nobody named may be unused: it counts from when it was once seen active. One that NCCL_IB_HCA names must be
active.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankwatch.contract.node_checks import CheckName, CheckReason
from rankwatch_launcher import procfs
from rankwatch_launcher.checks.check import Check, CheckedNode, Failed, Found, Passed, Skipped

ACTIVE: Final = "ACTIVE"
HCA: Final = "NCCL_IB_HCA"
INTERFACES: Final = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
RISES: Final[Mapping[str, int]] = {
    "link_downed": 1,
    "local_link_integrity_errors": 1,
    "excessive_buffer_overrun_errors": 3,
    "link_error_recovery": 6,
    "port_rcv_errors": 120,
    "symbol_error": 120,
}
"""Error counters, and from which rise in an hour a port counts as faulty. 120 symbol errors an hour are what the
InfiniBand standard allows (a bit error rate of 1e-12)."""


@dataclass(frozen=True, slots=True)
class Port:
    """One port of an InfiniBand or RoCE device."""

    name: str
    """``mlx5_0:1``."""
    state: str
    """``ACTIVE``, ``DOWN``, ``INIT``, ``ARMED``."""
    rate: int
    """Gbit/s; 0: unknown."""
    counters: Mapping[str, int]


def run(node: CheckedNode) -> Found:
    """Check what is named, then all ports that were ever active."""
    for variable in INTERFACES:
        if value := node.variables.get(variable, ""):
            found = _interface(node, variable, value)
            if found is not None:
                return found
    ports = list(_ports(node))
    counters = {f"{port.name} {name}": value for port in ports for name, value in _counted(port)}
    for found in _faults(node, ports):
        return Failed(found.reason, found.evidence, counters)
    named = any(node.variables.get(each) for each in (HCA, *INTERFACES))
    if not ports and not named:
        return Skipped(CheckReason.NOTHING_HERE, {"what": "InfiniBand device"})
    active = sum(port.state == ACTIVE for port in ports)
    return Passed({"ports": str(len(ports)), "active": str(active)}, counters)


def _faults(node: CheckedNode, ports: list[Port]) -> Iterator[Failed]:
    value = node.variables.get(HCA, "")
    if value:
        yield from _named(value, ports)
    chosen = [port for port in ports if not value or _selected(value, port)]
    for port in chosen:
        if port.state != ACTIVE and node.last.get(f"{port.name} active"):
            why = ", it was ACTIVE at the last check"
            yield Failed(CheckReason.PORT_DOWN, {"port": port.name, "found": port.state, "why": why})
        before = node.last.get(f"{port.name} rate", 0)
        if port.state == ACTIVE and 0 < port.rate < before:
            rates = {"found": f"{port.rate} Gbit/s", "before": f"{before} Gbit/s"}
            yield Failed(CheckReason.PORT_SLOWER, {"port": port.name, **rates})
        hours = max(1.0, node.last_age / 3600)
        for name, allowed in RISES.items():
            rise = node.rise(f"{port.name} {name}", port.counters.get(name, 0))
            if rise >= (allowed if allowed == 1 else allowed * hours):
                yield Failed(CheckReason.PORT_ERRORS, {"port": port.name, "counter": name, "count": str(rise)})
    seen = {port.name for port in ports}
    for name in (key.removesuffix(" active") for key, was in node.last.items() if key.endswith(" active") and was):
        if name not in seen:
            yield Failed(CheckReason.PORT_DOWN, {"port": name, "found": "gone", "why": ""})


def _named(value: str, ports: list[Port]) -> Iterator[Failed]:
    """Faults of the devices that NCCL_IB_HCA names; none of those that it leaves out (``^``)."""
    if value.startswith(("^", "=^")):
        return
    for entry in _entries(value):
        matching = [port for port in ports if _matches(entry, port.name, exact=value.startswith("="))]
        if not matching:
            yield Failed(CheckReason.HCA_MISSING, {"entry": entry, "variable": HCA, "value": value})
        elif not any(port.state == ACTIVE for port in matching):
            first = matching[0]
            why = f", named by {HCA}={value}"
            yield Failed(CheckReason.PORT_DOWN, {"port": first.name, "found": first.state, "why": why})


def _selected(value: str, port: Port) -> bool:
    """Whether NCCL would use a port, as NCCL_IB_HCA has it."""
    exact, rest = value.startswith("="), value.removeprefix("=")
    excluding = rest.startswith("^")
    return any(_matches(entry, port.name, exact=exact) for entry in _entries(value)) is not excluding


def _entries(value: str) -> list[str]:
    return [word.strip() for word in value.lstrip("=^").split(",") if word.strip()]


def _matches(entry: str, port: str, *, exact: bool) -> bool:
    """Whether an entry, ``mlx5_0`` or ``mlx5_0:1``, stands for a port; without ``=`` it is a prefix."""
    device, _, number = port.rpartition(":")
    wanted, _, wanted_number = entry.partition(":")
    return (device == wanted if exact else device.startswith(wanted)) and wanted_number in ("", number)


def _interface(node: CheckedNode, variable: str, value: str) -> Failed | None:
    """What is wrong with the interfaces that a variable names; gloo takes exact names, NCCL prefixes."""
    if value.startswith(("^", "=^")):
        return None
    folder = Path(node.sysfs, "class/net")
    try:
        names = sorted(each.name for each in folder.iterdir())
    except OSError:
        return None
    exact = value.startswith("=") or variable.startswith("GLOO")
    entries = _entries(value)
    matching = [name for name in names if any(name == e if exact else name.startswith(e) for e in entries)]
    named = {"variable": variable, "value": value}
    if not matching:
        return Failed(CheckReason.INTERFACE_MISSING, named)
    states = {name: procfs.text(folder / name / "operstate").strip() or "unknown" for name in matching}
    if not any(state in ("up", "unknown") for state in states.values()):  # loopback and tunnels are "unknown"
        return Failed(CheckReason.INTERFACE_DOWN, {"interface": matching[0], "found": states[matching[0]], **named})
    return None


def _ports(node: CheckedNode) -> Iterator[Port]:
    try:
        devices = sorted(Path(node.sysfs, "class/infiniband").iterdir())
    except OSError:
        return
    for device in devices:
        try:
            folders = sorted((device / "ports").iterdir())
        except OSError:
            continue
        for folder in folders:
            state = procfs.text(folder / "state").rpartition(":")[2].strip() or "UNKNOWN"  # "4: ACTIVE"
            rate = (procfs.text(folder / "rate").split() or ["0"])[0]
            texts = {name: procfs.text(folder / "counters" / name).strip() for name in RISES}
            counters = {name: int(text) for name, text in texts.items() if text.isdigit()}
            yield Port(f"{device.name}:{folder.name}", state, int(float(rate)) if _number(rate) else 0, counters)


def _counted(port: Port) -> Iterator[tuple[str, int]]:
    yield "active", int(port.state == ACTIVE)
    if port.state == ACTIVE:
        yield "rate", port.rate
    yield from port.counters.items()


def _number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


CHECK: Final = Check(CheckName.NETWORK, run, limit=5.0)
