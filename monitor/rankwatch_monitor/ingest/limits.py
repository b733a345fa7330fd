"""The limits of what one sender may ask of the monitor, and the counters of what was turned away.

Every limit is a field of :class:`Limits` with its default, unit and meaning; the metrics page and the documentation are
generated from it. What exceeds a limit is answered with a message and counted under one of :data:`REASONS`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple

KIB: Final = 1024
MIB: Final = 1024 * KIB


def _limit(default: int, unit: str, meaning: str) -> Any:
    return field(default=default, metadata={"unit": unit, "meaning": meaning})


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the ingest. Each field's metadata holds its ``unit`` and ``meaning``.

    Raises:
        ValueError: a limit is below 1.
    """

    body_bytes: int = _limit(4 * MIB, "By", "one request body, as sent")
    decompressed_bytes: int = _limit(16 * MIB, "By", "one request body, inflated")
    jobs: int = _limit(1_000, "{job}", "jobs at the same time")
    jobs_per_token: int = _limit(250, "{job}", "jobs that have not ended, of one bound token")
    new_jobs_per_token: int = _limit(1_000, "{job}", "jobs that one bound token may bring in an hour")
    ranks_per_job: int = _limit(131_072, "{rank}", "ranks of one job")
    ranks: int = _limit(262_144, "{rank}", "ranks of all jobs together; ended jobs make room")
    sections_per_job: int = _limit(256, "{section}", "different section names of one job")
    kernels_per_report: int = _limit(512, "{kernel}", "kernels in one report of one rank")
    groups_per_report: int = _limit(64, "{group}", "process groups in one window of one rank")
    name_length: int = _limit(256, "{char}", "characters of a name")
    attributes: int = _limit(128, "{attribute}", "attributes of one resource, data point or span")
    points_per_request: int = _limit(200_000, "{point}", "data points in one request; also half of the values in JSON")
    points_per_report: int = _limit(10_000, "{point}", "metrics and points, or spans, of one resource (rank report)")
    report_bytes: int = _limit(2 * MIB, "By", "one resource (rank report) of a request above 512 KiB, in protobuf")
    resources_per_request: int = _limit(10_000, "{resource}", "resources (rank reports) in one request")
    spans_per_request: int = _limit(50_000, "{span}", "spans in one request; a scope counts as one")
    launchers_per_job: int = _limit(20_000, "{launcher}", "launchers of one job")
    registration_bytes: int = _limit(128 * KIB, "By", "one launcher's registration as JSON")
    launcher_bytes_per_job: int = _limit(64 * MIB, "By", "registrations of one job's launchers")
    launcher_bytes_per_token: int = _limit(64 * MIB, "By", "the same of all jobs of one bound token")
    launcher_bytes: int = _limit(256 * MIB, "By", "the same of all jobs; ended jobs make room")
    evidence_bytes: int = _limit(64 * MIB, "By", "evidence of one job, or of all jobs of a bound token, in a minute")
    evidence_bytes_per_launcher: int = _limit(512 * KIB, "By", "added to it for each launcher")
    log_bytes_per_token: int = _limit(64 * MIB, "By", "logs of ranks that one reader may fetch in a minute")
    facts_per_launcher: int = _limit(64, "{fact}", "facts in one launcher's registration")
    events_per_request: int = _limit(2_000, "{event}", "process events in one request")
    notices_per_request: int = _limit(256, "{notice}", "notices among them")
    processes_remembered: int = _limit(131_072, "{process}", "processes whose last totals are kept")

    def __post_init__(self) -> None:
        for described in describe(self):
            if described.value < 1:
                raise ValueError(f"limit {described.name} is {described.value}; it must be at least 1")


class DescribedLimit(NamedTuple):
    """One limit with its documentation."""

    name: str
    value: int
    unit: str
    meaning: str


def describe(limits: Limits) -> Iterator[DescribedLimit]:
    """Yield every limit with its value, unit and meaning."""
    for each in fields(limits):
        yield DescribedLimit(each.name, getattr(limits, each.name), each.metadata["unit"], each.metadata["meaning"])


REASONS: Final = {
    "body_too_large": "a request body, or what it inflates to, is above its limit",
    "bad_body": "a request body is truncated, corrupt or not OTLP",
    "bad_content_type": "a content type or encoding that is not accepted",
    "disconnected": "the sender went away in the middle of a request",
    "unauthorized": "no token, or one without the right",
    "too_many_points": "too many resources, data points or spans in one request",
    "no_identity": "a resource without the attributes of its job and rank",
    "bad_identity": "a rank outside its world, or attributes that cannot be read",
    "bad_value": "a value that is missing, negative, not finite or of the wrong kind",
    "bad_name": "a name that is missing, unknown, or has control characters",
    "name_too_long": "a name above its limit",
    "too_many_sections": "section names beyond the limit",
    "too_many_kernels": "kernels in one report beyond the limit",
    "too_many_groups": "process groups in one window beyond the limit",
    "too_many_attributes": "attributes beyond the limit",
    "unknown": "an API call about a job, incident or path that is not there",
    "bad_request": "an API call whose body or parameters do not fit",
    "too_many_jobs": "a job beyond the limit",
    "too_many_ranks": "a rank beyond the limit of its job or of all jobs",
    "too_much_evidence": "evidence beyond the limit of a minute",
    "unread": "a reader has not taken earlier responses, or has too many event streams open",
    "too_many_logs": "logs beyond what one reader may fetch in a minute, or at once",
    "held_elsewhere": "about a job that another monitor holds",
    "unavailable": "the monitor could not take it now; the sender was asked to come again",
}
"""Reasons under which requests and items are counted as turned away, with their meaning."""


@dataclass(slots=True)
class Counters:
    """What the ingest accepted and turned away since it started, for ``/metrics``."""

    requests: int = 0
    reports: int = 0
    spans: int = 0
    repeats: int = 0
    """Repeated data points: a batch sent twice, or an SDK's last export at its shutdown. A window or kernel report is
    one."""
    rejected: dict[str, int] = field(default_factory=dict)
    """Items by reason: data points, spans, or requests that were refused as a whole."""

    def reject(self, reason: str, items: int = 1) -> None:
        """Count ``items`` turned away for ``reason``."""
        if items:
            self.rejected[reason] = self.rejected.get(reason, 0) + items
