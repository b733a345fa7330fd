"""Shell commands about a host that a person copies. Names are those that launchers reported, so they are quoted."""

from __future__ import annotations

import shlex
from collections.abc import Iterable


def reach(host: str, *, slurm: bool = False) -> str:
    """Show whether a host is up."""
    name = shlex.quote(host)
    return f"ping -c 3 -- {name}; sinfo -n {name}" if slurm else f"ping -c 3 -- {name}"


def drain(node: str) -> str:
    """Give a node of Slurm no further jobs."""
    return f"scontrol update nodename={shlex.quote(node)} state=drain reason=rankwatch"


def gpu(selector: str = "") -> str:
    """Show errors, throttling and temperature of a GPU, on its host.

    ``selector``: as ``nvidia-smi -i`` takes it; empty: all.
    """
    one = f" -i {shlex.quote(selector)}" if selector else ""
    return f"nvidia-smi -q{one} -d ECC,PERFORMANCE,TEMPERATURE"


def xid() -> str:
    """Show what the driver reported of the GPUs, on their host."""
    return "dmesg -T | grep -i xid"


def processes(pids: Iterable[int]) -> str:
    """Show whether processes run, sleep or are stuck in the kernel, on their host."""
    return f"ps -o pid,stat,etime,wchan:24,args -p {','.join(map(str, pids))}"
