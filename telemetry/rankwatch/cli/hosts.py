"""Shortens host names to the part in which they differ."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rankwatch.cli.status.query import JobSnapshot

SAVES: Final = 8
"""Characters that shortening must save."""
_DOMAIN: Final = re.compile(r"\b([A-Za-z0-9-]+)(?:\.[A-Za-z0-9-]+){2,}\b")
_LONGEST_HOST: Final = 32


def short_names(hosts: Iterable[str]) -> dict[str, str]:
    """Each host without the prefix and suffix that all share, cut at ``-``, ``_`` or ``.``; empty if that saves little.

    >>> short_names(["gpu-pool-a-001.cluster.internal", "gpu-pool-a-002.cluster.internal"])
    {'gpu-pool-a-001.cluster.internal': '…001', 'gpu-pool-a-002.cluster.internal': '…002'}
    """
    names = sorted({host for host in hosts if host})
    if len(names) < 2:
        return {}
    before = _shared(names)
    after = _shared([name[len(before) :][::-1] for name in names])
    if len(before) + len(after) < SAVES:
        return {}
    ends = len(after)
    cores = [name[len(before) : len(name) - ends] for name in names]
    if not all(cores):
        return {}
    return {
        name: f"{'…' if before else ''}{core}{'' if before else '…'}" for name, core in zip(names, cores, strict=True)
    }


def legend(names: Mapping[str, str]) -> list[str]:
    """One line that explains the shortened names; none if there are none."""
    return [f"hosts are shortened: {short} is {full}" for full, short in list(names.items())[:1]]


def shortened(value: Any, names: Mapping[str, str]) -> Any:
    """JSON with the hosts replaced in all its texts."""
    if isinstance(value, str):
        for host in sorted(names, key=len, reverse=True):
            value = value.replace(host, names[host])
        return value
    if isinstance(value, Mapping):
        return {key: shortened(each, names) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [shortened(each, names) for each in value]
    return value


def hosts_of(job: Mapping[str, Any]) -> list[str]:
    """The hosts and node names of a job as ``GET /jobs/{id}`` shows it."""
    return [node[name] for node in job.get("nodes", ()) for name in ("host", "node")]


def short_snapshot(snapshot: JobSnapshot, names: Mapping[str, str]) -> JobSnapshot:
    """The snapshot with the hosts replaced."""
    if not names:
        return snapshot
    return JobSnapshot(
        job=shortened(snapshot.job, names),
        ranks=snapshot.ranks,
        incident=shortened(snapshot.incident, names),
        last=shortened(snapshot.last, names),
        stragglers=shortened(snapshot.stragglers, names),
        goodput=snapshot.goodput,
        not_finite=snapshot.not_finite,
    )


def without_domains(text: str) -> str:
    """The text with the domain of long host names elided, where a reason is abbreviated anyway."""
    return _DOMAIN.sub(lambda found: f"{found[1]}…" if len(found[0]) > _LONGEST_HOST else found[0], text)


def _shared(names: list[str]) -> str:
    """The common beginning up to a separator, so that no number is split."""
    first, last = min(names), max(names)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[: max(first.rfind(each, 0, same) for each in "-_.") + 1]
