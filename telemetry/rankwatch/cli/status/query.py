"""Requests of ``rankwatch status``, and which jobs need attention. No formatting.

States of ranks come from the live stream, one byte per rank.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from rankwatch.monitor_client import MonitorClient, path_of

TERMINAL_STATES: Final = ("finished", "failed", "stopped")
RECENT_FAILURE: Final = 3600.0
"""Seconds for which a failed job needs attention in the list of all jobs."""
LOGGED_LATELY: Final = 3600.0
"""Seconds in which logged values that are not finite are looked for."""
_POINTS: Final = 120
_UNKNOWN_ELSEWHERE: Final = {
    "ended_at": None,
    "iteration": None,
    "iterations_per_second": None,
    "restarts": None,
    "max_restarts": None,
    "verdict": "",
    "open_incidents": 0,
    "open_stragglers": 0,
}
"""Fields of a job that another monitor on the same database watches; only that monitor knows them."""

Json = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """State of one job at one time."""

    job: Json
    ranks: Mapping[str, Sequence[int]]
    """By state; states without ranks are omitted."""
    incident: Json | None
    """The open one."""
    last: Json | None
    """The newest closed one."""
    stragglers: Sequence[Json]
    """Open ones, the costliest first."""
    goodput: Json
    not_finite: Mapping[str, Json]
    """Logged values that were NaN or infinite after their last finite one, by name."""

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "job": self.job,
            "ranks": {state: list(members) for state, members in self.ranks.items()},
            "incident": self.incident,
            "last_incident": self.last,
            "stragglers": list(self.stragglers),
            "goodput": self.goodput,
            "not_finite": self.not_finite,
        }


def list_jobs(client: MonitorClient) -> list[Json]:
    """All jobs, newest first; ``monitor`` is set on a job that another monitor watches."""

    def complete(job: Json) -> Json:
        if "monitor" not in job:
            return job
        return {**_UNKNOWN_ELSEWHERE, **job, "reason": f"watched by monitor {job['monitor']}" if job["monitor"] else ""}

    return _validated(client, lambda: [complete(each) for each in client.listed("/jobs", "jobs")])


def job_snapshot(client: MonitorClient, job_id: str) -> JobSnapshot:
    """Fetch one job with its ranks, incidents, stragglers and goodput."""
    path = path_of(job_id)
    job = client.read(path)
    live = client.first_events(f"{path}/events", frozenset(("grid",)))
    incidents = client.listed(f"{path}/incidents", "incidents")
    stragglers = client.listed(f"{path}/stragglers", "stragglers")
    goodput = client.read(f"{path}/goodput")

    def build() -> JobSnapshot:
        since = (job["ended_at"] or client.now()) - LOGGED_LATELY
        return JobSnapshot(
            job=job,
            ranks=by_state(live.get("grid", {})),
            incident=next((each for each in incidents if each["phase"] != "closed"), None),
            last=next((each for each in incidents if each["phase"] == "closed"), None),
            stragglers=[each for each in stragglers if each["ended"] is None],
            goodput=goodput,
            not_finite=not_finite(client.read(f"{path}/trends?since={since:.0f}&points={_POINTS}")),
        )

    return _validated(client, build)


def in_trouble(job: Json, now: float, *, alone: bool) -> bool:
    """Whether a job needs attention; ``alone``: a single job was requested, so an old failure counts."""
    if job["state"] == "failed":
        return alone or now - (job["ended_at"] or now) < RECENT_FAILURE
    if job["state"] in TERMINAL_STATES:
        return False
    if job["state"] in ("hung", "restarting", "lost"):
        return True
    return bool(job["open_incidents"] or job["open_stragglers"])


def by_state(grid: Json) -> dict[str, list[int]]:
    """Ranks by state from the live grid's bytes, in the order of its legend."""
    found: dict[str, list[int]] = {str(state): [] for state in grid.get("legend", ())}
    names = list(found)
    try:
        codes = base64.b64decode(grid.get("states", ""))
    except (binascii.Error, TypeError):
        return {}
    for rank, code in enumerate(codes):
        if code < len(names):
            found[names[code]].append(rank)
    return {state: members for state, members in found.items() if members}


def not_finite(trends: Json) -> dict[str, Json]:
    """How many values of a name were NaN or infinite after its ``last_finite`` one, where there were any."""
    found: dict[str, Json] = {}
    for name, counts in trends["non_finite"].items():
        bad, finite = 0.0, None
        for value, number in zip(trends["logged"][name], counts, strict=False):
            if number:
                bad += number
            elif value is not None:
                bad, finite = 0.0, value
        if bad:
            found[name] = {"values": round(bad), "last_finite": finite}
    return found


def _validated(client: MonitorClient, read: Callable[[], T]) -> T:
    """Run ``read``; a malformed response raises the error for a server that is no monitor."""
    try:
        return read()
    except (KeyError, TypeError, AttributeError):
        raise client.not_a_monitor() from None
