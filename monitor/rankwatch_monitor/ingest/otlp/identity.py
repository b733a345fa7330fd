"""Reads resource attributes: which process of which job sent a resource, or why that is unknown."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from rankwatch.contract import semconv, text
from rankwatch_monitor.core.events import RankIdentity
from rankwatch_monitor.ingest.limits import Limits
from rankwatch_monitor.ingest.rejection import Forbidden, Refusal, Rejection, quote

Value = str | int | float
_SYNONYM, _NAME = semconv.SYNONYM_PREFIX
_LARGEST: Final = 2**63 - 1
_LONGEST_NUMERAL: Final = 20


_OURS: Final = (semconv.JOB_ID, semconv.ATTEMPT, semconv.PROCESS_START_TIME)
"""Attributes of every Rankwatch rank; a resource without one of them is of another emitter."""
ROLE: Final = "dl.role"
_TRAINER: Final = ("", "trainer", "worker", "train")
_JOBS: Final = ("slurm.job.id", "dl.job.uuid")
"""NeMo Lens's attributes that distinguish jobs of one service name: equal on all ranks and after a restart."""
_RUN: Final = "dl.run.uuid"
_RESTARTS: Final = "slurm.restart_count"


class Identified(NamedTuple):
    """The process that sent a resource, and warnings about attributes that were cut or left out."""

    identity: RankIdentity
    warnings: tuple[Rejection, ...] = ()
    foreign: bool = False
    """Of another emitter, whose metrics and spans need not follow Rankwatch's conventions."""


def check_jobs(senders: Iterable[Identified | Rejection], forbidden: Forbidden) -> None:
    """Check that a request reports on no forbidden job, before it has any effect.

    Raises:
        Refusal: 403, it does.
    """
    for job_id in {sender.identity.job_id for sender in senders if isinstance(sender, Identified)}:
        if (why := forbidden(job_id)) is not None:
            raise Refusal(403, "unauthorized", why)


def identify(resource: Resource, limits: Limits) -> Identified | Rejection:
    """The process that sent a resource, or why the resource is rejected.

    Overlong names are rejected where they identify a process, else cut. An invalid coordinate of the parallel layout is
    left out, since a rank can be monitored without it.
    """
    if len(resource.attributes) > limits.attributes:
        return Rejection(
            "too_many_attributes", f"resource with {len(resource.attributes)} attributes, limit {limits.attributes}"
        )
    values = _values(resource)
    numbers: dict[str, int] = {}
    for name in (semconv.RANK, semconv.WORLD_SIZE, semconv.ATTEMPT):
        if values.get(name, "") != "":
            number = _whole(values[name])
            if number is None or number < 0:
                return Rejection("bad_identity", f"{name} {quote(values[name])} is not a number from 0 up")
            numbers[name] = number

    role = _text(values, ROLE)
    if role not in _TRAINER:
        # Checkpoint writers and the like carry the rank that they work for.
        return Rejection("no_identity", f"resource of a {quote(role)} (nv.{ROLE}), which is not a training rank itself")
    foreign = not all(name in values for name in _OURS)
    job_name = _text(values, semconv.SERVICE_NAME)
    job_id = _text(values, semconv.JOB_ID) or _job_of(values, job_name)
    if foreign and semconv.ATTEMPT not in numbers:
        numbers[semconv.ATTEMPT] = max(0, _whole(values.get(_RESTARTS, 0)) or 0)
    problem = _check(job_id, numbers, limits)
    if problem is not None:
        return problem
    instance = _instance(values, numbers[semconv.RANK], foreign)
    for name, given in ((semconv.JOB_ID, job_id), (semconv.SERVICE_INSTANCE_ID, instance)):
        if len(given) > limits.name_length:
            return Rejection("name_too_long", f"{name} has {len(given)} characters, limit {limits.name_length}")

    shown = {
        name: text.one_line(_text(values, name), _LARGEST)
        for name in (semconv.SERVICE_NAME, semconv.HOST_NAME, semconv.HW_ID)
    }
    cut = [name for name, given in shown.items() if len(given) > limits.name_length]
    local_rank, pid = _whole(values.get(semconv.LOCAL_RANK, -1)), _whole(values.get(semconv.PROCESS_PID, 0))
    places = _places(values, limits)
    identity = RankIdentity(
        # Thousands of ranks share the names of their job and host: one copy of each is kept.
        job_id=sys.intern(job_id),
        rank=numbers[semconv.RANK],
        job_name=sys.intern(shown[semconv.SERVICE_NAME][: limits.name_length]),
        local_rank=-1 if local_rank is None else local_rank,
        world_size=numbers.get(semconv.WORLD_SIZE, 0),
        attempt=numbers.get(semconv.ATTEMPT, 0),
        host=sys.intern(shown[semconv.HOST_NAME][: limits.name_length]),
        pid=pid or 0,
        instance=instance,
        started_at=_unix_seconds(_text(values, semconv.PROCESS_START_TIME)),
        device=shown[semconv.HW_ID][: limits.name_length],
        **{dimension: place for dimension, place in places.items() if place is not None},
    )
    odd = [f"dl.{dimension}.rank" for dimension, place in places.items() if place is None]
    return Identified(identity, tuple(_warnings(cut, odd, limits)), foreign)


def _instance(values: dict[str, Value], rank: int, foreign: bool) -> str:
    """The ID of the process."""
    instance = _text(values, semconv.SERVICE_INSTANCE_ID)
    if foreign and (not instance or instance.endswith(f"rank{rank}")):
        # NeMo Lens puts only the rank there, which a restarted process would share with its predecessor.
        more = (_text(values, semconv.HOST_NAME), _text(values, semconv.PROCESS_PID), _text(values, _RUN))
        instance = "/".join(filter(None, (instance, *more)))
    return instance


def _warnings(cut: Sequence[str], odd: Sequence[str], limits: Limits) -> Iterator[Rejection]:
    """What was left out of an identity: the ends of names, and coordinates of the parallel layout."""
    if cut:
        yield Rejection("name_too_long", f"{', '.join(cut)} cut to {limits.name_length} characters")
    if odd:
        yield Rejection("bad_identity", f"{', '.join(odd)} left out: not a number from 0 up to below its size")


def _job_of(values: dict[str, Value], job_name: str) -> str:
    """The id of a job without Rankwatch's own: its name, and what distinguishes it from others of that name."""
    distinguishing = next((found for name in _JOBS if (found := _text(values, name))), "")
    # Ids are used in URL paths; names like "team/model" are common.
    return "-".join(filter(None, (job_name, distinguishing))).replace("/", "-")


def _places(values: dict[str, Value], limits: Limits) -> dict[str, int | None]:
    """The coordinates in the parallel layout; None where one is invalid."""
    places: dict[str, int | None] = {}
    for dimension in semconv.PARALLEL_DIMENSIONS:
        given, size = values.get(f"dl.{dimension}.rank"), values.get(f"dl.{dimension}.size")
        if given is not None:
            place, end = _whole(given), None if size is None else _whole(size)
            fits = place is not None and 0 <= place < min(limits.ranks_per_job, end or limits.ranks_per_job)
            places[dimension] = place if fits else None
    return places


def _check(job_id: str, numbers: dict[str, int], limits: Limits) -> Rejection | None:
    rank, world_size = numbers.get(semconv.RANK), numbers.get(semconv.WORLD_SIZE, 0)
    if rank is None:
        return Rejection(
            "no_identity", f"resource without {semconv.RANK}: set it and {semconv.JOB_ID} or {semconv.SERVICE_NAME}"
        )
    if not job_id:
        return Rejection(
            "no_identity",
            f"resource without a job: set {semconv.JOB_ID} or {semconv.SERVICE_NAME} beside {semconv.RANK}",
        )
    if "/" in job_id or job_id in (".", ".."):
        return Rejection(
            "bad_identity",
            f"{semconv.JOB_ID} {quote(job_id)} cannot be part of a URL: use no / and not . or .. alone",
        )
    if not job_id.isprintable():
        return Rejection("bad_identity", f"job {quote(job_id)} contains control characters")
    if world_size and rank >= world_size:
        return Rejection(
            "bad_identity",
            f"{semconv.RANK} {rank} is outside the world: {semconv.WORLD_SIZE} is {world_size}, so the last rank is "
            f"{world_size - 1}",
        )
    if max(rank + 1, world_size) > limits.ranks_per_job:
        return Rejection(
            "bad_identity",
            f"{semconv.RANK} {rank} of {semconv.WORLD_SIZE} {world_size} is above the limit of {limits.ranks_per_job} "
            "ranks per job",
        )
    return None


def _values(resource: Resource) -> dict[str, Value]:
    values: dict[str, Value] = {}
    synonyms: dict[str, Value] = {}
    for attribute in resource.attributes:
        value = _scalar(attribute.value)
        if value is None:
            continue
        key = attribute.key
        if key.startswith(_SYNONYM):
            synonyms[_NAME + key[len(_SYNONYM) :]] = value
        else:
            values[key] = value
    return synonyms | values


def _scalar(value: AnyValue) -> Value | None:
    kind = value.WhichOneof("value")
    if kind == "string_value":
        return value.string_value
    if kind == "int_value":
        return value.int_value
    return value.double_value if kind == "double_value" else None


def _text(values: dict[str, Value], name: str) -> str:
    return str(values.get(name, ""))


def _whole(value: Value) -> int | None:
    """The whole number in an attribute; senders write ranks as ints, strings and doubles."""
    if isinstance(value, str):
        # int() would also accept underscores, spaces and the digits of other scripts.
        digits = value[1:] if value.startswith("-") else value
        if not (digits.isascii() and digits.isdigit()) or len(value) > _LONGEST_NUMERAL:
            return None
        number = int(value)
    elif isinstance(value, float):
        if not value.is_integer():
            return None
        number = int(value)
    else:
        number = value
    return number if -_LARGEST <= number <= _LARGEST else None


def _unix_seconds(given: str) -> float:
    """Unix seconds of an ISO 8601 text, in UTC if it has no offset; 0 when it is invalid."""
    try:
        moment = datetime.fromisoformat(given)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return 0.0
