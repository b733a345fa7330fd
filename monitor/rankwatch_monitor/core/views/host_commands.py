"""Shell commands about a host that a person copies. Names are those that launchers reported, so they are quoted."""

from __future__ import annotations

import shlex


def reach(host: str, *, slurm: bool = False) -> str:
    """Show whether a host is up."""
    name = shlex.quote(host)
    return f"ping -c 3 -- {name}; sinfo -n {name}" if slurm else f"ping -c 3 -- {name}"


def drain(node: str) -> str:
    """Give a node of Slurm no further jobs."""
    return f"scontrol update nodename={shlex.quote(node)} state=drain reason=rankwatch"
