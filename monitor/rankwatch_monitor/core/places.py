"""Which rack, switch or NVLink domain several nodes have in common that the others do not share."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple


class SharedPlace(NamedTuple):
    """A place that holds all of several nodes, which are most of the job's nodes there."""

    label: str
    """``switch=s2``."""
    nodes: int
    of: int
    """Nodes of the job there."""


def shared_place(paths: Mapping[str, Sequence[str]], hosts: Collection[str]) -> SharedPlace | None:
    """The narrowest place of several hosts; None: they are one, or share none that tells them from the others.

    ``paths``: labels of all hosts of the job, the widest first.
    """
    wanted = set(hosts)
    if len(wanted) < 2 or not wanted <= paths.keys():
        return None
    for label in reversed(paths[min(wanted)]):
        there = {host for host, path in paths.items() if label in path}
        if wanted <= there and len(there) < len(paths) and 2 * len(wanted) > len(there):
            return SharedPlace(label, len(wanted), len(there))
    return None
