"""Encodes jobs and incidents as JSON, and decodes them. Per-rank columns are not stored: ranks resend them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Final, NamedTuple

from rankwatch.contract.enums import NodeRole, VerdictKind
from rankwatch.contract.messages import Directive, NodeRegistration, ProcessEvent, read
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.goodput.ledger import Ledger
from rankwatch_monitor.core.hang.observed_durations import ObservedDurations
from rankwatch_monitor.core.hang.stacks import Stacks
from rankwatch_monitor.core.hang.verdict import causes_to_json
from rankwatch_monitor.core.incident_record import Incident, Standstill
from rankwatch_monitor.core.job import Ending, Job, Node, NodeLoss, StopRequest, registration_to_json
from rankwatch_monitor.core.plain import named, plain
from rankwatch_monitor.core.rank_runs import MOST_RANKS, RankRuns

UNREADABLE: Final = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)
"""What decoding a row raises that something else has written."""
_PLAIN: Final = (
    *("name", "world_size", "attempt", "attempt_since", "restarts", "given_back", "launches", "restarting_attempt"),
    *("last_directive", "last_incident"),
)
"""Attributes of a job that are stored as they are."""


def job_row(job: Job, *, nodes: bool = True) -> dict[str, Any]:
    """A job as a row of the table ``jobs``; without its ``nodes`` where those have a row of their own."""
    row: dict[str, Any] = {
        "id": job.id,
        "created_at": job.created_at,
        "last_heard": job.last_heard,
        "policy": job.policy.to_json(),
        "learned": job.durations.to_json(),
        "body": {
            **named(job, (*_PLAIN, "incident_counts", "standstills", "ended", "stopping")),
            "spoke": job.ever_instrumented,
            "stepped": job.counts_steps,
            "ledger": job.ledger.to_json(),
        },
    }
    if nodes:
        row["body"]["nodes"] = [launcher_body(copy_of_launcher(node)) for node in job.nodes.values()]
    return row


class StoredLauncher(NamedTuple):
    """What is stored of a launcher, as of one moment."""

    registration: NodeRegistration
    attempt: int
    ranks: tuple[int, ...]
    ended: ProcessEvent | None
    role: NodeRole
    role_reason: str
    lost: NodeLoss | None
    former: tuple[int, ...]


def copy_of_launcher(node: Node) -> StoredLauncher:
    """Copy a launcher as of now, to be compared and encoded later."""
    return StoredLauncher(
        *(node.registration, node.attempt, tuple(node.ranks), node.ended),
        *(node.role, node.role_reason, node.lost, tuple(node.former)),
    )


def launcher_body(node: StoredLauncher) -> dict[str, Any]:
    """A body of the table ``launchers``, encoded on any thread."""
    return {
        "registration": registration_to_json(node.registration),
        **named(node, ("attempt", "ended", "role", "role_reason", "lost")),
        "ranks": sorted(node.ranks),
        "former": sorted(node.former),
    }


def is_world(size: Any) -> bool:
    """Whether a job may have so many ranks."""
    return isinstance(size, int) and 0 <= size <= MOST_RANKS


def job_of(row: Mapping[str, Any], now: float, nodes: Sequence[Mapping[str, Any]] | None = None) -> Job:
    """The job of a row, loaded by a monitor that starts at ``now``, from which silence is measured.

    What the writer did not know is as in a new job.

    ``nodes`` are the bodies of its rows of the table ``launchers``; None: the row holds them, as in a recording.

    Raises:
        ValueError: it has more ranks than any job.
    """
    if not is_world(row["body"]["world_size"]):  # without it, it is no job
        raise ValueError("it has more ranks than any job")
    body = {**job_row(Job(row["id"], row["created_at"]))["body"], **row["body"]}
    job = Job(row["id"], row["created_at"], policy=Policy().changed(row["policy"]))
    for name in _PLAIN:
        setattr(job, name, body[name])
    job.last_heard = job.heard_before = row["last_heard"]
    job.silence_baseline = now
    job.columns.grow(job.world_size)
    job.instrumented_before, job.stepped_before = body["spoke"], body["stepped"]
    job.incident_counts = {VerdictKind(kind): count for kind, count in body["incident_counts"].items()}
    job.standstills.extend(read(Standstill, each, own=True) for each in body["standstills"])
    job.durations = read(ObservedDurations, row["learned"], own=True)
    job.ledger = Ledger.of_json(body["ledger"])
    if body["ended"]:
        job.ended = read(Ending, body["ended"])
    if body["stopping"]:
        job.stopping = read(StopRequest, body["stopping"])
    if nodes is None:
        nodes = body.get("nodes", ())
    for stored in nodes:
        kept = read(StoredLauncher, stored, own=True)
        registration, former = kept.registration, array("i", kept.former)
        seen = (kept.ended, kept.role, kept.role_reason, kept.lost)
        node = Node(registration, now, kept.attempt, set(kept.ranks), *seen, former)
        job.nodes[registration.node] = node
        for rank in node.ranks:
            if rank < job.world_size:
                job.columns.launchers[rank] = registration.node
                job.columns.hosts[rank] = registration.host  # a rank that hangs or has ended reports it no more
    return job


def incident_row(incident: Incident) -> dict[str, Any]:
    """An incident as a row of the table ``incidents``."""
    return {**incident_columns(incident), "body": incident_body(incident)()}


def incident_columns(incident: Incident) -> dict[str, Any]:
    """The columns of an incident's row, without its body."""
    return {
        "id": incident.id,
        "job_id": incident.job_id,
        "opened_at": incident.opened_at,
        "closed_at": incident.closed_at,
    }


def incident_body(incident: Incident) -> Callable[[], dict[str, Any]]:
    """Copy an incident as of now; the returned function encodes the body of its row, on any thread."""
    body = {each.name: getattr(incident, each.name) for each in fields(incident)}
    body["stacks"], body["heard_nodes"] = stacks, nodes = incident.stacks.copy(), set(incident.heard_nodes)

    def encode() -> dict[str, Any]:
        own = {"affected", "lost_peer", "culprits", "stacks", "heard_nodes"}
        return {name: plain(value) for name, value in body.items() if name not in own} | {
            "affected": list(body["affected"]),
            "lost_peer": list(body["lost_peer"]),
            "culprits": [
                {**c._asdict(), "cause": cause}
                for c, cause in zip(body["culprits"], causes_to_json(body["culprits"]), strict=True)
            ],
            "stacks": stacks.to_json(),
            "heard_nodes": sorted(nodes),
        }

    return encode


def incident_of(row: Mapping[str, Any]) -> Incident:
    """The incident of a row."""
    body = row["body"]
    made = {
        "affected": RankRuns(body["affected"]),
        "lost_peer": RankRuns(body["lost_peer"]),
        "heard_nodes": set(body["heard_nodes"]),
        "stacks": Stacks.of_json(body["stacks"]),
    }
    return read(Incident, {**body, **made}, own=True)


def directive_row(job_id: str, directive: Directive) -> dict[str, Any]:
    """A directive as a row of the table ``directives``."""
    return {"job_id": job_id, "id": directive.id, "body": asdict(directive)}


def directive_of(row: Mapping[str, Any]) -> Directive:
    """The directive of a row."""
    return read(Directive, row["body"])
