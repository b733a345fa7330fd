"""Converts a snapshot to W&B's terms: a row of numbers, tables, alerts. Pure; does not import wandb.

The table in ``docs/reference.md`` is generated from :data:`METRICS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from rankwatch.cli.formatting import action_line, fault
from rankwatch.contract.enums import JobState, VerdictKind
from rankwatch_monitor.core.views import phases
from rankwatch_monitor.publish.snapshot import Snapshot, WorstRank

PREFIX: Final = "rankwatch/"
ITERATION: Final = f"{PREFIX}iteration"
WORST_RANKS: Final = f"{PREFIX}worst_ranks"
INCIDENTS: Final = f"{PREFIX}incidents"
STRAGGLERS: Final = f"{PREFIX}stragglers"
FAILED: Final = (JobState.FAILED, JobState.LOST)
"""States that end a run as failed; an orderly stop is not a failure."""
LONGEST_TITLE: Final = 63
LONGEST_TEXT: Final = 2000
_LONGEST_ACTION: Final = 500


class Metric(NamedTuple):
    """One logged value."""

    name: str
    unit: str
    meaning: str


CURATED: Final = "curated"
ALL: Final = "all"
SERIES: Final = (CURATED, ALL)
"""Which numbers are logged."""
CURATED_NAMES: Final = (
    *("iteration", "steps_per_second", "step_seconds", "goodput", "restarts", "open_incidents", "open_stragglers"),
    *("lateness_max", "gpu_robust_min"),
    *(f"gpu_{score}_{part}" for score in ("relative", "individual") for part in ("min", "median", "max")),
)
"""Numbers of :data:`CURATED`, without the prefix."""
_SPREAD: Final = "`_min`, `_median` and `_max` over ranks"
METRICS: Final = (
    Metric(ITERATION, "{step}", "furthest step of any rank; the horizontal axis of all others"),
    Metric(f"{PREFIX}gpu_relative", "1", f"kernels against the fastest rank, 1 is best: {_SPREAD}"),
    Metric(f"{PREFIX}gpu_individual", "1", f"kernels against the rank's own best: {_SPREAD}"),
    Metric(f"{PREFIX}gpu_robust", "1", f"kernels against the middle of the rank's peers: {_SPREAD}"),
    Metric(
        f"{PREFIX}section/NAME/relative",
        "1",
        f"time in a section against the fastest rank, likewise `individual` and `robust`: {_SPREAD}",
    ),
    Metric(f"{PREFIX}lateness_max", "s", "of each step, for which the others wait for the latest rank"),
    Metric(f"{PREFIX}steps_per_second", "{step}/s", "speed of the job; 0 while no step completes"),
    Metric(f"{PREFIX}step_seconds", "s", "time of a step in the last window, median over ranks; while the job runs"),
    Metric(f"{PREFIX}goodput", "1", "part of the job's life in steps that were kept"),
    Metric(f"{PREFIX}attempt", "{attempt}", "number of the attempt that runs"),
    Metric(f"{PREFIX}restarts", "{restart}", "restarts of the ranks within the job"),
    Metric(f"{PREFIX}open_incidents", "{incident}", "0 or 1"),
    Metric(f"{PREFIX}open_stragglers", "{rank}", "ranks that are slow now, by their own fault"),
    Metric(f"{PREFIX}cost_gpu_hours", "h", "GPU-hours that stragglers have cost the job so far"),
    Metric(WORST_RANKS, "table", "stragglers, then the ranks with the lowest scores; once a report interval"),
    Metric(INCIDENTS, "table", "incidents, and what each phase of them took; when one changed"),
    Metric(STRAGGLERS, "table", "stragglers with cause, reason and cost; when one came or went"),
)


class Table(NamedTuple):
    """One table; ``key`` is equal while it need not be logged again, but once a report interval if it ``varies``."""

    columns: tuple[str, ...]
    data: list[list[Any]]
    key: object
    varies: bool = False


class Alert(NamedTuple):
    """An alert, sent once. ``current`` is false for what ended before the monitor started."""

    id: str
    title: str
    text: str
    level: str
    current: bool


def named(snapshot: Snapshot, name: str) -> str:
    """The name on a job whose kernel timings are those of the CPU: ``cpu`` stands for ``gpu``."""
    return name.replace("gpu", "cpu") if snapshot.on_cpu else name


def row(snapshot: Snapshot, series: str = ALL) -> dict[str, float]:
    """The numbers of a snapshot; unknown ones are omitted."""
    values: dict[str, float | None] = {
        "iteration": snapshot.iteration,
        "lateness_max": snapshot.lateness,
        "steps_per_second": snapshot.steps_per_second,
        "step_seconds": snapshot.step_seconds if snapshot.state in (JobState.RUNNING, JobState.SLOW) else None,
        "goodput": snapshot.goodput,
        "attempt": snapshot.attempt,
        "restarts": snapshot.restarts,
        "open_incidents": sum(incident["closed_at"] is None for incident in snapshot.incidents),
        "open_stragglers": snapshot.open_stragglers,
        "cost_gpu_hours": snapshot.cost_gpu_hours,
    }
    for name, spread in snapshot.spreads.items():
        values |= {f"{name}_min": spread.min, f"{name}_median": spread.median, f"{name}_max": spread.max}
    return {
        f"{PREFIX}{named(snapshot, name)}": value
        for name, value in values.items()
        if value is not None and (series == ALL or name in CURATED_NAMES)
    }


def config(snapshot: Snapshot) -> dict[str, Any]:
    """The configuration of the run."""
    return {"job_id": snapshot.job_id, "world_size": snapshot.world_size, "policy": dict(snapshot.policy)}


def page_of(page: str | None, job_id: str) -> str | None:
    """The job on the monitor's page, whose address is ``page``."""
    return f"{page.rstrip('/')}/#/jobs/{quote(job_id, safe='', errors='replace')}" if page else None


def summary(snapshot: Snapshot, page: str | None = None) -> dict[str, str]:
    """State and diagnosis of the job, as text, with the job's address on the monitor's page."""
    more = {f"{PREFIX}headline": snapshot.headline, f"{PREFIX}page": page_of(page, snapshot.job_id)}
    return {name: text for name, text in more.items() if text} | {
        f"{PREFIX}state": str(snapshot.state),
        f"{PREFIX}reason": snapshot.reason,
        f"{PREFIX}verdict": snapshot.verdict,
        f"{PREFIX}verdict_reason": snapshot.verdict_reason,
    }


# Tables ---------------------------------------------------------------------------------------------------------------

_PHASES: Final = (
    *(f"{name}_s" for name in phases.NAMES),
    "lost_steps_s",
    "total_s",
    "steps_lost",
)
_INCIDENT: Final = ("id", "opened", "kind", "attempt", "culprits", "reason", "action", "outcome", "open", *_PHASES)
_STRAGGLER: Final = (
    *("id", "rank", "host", "device", "cause", "reference", "reason", "since", "ended"),
    *("score", "lateness", "share", "cost_gpu_hours", "action"),
)


def tables(snapshot: Snapshot) -> dict[str, Table]:
    """The tables of a snapshot by name."""
    incidents = [_incident(incident) for incident in snapshot.incidents]
    slow = tuple((s["id"], s["ended"]) for s in snapshot.stragglers)
    worst, straggler = (tuple(named(snapshot, name) for name in columns) for columns in (WorstRank._fields, _STRAGGLER))
    return {
        WORST_RANKS: Table(worst, [list(rank) for rank in snapshot.worst], slow, varies=True),
        INCIDENTS: Table(_INCIDENT, incidents, tuple(map(tuple, incidents))),
        STRAGGLERS: Table(straggler, [_straggler(s) for s in snapshot.stragglers], slow),
    }


def _incident(incident: Mapping[str, Any]) -> list[Any]:
    culprits = ", ".join(f"rank {c['rank']} on {c['host']}: {c['class']}" for c in incident["culprits"])
    shown = dict(incident) | {
        "opened": _when(incident["opened_at"]),
        "culprits": culprits,
        "open": incident["closed_at"] is None,
    }
    return [shown[name] for name in _INCIDENT]


def _straggler(straggler: Mapping[str, Any]) -> list[Any]:
    shown = dict(straggler) | {"since": _when(straggler["since"]), "ended": _when(straggler["ended"])}
    return [shown[name] for name in _STRAGGLER]


def _when(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


# Alerts ---------------------------------------------------------------------------------------------------------------


def alerts(snapshot: Snapshot, since: float, page: str | None = None) -> Iterator[Alert]:
    """One per confirmed incident and straggler; what ended before ``since`` (unix seconds) is not sent."""
    link = page_of(page, snapshot.job_id)
    for incident in snapshot.incidents:
        if incident["confirmed"] and not incident["provisional"]:
            title = _title(fault(incident["kind"]) + _of(incident["culprits"]), snapshot)
            here = link and f"{link}/incidents/{quote(incident['id'], safe='', errors='replace')}"
            current = incident["closed_at"] is None or incident["closed_at"] >= since
            text = _text(incident["reason"], action_line(incident)[:_LONGEST_ACTION], here)
            yield Alert(incident["id"], title, text, _level(incident), current)
    for straggler in snapshot.stragglers:
        title = _title(f"rank {straggler['rank']} is slow: {straggler['cause']}", snapshot)
        current = straggler["ended"] is None or straggler["ended"] >= since
        yield Alert(straggler["id"], title, _text(straggler["reason"], link), "WARN", current)


def _level(incident: Mapping[str, Any]) -> str:
    if incident["kind"] == VerdictKind.ORDERED:
        return "INFO"
    return "WARN" if incident["kind"] == VerdictKind.STRAGGLER else "ERROR"


def _of(culprits: list[Mapping[str, Any]]) -> str:
    if not culprits:
        return ""
    return f", rank {culprits[0]['rank']}" + (f" and {len(culprits) - 1} more" if len(culprits) > 1 else "")


def _title(what: str, snapshot: Snapshot) -> str:
    return f"{what} ({snapshot.name})"[:LONGEST_TITLE]


def _text(reason: str, *below: str | None) -> str:
    end = "".join(f"\n{line}" for line in below if line)
    return reason[: LONGEST_TEXT - len(end)] + end
