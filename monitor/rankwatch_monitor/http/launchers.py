"""The routes of launchers: registration, directives, acknowledgements, process events, observations and evidence.

The message types are defined in ``rankwatch.contract.messages``. :class:`LauncherMessages` validates and applies what
launchers report; the routes here and the fast lane (:mod:`rankwatch_monitor.http.fastlane.launchers`) both call it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request, Response
from pydantic import BaseModel, Field

from rankwatch.contract import ft_state, semconv
from rankwatch.contract import job_id as job_ids
from rankwatch.contract.enums import ProcessEventKind
from rankwatch.contract.messages import (
    DirectiveAck,
    Evidence,
    NodeObservation,
    NodeRegistration,
    ProcessEvent,
    RunClaim,
)
from rankwatch_monitor.core import apply, liveness, nodes
from rankwatch_monitor.core.events import Acknowledged
from rankwatch_monitor.core.incident.settings_push import settings_of
from rankwatch_monitor.core.job import Job, Node, registration_bytes
from rankwatch_monitor.http.auth import grant_of, still_granted
from rankwatch_monitor.http.bodies import FirstError
from rankwatch_monitor.http.tokens import record
from rankwatch_monitor.http.validation import check, check_evidence, clean, clean_evidence
from rankwatch_monitor.service.audit import AuditLog
from rankwatch_monitor.service.monitor import Monitor
from rankwatch_monitor.service.quotas import SECTIONS_AT_ONCE, claimed_ranks, section_limit

LONGEST_WAIT = 30.0
"""Seconds a long poll may last: below the idle timeouts of proxies between launcher and monitor."""

EVALUATIONS = 16
"""Evaluations of a job for one batch of events, but for the last; a launcher's batch needs three or four."""
IGNORED = (
    "the {} of this launcher is ignored: it has {}, and its token does not allow control. Start all launchers of a job "
    "alike, change its policy with 'rankwatch policy', or give them a token with the control scope"
)


class ProcessEvents(BaseModel):
    """A batch of process events, in the order in which they happened."""

    events: list[ProcessEvent] = Field(max_length=10_000, fail_fast=True, description="fewer: see the limits")


class LauncherMessages:
    """Validates what launchers report and submits it to the monitor. Each method raises before it has any effect.

    Raises:
        HTTPException: 404, the launcher is not registered; 422, a value is invalid.
        UnknownJobError: there is no such job.
        HeldElsewhereError: another monitor owns the job.
        TooManyRanksError: the monitor has no room for the job's ranks.
    """

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        self._top_rank = monitor.limits.ranks_per_job
        self._longest = monitor.limits.name_length

    def events(self, job_id: str, batch: ProcessEvents) -> None:
        """Apply process events: processes started, exited, restarted."""
        job, limits = self.monitor.job(job_id), self.monitor.limits
        notices = sum(event.kind is ProcessEventKind.NOTICE for event in batch.events)
        if len(batch.events) > limits.events_per_request or notices > limits.notices_per_request:
            raise HTTPException(
                422,
                f"{len(batch.events)} events with {notices} notices: the limits for one request are "
                f"{limits.events_per_request} and {limits.notices_per_request}",
            )
        _check_ranks([e.rank for e in batch.events if e.rank is not None], self._top_rank)
        for node in dict.fromkeys(event.node for event in batch.events):
            known_node(job, node)
        for event in batch.events:
            check(event, "the event", self._longest)
            _check_world(event, self._top_rank)
        events = [clean(event, self._longest) for event in batch.events]
        self.monitor.make_room(job_id, max(map(claimed_ranks, events), default=0))
        # What follows from events of one kind is evaluated once: they happened together.
        groups = [list(group) for _, group in groupby(events, key=lambda event: (event.kind, event.attempt))]
        for group in groups[:EVALUATIONS]:
            self.monitor.submit(job_id, *group)
        if rest := [event for group in groups[EVALUATIONS:] for event in group]:
            self.monitor.submit(job_id, *rest)

    def observation(self, job_id: str, observation: NodeObservation) -> None:
        """Apply a launcher's heartbeat and what it reports on behalf of its ranks."""
        job = self.monitor.job(job_id)
        _check_ranks([seen.rank for seen in observation.ranks], job.world_size or self._top_rank)
        check(observation, "the observation", self._longest)
        sections = set(job.columns.sections).union(
            *(seen.open_sections for seen in observation.ranks), *(seen.first_time for seen in observation.ranks)
        )
        limit = self.monitor.limits.sections_per_job
        if len(sections) > min(limit, SECTIONS_AT_ONCE):
            limit = section_limit(job, limit)
        if len(sections) > limit:
            raise HTTPException(422, f"the job would have more than the limit of {limit} sections")
        known_node(job, observation.node)
        self.monitor.submit(job_id, clean(observation, self._longest))

    def evidence(self, job_id: str, captured: Evidence) -> None:
        """Apply the stacks and logs of a node's ranks; the core keeps as many as its limits allow.

        Ranks that the job does not have, nor had in the attempt before, are left out.
        """
        job = self.monitor.job(job_id)
        previous = job.previous.world_size if job.previous is not None else 0
        if world := max(job.world_size, len(job.columns), previous):
            stacks = tuple(stack for stack in captured.stacks if stack.rank < world)
            logs = tuple(log for log in captured.logs if log.rank < world)
            dumps = tuple(dump for dump in captured.dumps if dump.rank < world)
            captured = replace(captured, stacks=stacks, logs=logs, dumps=dumps)
        named = (captured.stacks, captured.logs, captured.dumps)
        ranks = [each.rank for group in named for each in group]
        _check_ranks(ranks, self._top_rank)
        known_node(job, captured.node)
        captured = clean_evidence(captured)
        check_evidence(captured, self._longest)
        self.monitor.submit(job_id, captured)

    def registration(
        self, job_id: str, registration: NodeRegistration, covers: Callable[[str], bool] | None = None
    ) -> NodeRegistration:
        """Check a registration and return it with its facts cut; ``covers``: jobs of the sender's token, None: all."""
        limits = self.monitor.limits
        check_id(job_id)
        if len(registration.facts) > limits.facts_per_launcher:
            raise HTTPException(422, f"{len(registration.facts)} facts, the limit is {limits.facts_per_launcher}")
        registration = clean(registration, self._longest)
        check(registration, "the registration", self._longest)
        size = registration_bytes(registration)
        if size > limits.registration_bytes:
            raise HTTPException(422, f"the registration has {size} bytes, the limit is {limits.registration_bytes}")
        if registration.min_nodes > limits.ranks_per_job:
            text = f"min_nodes {registration.min_nodes} is above the limit of {limits.ranks_per_job} ranks per job"
            raise HTTPException(422, text)
        known = self.monitor.jobs.get(job_id)
        try:
            if registration.policy:
                (known.policy if known else self.monitor.policy).changed(registration.policy)
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        try:
            ft_state.read(registration.ft_state)
        except ValueError as error:
            raise HTTPException(422, f"ft_state: {error}") from None
        full = known is not None and len(known.nodes) >= limits.launchers_per_job
        if known is not None and full and registration.node not in known.nodes and not nodes.forget_idle(known):
            raise HTTPException(422, f"job {job_id!r} has {len(known.nodes)} launchers, which is the limit")
        refused = self.monitor.refuses_job(job_id, covers)
        if reason := refused or self.monitor.refuses_launcher(job_id, registration, covers):
            raise HTTPException(422, reason)
        return registration

    def register(self, job_id: str, registration: NodeRegistration) -> Job:
        """Apply a registration that was checked."""
        job = self.monitor.register(job_id, registration.job_name)
        self.monitor.submit(job_id, registration)
        return job

    def ack(self, job_id: str, directive: int, ack: DirectiveAck) -> None:
        """Apply an acknowledgement of a directive."""
        known_node(self.monitor.job(job_id), ack.node)
        check(ack, "the acknowledgement", self._longest)
        self.monitor.submit(job_id, Acknowledged(directive, clean(ack, self._longest)))


def registered(job: Job, warnings: Sequence[str] = ()) -> dict[str, Any]:
    """The answer to a registration."""
    return {
        "job_id": job.id,
        "settings": settings_of(job),
        "last_directive": job.last_directive,
        "warnings": list(warnings),
    }


def check_id(job_id: str) -> None:
    """Check the id of a job that may be new.

    Raises:
        HTTPException: 422, it cannot be an id.
    """
    if (wrong := job_ids.problem(job_id)) is not None:
        raise HTTPException(422, f"{job_id[:80]!r} cannot be the id of a job: {wrong}")


def known_node(job: Job, name: str) -> Node:
    """The registered launcher of this name.

    Raises:
        HTTPException: 404, there is none.
    """
    try:
        return job.nodes[name]
    except KeyError:
        raise HTTPException(
            404,
            f"job {job.id!r} knows no launcher {name[:200]!r}: "
            f"register it first with POST {semconv.API_PREFIX}/jobs/{job.id}/nodes",
        ) from None


def without_control(job: Job | None, registration: NodeRegistration, now: float) -> tuple[NodeRegistration, list[str]]:
    """What a registration may contain without the right to control the job, and warnings about what was left out.

    Policy and learned limits count of the first launcher of a run, and of a run that goes on if they are the same.
    """
    if job is None or not (registration.node in job.nodes or liveness.running(job, now)):
        return registration, []
    warnings = []
    if not any(node.registration.policy == registration.policy for node in job.nodes.values()):
        if job.policy.changed(registration.policy) != job.policy:
            warnings.append(IGNORED.format("policy", "another policy than the job's"))
        registration = replace(registration, policy={})
    if registration.ft_state and ft_state.read(registration.ft_state) != job.durations.loaded:
        warnings.append(IGNORED.format("ft_state", "other learned limits than the job's"))
        registration = replace(registration, ft_state={})
    return registration, warnings


def launcher_routes(
    routes: APIRouter, monitor: Monitor, audit: AuditLog, may_control: Callable[[Mapping[str, str]], bool]
) -> None:
    """All routes that launchers use; ``may_control``: whether a request with these headers has the control scope."""
    routes.tags = ["launchers"]
    messages = LauncherMessages(monitor)

    @routes.post("/jobs/{job_id}/nodes", summary="Register a launcher")
    async def register(
        job_id: str, registration: Annotated[NodeRegistration, FirstError()], request: Request
    ) -> dict[str, Any]:
        registration = messages.registration(job_id, registration, grant_of(request).bound)
        warnings: list[str] = []
        if not may_control(request.headers):
            registration, warnings = without_control(monitor.jobs.get(job_id), registration, monitor.clock.now())
        known = monitor.jobs.get(job_id)
        before = (known.policy, known.durations.loaded) if known is not None else None
        job = messages.register(job_id, registration)
        if before is not None and before != (job.policy, job.durations.loaded):
            brought = {"policy": dict(registration.policy), "ft_state": dict(registration.ft_state)}
            detail = {name: value for name, value in brought.items() if value}
            record(audit, request, "policy", job_id, {"registered": registration.node, **detail})
        return registered(job, warnings)

    @routes.post("/jobs/{job_id}/runs", status_code=204, summary="Claim the id for a run that is about to start")
    async def claim(job_id: str, claim: Annotated[RunClaim, FirstError()]) -> Response:
        check_id(job_id)
        check(claim, "the claim", monitor.limits.name_length)
        rival = monitor.runs.claim(job_id, claim, monitor.jobs.get(job_id), monitor.clock.now())
        if rival:
            raise HTTPException(409, f"job {job_id!r} is run already, by {rival}")
        return Response(status_code=204)

    @routes.get("/jobs/{job_id}/directives", summary="Directives after a number; waits until there is one")
    async def directives(
        request: Request,
        job_id: str,
        after: Annotated[int, Query(ge=0, description="number of the last directive received")] = 0,
        node: Annotated[str, Query(description="name of the launcher")] = "",
        wait: Annotated[float, Query(ge=0, le=LONGEST_WAIT, description="seconds to wait for one")] = LONGEST_WAIT,
    ) -> dict[str, Any]:
        if node:
            job = monitor.job(job_id)
            apply.poll(job, known_node(job, node), monitor.clock.now())
            waits = monitor.runs.has_warning(job_id, node) or monitor.log_requests.asked(job_id, node)
            wait = 0.0 if waits else wait
        ready = await monitor.broker.wait_for(lambda: monitor.job(job_id), after, wait, node)
        still_granted(request)
        found: dict[str, Any] = {"directives": [asdict(directive) for directive in ready]}
        if node and (warnings := monitor.runs.take_warnings(job_id, node)):
            found["warnings"] = warnings
        if node and (asked := monitor.log_requests.take(job_id, node)):
            found["log_requests"] = [asdict(request) for request in asked]
        return found

    @routes.post("/jobs/{job_id}/directives/{directive}/acks", status_code=204, summary="Acknowledge a directive")
    async def acknowledge(job_id: str, directive: int, ack: Annotated[DirectiveAck, FirstError()]) -> Response:
        messages.ack(job_id, directive, ack)
        return Response(status_code=204)

    @routes.post("/jobs/{job_id}/process-events", status_code=204, summary="Report processes that started or exited")
    async def process_events(job_id: str, batch: ProcessEvents) -> Response:
        messages.events(job_id, batch)
        return Response(status_code=204)

    @routes.post("/jobs/{job_id}/observations", status_code=204, summary="Report a heartbeat and the state of ranks")
    async def observe(job_id: str, observation: Annotated[NodeObservation, FirstError()]) -> Response:
        messages.observation(job_id, observation)
        return Response(status_code=204)

    @routes.post("/jobs/{job_id}/evidence", status_code=204, summary="Send the stacks of a node's ranks")
    async def evidence(job_id: str, captured: Annotated[Evidence, FirstError()]) -> Response:
        messages.evidence(job_id, captured)
        return Response(status_code=204)


def _check_world(event: ProcessEvent, limit: int) -> None:
    if event.world_size is not None and event.world_size > limit:
        raise HTTPException(422, f"world_size {event.world_size} is above the limit of {limit} ranks per job")
    if event.rank is not None and event.world_size and event.rank >= event.world_size:
        raise HTTPException(422, f"rank {event.rank} is outside its world of {event.world_size}")


def _check_ranks(ranks: Sequence[int], limit: int) -> None:
    wrong = next((rank for rank in ranks if not 0 <= rank < limit), None)
    if wrong is not None:
        raise HTTPException(422, f"rank {wrong} is outside the world, whose ranks are 0 to {limit - 1}")
