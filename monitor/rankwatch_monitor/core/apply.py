"""Applies one event to a job: facts are stored, nothing is judged. ``now`` is unix seconds and never goes back.

=====================  ==============================================================================================
event                  what it changes
=====================  ==============================================================================================
``RankReport``         the columns of the rank, observed durations, performance; a higher attempt begins that attempt
``NodeObservation``    the columns of a launcher's ranks, read from their shared memory
``NodeRegistration``   the launchers, policy, loaded limits
``ProcessEvent``       starts, exits, node losses, notices, stop requests, and how each launcher ended
``Acknowledged``       refusals of the open incident's directive
``Evidence``           stacks of an incident
``Order``              the queue of orders
``PolicyChanged``      the policy
=====================  ==============================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import Final, assert_never

import numpy as np

from rankwatch.contract.enums import AckState, JobState, ProcessEventKind, ProcessState
from rankwatch.contract.messages import Evidence, NodeObservation, NodeRegistration, ProcessEvent
from rankwatch.contract.node_checks import failed
from rankwatch.contract.semconv import CHECKPOINTING_SECTION
from rankwatch_monitor.core import attempts, liveness, node_loss, nodes
from rankwatch_monitor.core.events import (
    Acknowledged,
    JobEvent,
    Order,
    PolicyChanged,
    RankIdentity,
    RankReport,
)
from rankwatch_monitor.core.hang import nccl, proof
from rankwatch_monitor.core.incident import notices
from rankwatch_monitor.core.incident.state_machine import (
    DirectiveRefused,
    EvidenceReceived,
    NodeFailedChecks,
    transition,
)
from rankwatch_monitor.core.incident_record import NcclAnswer, NodeChecked, find_incident
from rankwatch_monitor.core.inferred_progress import infer
from rankwatch_monitor.core.job import Ending, Job, Node, StopRequest
from rankwatch_monitor.core.ranks import ALIVE, EXITED, PROCESS_CODES, UNINTERRUPTIBLE
from rankwatch_monitor.core.words.causes import signal_number

STALE_OBSERVATION: Final = 2.0
"""Seconds after which a delayed observation of a launcher no longer describes the present."""
OWNER_SILENCE: Final = 30.0
"""Seconds without a report (one arrives every 1 to 15 s) after which a process no longer owns its rank."""
REFUTED_AFTER: Final = 30.0
"""Seconds of reports of a rank after which it has not exited, whatever a launcher reported. A Collector may deliver
what it has buffered late, but all at once."""
REFUTATION_PAUSE: Final = 20.0
"""Seconds between two reports of a rank (one arrives every 1 to 15 s) after which it counts from the second one."""


_REQUESTS: Final = (Order, PolicyChanged)
"""Requests of people, not messages of the job."""


def apply(job: Job, event: JobEvent, now: float) -> None:
    """Apply one event."""
    if not isinstance(event, _REQUESTS):
        liveness.message_received(job, now)
    match event:
        case RankReport():
            _report(job, event, now)
        case NodeObservation():
            _observation(job, event, now)
        case ProcessEvent():
            _process_event(job, event, now)
            job.nodes_version += 1
        case NodeRegistration():
            nodes.register(job, event, now)
            if (incident := job.open_incident) is not None and (unfit := failed(event.checks)):
                checks = tuple(NodeChecked(event.node, event.host, result) for result in unfit)
                transition(incident, NodeFailedChecks(checks), now)
            if event.attempt > job.attempt and attempts.launcher_may_begin(job, event.node, event.attempt, now):
                job.begin_attempt(event.attempt, now)
            job.nodes_version += 1
        case Acknowledged():
            _acknowledged(job, event, now)
        case Evidence():
            _evidence(job, event, now)
        case Order():
            job.orders.append(event)
        case PolicyChanged():
            job.policy = event.policy
        case _:
            assert_never(event)


def poll(job: Job, node: Node, now: float) -> None:
    """Note that a launcher polled for directives: a sign of life of it and of the job."""
    node.seen = now
    liveness.message_received(job, now)


# Ranks ----------------------------------------------------------------------------------------------------------------


def _report(job: Job, report: RankReport, now: float) -> None:
    identity = report.identity
    if not _take_ownership(job, identity, now):
        return
    columns, rank = job.columns, identity.rank
    if job.previous is not None or job.stale.claims:
        attempts.settle(job, rank, now)
    if job.ended is not None or columns.process_R.item(rank) == EXITED:
        _refute(job, rank, report, now)
    # item() returns Python's own numbers, several times as fast as numpy's: this runs 20,000 times a second.
    if not columns.reported_R.item(rank):
        columns.reported_R[rank] = True
        columns.first_report_R[rank] = now
        columns.report_interval_R[rank] = liveness.FOREIGN_REPORT_INTERVAL if report.foreign else nan
    elif now > (before := columns.last_report_R.item(rank)):
        columns.report_interval_R[rank] = now - before
    quiet = report.quiet
    heartbeats_only = bool(report.beats) and report.iteration is None and report.open_sections is None
    if quiet is None and (report.foreign or heartbeats_only):
        quiet = infer(columns, job.durations, report, now)
        columns.inferred_progress_R[rank] = now - quiet
    columns.last_update_R[rank] = columns.last_heard_R[rank] = columns.last_report_R[rank] = now
    columns.liveness_tick_R[rank] = nan
    if columns.process_R.item(rank) not in (EXITED, UNINTERRUPTIBLE):
        # Other threads report while the main one is stuck in the kernel; its launcher reports when that is over.
        columns.process_R[rank] = ALIVE
    columns.pid_R[rank], columns.local_rank_R[rank] = identity.pid, identity.local_rank
    columns.hosts[rank], columns.devices[rank] = identity.host, identity.device
    if report.beats is not None:
        columns.beat(rank, report.beats, report.heartbeat_age, now)
    if CHECKPOINTING_SECTION in report.finished:
        # The step before it is between that of the report before and that of this one: the lower one promises less.
        before, after = columns.iteration_R.item(rank), -1 if report.iteration is None else report.iteration
        offset = job.ledger.offset if max(before, after) >= 0 else 0
        job.ledger.save((before if before >= 0 else after) + offset, now, latest=after + offset)
    _progress(job, rank, report.iteration, report.progress, now)
    columns.first_step(rank, report.first_iteration, report.first_iteration_age, now)
    if report.open_sections is not None:
        columns.set_sections(rank, now, report.open_sections, report.idle, quiet, report.first_time)
    columns.shut_down_R[rank] = report.ended
    if report.finished or report.longest or report.first_durations or report.idle_longest is not None:
        job.durations.observe(report)
    job.durations.resumed |= bool(report.first_iteration)
    job.performance.take(report, now)
    if report.logged or report.logged_non_finite:
        job.logged.take(report, now)
    for reason, count in report.dropped.items():
        job.drops.add(reason, identity, count)


def _refute(job: Job, rank: int, report: RankReport, now: float) -> None:
    """A rank reports although it has exited, or its job has ended: the message that it did may be forged."""
    if report.ended:
        job.refuted_since.pop(rank, None)
        return
    since, last = job.refuted_since.get(rank, (now, now))
    if now - last > REFUTATION_PAUSE:
        since = now
    job.refuted_since[rank] = since, now
    if now - since >= REFUTED_AFTER:
        del job.refuted_since[rank]
        job.columns.process_R[rank] = ALIVE
        job.columns.expected_exit_R[rank] = job.columns.exit_known_R[rank] = False
        job.ended = None
        for node in job.nodes.values():
            if node.ended is not None and node.ended.attempt >= job.attempt:
                node.ended = None
        job.nodes_version += 1


def _observation(job: Job, observation: NodeObservation, now: float) -> None:
    nodes.observe(job, observation, now)
    if observation.attempt != job.attempt or observation.age > STALE_OBSERVATION:
        return
    columns = job.columns
    for seen in observation.ranks:
        job.make_room(seen.rank)
        rank = seen.rank
        if columns.process_R[rank] == EXITED:
            continue
        columns.last_heard_R[rank] = now
        columns.process_R[rank] = PROCESS_CODES.index(ProcessState(seen.process_state))
        columns.leaving_since_R[rank] = nan if seen.leaving is None else now - seen.leaving
        if seen.pulse_age is None or seen.leaving is not None:
            continue  # what a process that ends has last done says nothing of it any more
        columns.liveness_tick_R[rank] = now - seen.pulse_age
        columns.last_update_R[rank] = now
        if not columns.reported_R[rank]:
            columns.reported_R[rank], columns.first_report_R[rank] = True, now
        if seen.beats:
            columns.beat(rank, seen.beats, seen.heartbeat_age, now)
        _progress(job, rank, seen.iteration, seen.progress, now)
        columns.first_step(rank, seen.first_iteration, seen.first_iteration_age, now)
        if seen.uses_sections:
            columns.set_sections(rank, now, seen.open_sections, seen.idle, seen.quiet, seen.first_time)


def _progress(job: Job, rank: int, iteration: int | None, progress: int | None, now: float) -> None:
    if iteration is not None:
        job.columns.iteration_R[rank] = iteration
        if job.pace.due(now) and (furthest := job.furthest_iteration) is not None:
            job.pace.add(now, furthest)
    if progress is not None:
        job.columns.progress_R[rank] = progress


def _take_ownership(job: Job, identity: RankIdentity, now: float) -> bool:
    """Whether this process owns its rank now; makes room for it, and begins its attempt if that is new.

    A report of a process that does not is stale and counted.
    """
    columns, rank = job.columns, identity.rank
    known = rank < len(columns) and identity.instance == columns.instances[rank] != ""
    if known and identity.attempt == job.attempt and identity.world_size <= job.world_size:
        return True  # as nearly always
    older = _older_than_owner(job, identity, now)
    if older and identity.attempt >= job.attempt:
        job.stale.ignore(now)
        return False
    if identity.attempt < job.attempt and not older and _out_of_sight(job, now):
        job.begin_run(now)
    if identity.attempt > job.attempt and attempts.rank_may_begin(job, identity, now):
        job.begin_attempt(identity.attempt, now, identity.world_size)
    elif identity.attempt != job.attempt and not attempts.dispute(job, identity, now):
        return False
    job.world_size = max(job.world_size, identity.world_size, identity.rank + 1)
    job.durations.ranks = max(job.durations.ranks, job.world_size)
    job.columns.grow(job.world_size)
    columns = job.columns  # those of a new attempt are others
    owner = columns.instances[rank]
    if identity.instance == owner:
        return True
    if owner and identity.instance == columns.retired[rank] and not _silent(job, rank, now):
        job.stale.ignore(now)
        return False
    if owner:
        columns.retired[rank] = owner
        columns.clear(rank)
    columns.instances[rank] = identity.instance
    columns.started_R[rank] = identity.started_at or np.nan
    if identity.job_name:
        job.name = identity.job_name
    return True


def _older_than_owner(job: Job, identity: RankIdentity, now: float) -> bool:
    """Whether the owner of this rank was started after this process, as far as clocks are comparable.

    Start times of two hosts are not comparable, and a clock may have been set back between two starts on one host:
    an owner that stopped reporting gives up its rank.
    """
    columns, rank = job.columns, identity.rank
    if rank >= len(columns):
        return False
    if identity.instance == columns.instances[rank] or identity.host != columns.hosts[rank]:
        return False
    if _silent(job, rank, now):
        return False
    return bool(0 < identity.started_at < columns.started_R.item(rank))


def _silent(job: Job, rank: int, now: float) -> bool:
    """Whether the owner of a rank stopped reporting: a process that it replaced may be the real one after all."""
    return now - job.columns.last_report_R.item(rank) > OWNER_SILENCE


def _out_of_sight(job: Job, now: float) -> bool:
    """Whether no launcher runs this job and no rank of it is alive: the next report begins a new run."""
    return not nodes.any_acting(job) and liveness.all_silent(job, now)


# Processes ------------------------------------------------------------------------------------------------------------


def _process_event(job: Job, event: ProcessEvent, now: float) -> None:
    node = job.nodes.get(event.node)
    if node is not None:
        node.seen = now
    at = now - event.age
    match event.kind:
        case ProcessEventKind.STARTED:
            newcomer = node is not None and node.attempt == 0 and now >= job.distrust_until
            if node is not None and newcomer and _of_another_launch(job, event, node):
                job.begin_launch(now)
            if event.attempt > job.attempt and attempts.launcher_may_begin(job, event.node, event.attempt, now):
                job.begin_attempt(event.attempt, at, event.world_size)
            if event.attempt == job.attempt and event.rank is not None:
                _started(job, event, event.rank, node)
        case ProcessEventKind.EXITED:
            if event.rank is not None:
                _exited(job, event, event.rank, node, at)
        case ProcessEventKind.RESTARTING:
            # Every launcher of the job reports it; the first report counts. One far ahead would hide all later ones.
            if job.restarting_attempt < event.attempt <= job.attempt + attempts.LARGEST_JUMP:
                job.restarting_attempt = event.attempt
                job.restarts += 1
        case ProcessEventKind.NODE_LOST:
            node_loss.declare(job, event, at)
        case ProcessEventKind.NOTICE:
            notices.receive(job, event, at)
        case ProcessEventKind.STOPPING:
            # Every launcher of the job reports it; the first report counts.
            if job.stopping is None and event.attempt >= job.attempt and job.ended is None:
                job.stopping = StopRequest(at, event.reason.rstrip(". ") or "without a reason")
        case ProcessEventKind.FINISHED | ProcessEventKind.FAILED | ProcessEventKind.STOPPED:
            if node is not None and event.attempt >= node.attempt:  # else of a former launcher of this node
                node.ended = event
            _end_if_all_ended(job, at)


def _of_another_launch(job: Job, event: ProcessEvent, node: Node) -> bool:
    """Whether a launcher that has started nothing starts ranks that others already run: those are gone, unreported."""
    if event.attempt != job.attempt:
        return event.attempt < job.attempt
    columns, rank = job.columns, event.rank
    other = job.nodes.get(columns.launchers[rank]) if rank is not None and rank < len(columns) else None
    return other is not None and other is not node and rank in other.ranks


def _started(job: Job, event: ProcessEvent, rank: int, node: Node | None) -> None:
    job.world_size = max(job.world_size, event.world_size or 0, rank + 1)
    job.make_room(rank)
    columns = job.columns
    columns.process_R[rank] = ALIVE
    columns.expected_exit_R[rank] = columns.exit_known_R[rank] = False
    columns.pid_R[rank] = event.pid or -1
    columns.local_rank_R[rank] = -1 if event.local_rank is None else event.local_rank
    if node is not None:
        if (before := job.nodes.get(columns.launchers[rank])) is not None:
            before.ranks.discard(rank)  # that launcher was replaced
        columns.launchers[rank] = event.node
        node.attempt, node.ended, node.lost = event.attempt, None, None
        node.ranks.add(rank)
        columns.hosts[rank] = node.registration.host


def _exited(job: Job, event: ProcessEvent, rank: int, node: Node | None, at: float) -> None:
    columns, before = job.columns, job.previous
    if event.attempt == job.attempt:
        job.make_room(rank)
    elif (
        before is not None
        and event.attempt == before.attempt
        and rank < len(before.columns)
        and node is not None
        and node.attempt <= event.attempt
    ):
        columns, job.late_exits = before.columns, True  # another launcher began the next attempt before this arrived
    else:
        return
    columns.process_R[rank], columns.expected_exit_R[rank] = EXITED, event.spared
    columns.last_heard_R[rank] = at
    code = event.exit_code or 0
    if event.signal:
        code = -(signal_number(event.signal) or abs(code) or 1)
    columns.exit_code_R[rank], columns.exit_known_R[rank] = code, True
    if event.final:
        job.final_attempt = event.attempt
    if event.message:
        columns.keep_message(rank, event.message)
    if event.iteration is not None:
        columns.iteration_R[rank] = event.iteration
        # It may have ended before its first report. How a script counts, its processes before have told.
        counted = before is not None and bool(before.columns.counted_R.any())
        columns.first_step(rank, None, 0.0 if counted else None, at)


def _end_if_all_ended(job: Job, at: float) -> None:
    endings = [node.ended for node in nodes.taking_part(job)]
    ended = [event for event in endings if event is not None]
    if ended and len(ended) == len(endings):
        job.ended = _worst(ended, at)


def _worst(endings: Sequence[ProcessEvent], at: float) -> Ending | None:
    """The ending of a job when all of its launchers have ended: the worst of theirs."""
    for kind, state in (
        (ProcessEventKind.FAILED, JobState.FAILED),
        (ProcessEventKind.STOPPED, JobState.STOPPED),
        (ProcessEventKind.FINISHED, JobState.FINISHED),
    ):
        of_kind = [event for event in endings if event.kind == kind]
        if of_kind:
            worst = next((event for event in of_kind if event.no_restart), of_kind[0])
            return Ending(state, worst.reason, at, worst.cause, worst.no_restart, worst.why_none)
    return None


# Answers to directives ------------------------------------------------------------------------------------------------


def _acknowledged(job: Job, event: Acknowledged, now: float) -> None:
    if (node := job.nodes.get(event.ack.node)) is not None:
        node.seen = now
    incident = job.open_incident
    if incident is None or incident.directive != event.directive:
        return
    if event.ack.state not in (AckState.REFUSED, AckState.FAILED):
        return
    if event.ack.node not in nodes.acting(job):
        return  # it has no ranks that the directive could be about
    transition(incident, DirectiveRefused(event.ack.node, event.ack.detail), now)
    if event.ack.state == AckState.REFUSED and event.ack.max_iteration is not None:
        job.refused_step = max(job.refused_step or 0, event.ack.max_iteration)


def _evidence(job: Job, evidence: Evidence, now: float) -> None:
    if (node := job.nodes.get(evidence.node)) is not None:
        node.seen = now
    host = node.registration.host if node is not None else ""
    incident, at = find_incident(job.incidents, evidence), now - evidence.age
    if incident is None:
        return
    if evidence.look:
        if incident.attempt != job.attempt or not incident.undecided:
            return  # the ranks go on, or are about to end
        proof.record(job.columns, evidence.stacks, at)
    answer = None
    if evidence.ras is not None:
        own = incident.attempt == job.attempt == evidence.attempt  # else other processes have these pids, or numbers
        accused = nccl.accused([evidence.ras], job.columns) if own else ()
        answer = NcclAnswer(evidence.node, host, evidence.ras, tuple(culprit.rank for culprit in accused))
    received = EvidenceReceived(
        evidence.node,
        tuple(evidence.stacks),
        at,
        evidence.look,
        tuple(evidence.logs),
        answer,
        tuple(evidence.dumps),
        host,
    )
    transition(incident, received, now)
