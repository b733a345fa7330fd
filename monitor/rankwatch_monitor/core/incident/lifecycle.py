"""Decides what is done about a job: verdicts, policy, budgets and orders in; effects out.

:func:`advance` is called after every event that could matter and at every tick. It opens at most one incident, takes
orders and notices, and moves the open incident along as far as it can go at ``now``. Nothing waits: a deadline is a
comparison. What happened to an incident is passed to :func:`.state_machine.transition` as an event.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from rankwatch.cli.formatting import capital, count, uncapital
from rankwatch.contract.enums import (
    RESTARTS,
    Action,
    CulpritClass,
    DirectiveKind,
    JobState,
    LimitSource,
    NoRestart,
    Proof,
    VerdictKind,
)
from rankwatch.contract.intervals import agreed_stop_step, burst_spread, evidence_spread
from rankwatch.contract.messages import Wait
from rankwatch_monitor.core import attempts, node_loss, nodes, stall, straggler_detector
from rankwatch_monitor.core.cause import OF_A_SECTION, OF_SILENCE, SIGABRT, Exited, Shown, Slow, Some
from rankwatch_monitor.core.effects import Changed, Effect, Issue
from rankwatch_monitor.core.hang import nccl, proof, standstill
from rankwatch_monitor.core.hang.blame import behind_abort, blame, described, detection_of, follows_from_another
from rankwatch_monitor.core.hang.confirmation import proven
from rankwatch_monitor.core.hang.detect import configured_deadline, detect
from rankwatch_monitor.core.hang.verdict import (
    NONE,
    Blame,
    Verdict,
    Verdicts,
    culprit_of,
    union,
)
from rankwatch_monitor.core.incident import exclusion, late_exits, notices, settings_push, straggler_actions
from rankwatch_monitor.core.incident import state_machine as machine
from rankwatch_monitor.core.incident.patience import patience, standstill_of
from rankwatch_monitor.core.incident.state_machine import Command, Diagnosis
from rankwatch_monitor.core.incident_record import Ended, Incident, Phase, Timeline, Withheld, stated
from rankwatch_monitor.core.job import KEPT_INCIDENTS, Job
from rankwatch_monitor.core.rank_runs import RankRuns
from rankwatch_monitor.core.ranks import EXITED, Ints, leaves, left_ranks, live_ranks
from rankwatch_monitor.core.words.causes import reason
from rankwatch_monitor.core.words.sentence import also_to_blame
from rankwatch_monitor.core.words.step_times import clock_time

SETTLE: Final = 0.2
"""Seconds to wait for the other ranks before an incident is opened; a large job needs the spread of its reports on top,
unless it is known to stand still. Each rank reports when it passes its own limit, so after this the progress of all of
them is current."""
TOGETHER: Final = frozenset(
    {VerdictKind.HEARTBEAT_OVERRUN, VerdictKind.SECTION_OVERRUN, VerdictKind.OUT_OF_SECTION_OVERRUN}
)
"""Verdicts that ranks which wait for each other reach within moments of each other."""
REPEAT_AFTER: Final = 60.0
"""Seconds without an answer after which a directive is issued again; one that was obeyed is ``superseded``."""
STEPLESS_AFTER: Final = 60.0
"""Seconds in a new attempt after which live ranks are taken to count no steps, if none ever has."""
UNINSTRUMENTED_AFTER: Final = 10.0
"""The same for a job without instrumented ranks."""
SHED_SECONDS: Final = 60.0
"""Seconds after a report was refused under load for which the progress of ranks may be late: they keep it as long."""
STOPS: Final = (Action.SAVE_AND_STOP, Action.STOP)
WATCH_SECONDS: Final = 120.0
"""Seconds for which launchers are asked to look at suspected ranks; then they are asked again."""
RESTATE_AFTER: Final = 30.0
"""Seconds after which the sentence about a rank that is waited for is made again, with its duration."""
SAME_MOMENT: Final = 1.0
"""Seconds by which a deadline moves before it is another one."""
BY_THEMSELVES: Final = "at once and by themselves, within their budget"
LAUNCHED_AGAIN: Final = "the job was launched again"
STOP_REQUESTED: Final = "the launchers asked the ranks to save and stop, and end them after their own deadline"


def advance(job: Job, now: float, *, windows: bool = True) -> list[Effect]:
    """Evaluate a job at ``now`` and return what follows; without ``windows``, a complete one is left for later."""
    effects: list[Effect] = straggler_detector.judge(job, now, windows=windows)
    _give_back(job)
    stall.observe(job)
    verdicts = verdicts_of(job, now)
    incident = job.open_incident
    if incident is not None and _notice_is_over(job, incident, verdicts, now):
        _send(job, incident, machine.Closed(now, Ended.HANDLED, incident.outcome), now, effects)
        incident = None
    if job.unended is not None:
        _record_unended(job, now, effects)
    if job.late_exits:
        incident = _take_late_exits(job, incident, now, effects)
    attempts.release(job)
    if incident is None and (settled := _settled(job, verdicts, now)):
        incident = _open(job, settled, now, effects)
    if incident is None and not verdicts:
        incident = _open_straggler(job, now, effects)
    if _stop_requested(job, incident):
        incident = _take_stop_request(job, incident, now, effects)
    if job.orders:
        incident = _take_order(job, incident, now, effects)
    if job.notices and (incident is None or not incident.open or incident.self_reported):
        _take_notices(job, now, effects)
    if incident is None or incident.self_reported:
        return effects
    if verdicts:
        _reconsider(job, incident, verdicts, now, effects)
    _recognise_silence(job, incident, verdicts, now, effects)
    _recognise_node_loss(job, incident, verdicts, now, effects)
    _recognise_mismatch(job, incident, now, effects)
    _recognise_cause(job, incident, verdicts, now, effects)
    _move(job, incident, verdicts, now, effects)
    return effects


def _give_back(job: Job) -> None:
    """Give back the restarts for limits that nobody configured, once training has got past the place."""
    furthest = job.furthest_iteration if job.standstills else None
    for i, each in enumerate(job.standstills):
        past = furthest is not None and each.step is not None and furthest > each.step
        if past and not each.given_back and each.attempt < job.attempt:
            job.standstills[i] = each._replace(given_back=True)
            job.given_back += 1


def verdicts_of(job: Job, now: float, *, standing: bool = False) -> Verdicts:
    """What is wrong with a job's ranks at ``now``; nothing while detection is off or after the job ended.

    ``standing``: all ranks are known to have stood still since their last reports.
    """
    if not job.policy.detection or job.ended is not None or not len(job.columns):
        return NONE
    sample_after = proof.SAMPLE_AFTER_SECONDS if nodes.any_acting(job) else None
    columns = standstill.as_of(job.columns, now) if standing else job.columns
    verdicts = detect(columns, job.limits, now, silence_baseline=job.silence_since, sample_after=sample_after)
    found = node_loss.merge(job, verdicts, now)
    if found or not (stalled := stall.verdicts(job)) or leaves(job.columns, now):
        return found
    return stalled


class Allowed(NamedTuple):
    """The action that may be taken, and why."""

    action: Action
    why: str
    withheld: Withheld | None = None


def allowed_action(job: Job, wanted: Action, *, confirmed: bool = True) -> Allowed:
    """The action that may be taken when ``wanted`` is the policy's.

    Without a limit that somebody configured (``confirmed`` is false) the job is never ended, whatever patience or
    looks at the ranks have confirmed meanwhile.
    """
    if not nodes.any_acting(job):
        no_launcher = "no launcher of Rankwatch runs this job, so it can only be watched"
        return Allowed(Action.LOG, no_launcher, Withheld.NO_LAUNCHER)
    if job.policy.observe_only:
        return Allowed(Action.LOG, "observe-only is on", Withheld.OBSERVE_ONLY)
    if wanted is Action.LOG:
        return Allowed(Action.LOG, "the policy only records", Withheld.POLICY)
    if wanted in RESTARTS and job.restarts >= job.restart_budget:
        if not confirmed:
            used = f"no restart is left ({job.restarts} of {job.restart_budget} used)"
            return Allowed(Action.LOG, f"{used}, and a limit that nobody configured ends no job", Withheld.NO_RESTART)
        return Allowed(Action.STOP, f"the restart budget is used up ({job.restarts} of {job.restart_budget})")
    return Allowed(wanted, f"the policy is to {_words(wanted)}")


def _send(job: Job, incident: Incident, event: machine.Event, now: float, effects: list[Effect]) -> None:
    """Pass an event to the state machine; make directives of its commands."""
    for effect in machine.transition(incident, event, now):
        if isinstance(effect, Command):
            if effect is not Command.TELL or nodes.any_acting(job):
                effects.append(_directive(job, incident, effect, now))
        else:
            effects.append(effect)


def _directive(job: Job, incident: Incident, command: Command, now: float) -> Issue:
    kind = DirectiveKind.TELL if command is Command.TELL else DirectiveKind.CAPTURE
    deadline, stop_step = job.policy.capture_deadline, None
    if command is Command.ACT:
        restarts = incident.action in RESTARTS
        kind = DirectiveKind.RESTART if restarts else DirectiveKind(incident.action)
        if incident.action is Action.SAVE_AND_STOP:
            deadline = job.policy.stop_deadline
            furthest = -1 if job.furthest_iteration is None else job.furthest_iteration
            stop_step = agreed_stop_step(max(furthest, job.refused_step or -1), job.steps_per_second or 0.0)
            job.refused_step = None
    exclude = incident.exclude if kind is DirectiveKind.RESTART else ()
    place, is_proven = "", False
    if kind is DirectiveKind.RESTART and incident.limit_source not in ("", LimitSource.CONFIGURED):
        here = standstill_of(incident)
        job.standstills.append(here)
        place, is_proven = here.text, incident.proof in proof.PROVEN
    watches = command is Command.CAPTURE and _looked_at(incident)
    watch = WATCH_SECONDS if watches else 0.0
    told: dict[str, Any] = {}
    if command is Command.TELL:
        told = {
            "suspected": not incident.confirmed,
            "proof": incident.proof,
            "follows": incident.action_reason if incident.action is Action.LOG else incident.held_because,
            "acts_in": None if incident.acts_at is None else round(max(0.0, incident.acts_at - now), 1),
        }
    directive = job.new_directive(
        kind,
        incident.reason,
        incident_id=incident.id,
        deadline=deadline,
        stop_step=stop_step,
        exclude=exclude,
        watch=watch,
        place=place,
        proven=is_proven,
        **told,
        no_restart=_instead_of_restart(job, incident) if kind is DirectiveKind.STOP else "",
    )
    machine.transition(incident, machine.DirectiveIssued(directive.id, stop_step, bool(watch)), now)
    return Issue(directive)


def _instead_of_restart(job: Job, incident: Incident) -> str:
    """Of a stop: why the restart that the policy wanted cannot follow; empty: the stop itself was wanted."""
    if incident.ordered or job.policy.on_hang not in RESTARTS:
        return ""
    return str(NoRestart.USED_UP if job.policy.max_restarts else NoRestart.NOT_ALLOWED)


# Opening --------------------------------------------------------------------------------------------------------------


def _settled(job: Job, verdicts: Verdicts, now: float) -> Verdicts:
    """The verdicts to open an incident on; none while other ranks may report something else.

    They have had the time to, or all have reported the same, or the job is known to stand still.
    """
    if not verdicts:
        job.verdicts_since = None
        return NONE
    if job.verdicts_since is None:
        job.verdicts_since = now
    waited = now - job.verdicts_since
    if not verdicts.kinds <= TOGETHER or waited >= SETTLE + burst_spread(job.world_size):
        return verdicts
    if len(verdicts.ranks) >= int(np.sum(live_ranks(job.columns))):
        return verdicts
    late = now - job.shed_at < SHED_SECONDS  # reports that were refused arrive later than their ages state
    if waited < SETTLE or late or not standstill.stands_still(job.columns):
        return NONE
    return verdicts_of(job, now, standing=True)


def _open(job: Job, verdicts: Verdicts, now: float, effects: list[Effect]) -> Incident:
    confirmed = verdicts.act_at_once
    incident = _new_incident(job, verdicts[0].kind, now, confirmed=confirmed)
    by_launchers = verdicts.left_to_launchers
    captures = not by_launchers and _captures(job)
    diagnosis = _diagnose(job, incident, verdicts, now, capturing=captures)
    if by_launchers:
        if diagnosis is not None and all(isinstance(c.cause, Exited) and c.cause.aborted for c in diagnosis.culprits):
            diagnosis = diagnosis._replace(culprits=(), aborted=tuple(c.rank for c in diagnosis.culprits))
        _send(job, incident, _left_to_launchers(job, incident, verdicts, diagnosis, now), now, effects)
    else:
        _decide(job, incident, verdicts, diagnosis, now, effects)
    return incident


def _new_incident(
    job: Job,
    kind: VerdictKind,
    now: float,
    *,
    since: float | None = None,
    reason: str = "",
    confirmed: bool = True,
    attempt: int | None = None,
) -> Incident:
    job.last_incident += 1
    job.incident_counts[kind] = job.incident_counts.get(kind, 0) + 1
    incident = Incident(
        id=f"{job.id}-{job.created_at:.0f}-{job.last_incident}",
        job_id=job.id,
        kind=kind,
        attempt=job.attempt if attempt is None else attempt,
        launch=job.launches,
        opened_at=now,
        reason=reason,
        confirmed=confirmed,
        phase_since=now,
        furthest_iteration=job.furthest_iteration,
        timeline=Timeline(since=since, detected=now, decided=now),
    )
    job.incidents.append(incident)
    del job.incidents[:-KEPT_INCIDENTS]
    return incident


def _captures(job: Job) -> bool:
    """Whether the stacks of ranks that hang are captured: also if the policy only records, since it does no harm."""
    return nodes.any_acting(job) and not job.policy.observe_only


def _decide(
    job: Job, incident: Incident, verdicts: Verdicts, diagnosis: Diagnosis | None, now: float, effects: list[Effect]
) -> None:
    """Apply the policy; what is only recorded, without stacks that are awaited first, is told at once."""
    event = _decision(job, incident, verdicts, diagnosis)
    _send(job, incident, event, now, effects)
    if isinstance(event, machine.Recorded) and nodes.any_acting(job):
        effects.append(_directive(job, incident, Command.TELL, now))


def _decision(
    job: Job, incident: Incident, verdicts: Verdicts, diagnosis: Diagnosis | None
) -> machine.Recorded | machine.RecordedWithStacks | machine.Decided:
    """The policy's action on a hang."""
    action, why, withheld = allowed_action(job, job.policy.on_hang, confirmed=verdicts.act_at_once)
    if action is not Action.LOG:
        return machine.Decided(action, why, diagnosis)
    takes = incident.phase is Phase.DETECTED and not incident.stacks and _captures(job)
    recorded = machine.RecordedWithStacks if takes else machine.Recorded
    return recorded(why, withheld, diagnosis)


def _no_restart(job: Job) -> str:
    """Why the launchers restart nothing after a failure in this attempt; empty: they do."""
    if job.final_attempt == job.attempt:
        return "a restart would end the same way"
    used, limit = job.restarts - (job.restarting_attempt >= job.attempt), job.restart_budget
    return "" if used < limit else f"no restart is left ({used} of {limit} used)"


def _left_to_launchers(
    job: Job, incident: Incident, verdicts: Verdicts, diagnosis: Diagnosis | None, now: float
) -> machine.LeftToLaunchers:
    if (end := _no_restart(job)) and verdicts.left_to_launchers:
        decided_at = incident.timeline.decided or now
        return machine.LeftToLaunchers(Action.STOP, f"the launchers end the job: {end}", decided_at, diagnosis)
    lost = any(common.node_loss for common in verdicts.occurring())
    what = "restart the ranks without a lost node" if lost else "restart crashed ranks"
    why = f"launchers {what} {BY_THEMSELVES}"
    return machine.LeftToLaunchers(Action.RESTART, why, incident.timeline.decided or now, diagnosis)


def _open_straggler(job: Job, now: float, effects: list[Effect]) -> Incident | None:
    """Open an incident about stragglers that the policy acts on."""
    due = straggler_actions.due(job, allowed_action(job, job.policy.on_straggler)[:2], effects)
    if due is None:
        return None
    first = due.stragglers[0]
    incident = _new_incident(job, VerdictKind.STRAGGLER, now)
    diagnosis = Diagnosis(
        VerdictKind.STRAGGLER,
        first.reason,
        since=min(s.since for s in due.stragglers),
        culprits=tuple(culprit_of(job.columns, s.rank, Slow(s.reason), s.host) for s in due.stragglers),
        affected=tuple(sorted(s.rank for s in due.stragglers)),
    )
    _send(job, incident, machine.Decided(due.action, due.why, diagnosis), now, effects)
    if due.action is Action.CAPTURE:
        job.performance.request_trace(first.rank, incident.id)
        effects.append(Issue(settings_push.push(job, f"a trace of rank {first.rank} is wanted", now)))
    return incident


# Diagnosis ------------------------------------------------------------------------------------------------------------


def _diagnose(
    job: Job,
    incident: Incident,
    verdicts: Verdicts,
    now: float,
    *,
    renew: bool = False,
    capturing: bool = False,
) -> Diagnosis | None:
    """Ranks over a limit, culprits and reason as known now; None: the incident's sentence is still true.

    ``renew``: format the sentence again, with the present durations, even if the cause is the same.
    ``capturing``: stacks are captured next.
    """
    if not verdicts:
        return None
    blamed = blame(
        job.columns,
        verdicts,
        incident.stacks,
        without_stacks=_without_stacks(job, incident),
        capturing=capturing,
        shed=now - job.shed_at < SHED_SECONDS,
        nccl=nccl.accused([each.report for each in incident.nccl], job.columns),
    )
    if not renew and incident.reason and _already_stated(incident, blamed):
        return None
    first = _foremost(job, verdicts, blamed, now)
    affected = union(verdicts.rank_V, [first.rank])
    found = detection_of(job.columns, first, len(affected) - 1, blamed)
    return Diagnosis(
        first.kind,
        _with_proof(incident, described(found, blamed)),
        since=first.since,
        found=found,
        culprits=blamed.culprits,
        why_none=blamed.why_none,
        affected=affected,
    )


def _with_proof(incident: Incident, text: str) -> str:
    proven = incident.proof_reason if incident.proof not in ("", Proof.BUSY) else ""
    return f"{text} {proven}" if proven else text


def _already_stated(incident: Incident, blamed: Blame) -> bool:
    """Whether the incident states this cause; stacks and collectives may add to what progress showed."""
    if [(c.rank, c.host, c.kind) for c in blamed.culprits] != [(c.rank, c.host, c.kind) for c in incident.culprits]:
        return False
    if not blamed.culprits:
        return blamed.why_none == incident.why_none
    first = blamed.culprits[0]  # other classes hold a duration, which changes all the time
    return first.kind is not CulpritClass.BEHIND or first.cause == incident.culprits[0].cause


def _without_stacks(job: Job, incident: Incident) -> list[str]:
    """Hosts whose launchers were asked for stacks and sent none before the deadline."""
    if not incident.heard_nodes:
        return []
    acting = nodes.acting(job).items()
    return sorted({node.registration.host for name, node in acting if name not in incident.heard_nodes})


def _foremost(job: Job, verdicts: Verdicts, blamed: Blame, now: float) -> Verdict:
    """The verdict that the sentence states: a culprit's own, if there is one, and one that acts at once before others.

    Ranks pass a limit within milliseconds of each other and report it in any order; a culprit that entered the same
    section long enough ago has passed it too, even if its report has not arrived. One that is elsewhere has not.
    """
    at_once = verdicts.that(lambda common: common.source.acts_at_once)
    seen = (at_once or verdicts)[0]
    if not blamed.culprits:
        return seen
    rank = blamed.culprits[0].rank
    own = (v for v in verdicts.of_rank(rank) if v.source.acts_at_once == seen.source.acts_at_once)
    if (first := next(own, None)) is not None:
        return first
    columns = job.columns
    if seen.section is None or columns.process_R[rank] == EXITED:
        return seen
    elapsed = columns.open_sections(rank, now).get(seen.section)
    if elapsed is None:
        return seen
    if not seen.source.acts_at_once:
        elapsed = float(np.nan_to_num(now - columns.last_progress_R[rank]))
    return seen._replace(rank=rank, elapsed=elapsed, since=now - elapsed) if elapsed > seen.limit else seen


def _recognise_node_loss(job: Job, incident: Incident, verdicts: Verdicts, now: float, effects: list[Effect]) -> None:
    """Rename a crash or hang that was the loss of a node, as the launchers have reported since."""
    if not incident.open or incident.kind is VerdictKind.ORDERED:
        return
    if incident.attempt != job.attempt:
        cause = _node_loss_behind(job, incident) if incident.attempt < job.attempt else None
        if cause is not None:
            _send(job, incident, machine.Rediagnosed(cause), now, effects)
        return
    lost = verdicts.that(lambda common: common.node_loss is not None).ranks.tolist()
    if set(lost) <= {c.rank for c in incident.culprits}:
        return
    diagnosis = _diagnose(job, incident, verdicts, now, renew=True)
    assert diagnosis is not None, "there are verdicts"
    if incident.undecided and not incident.ordered:
        _send(job, incident, _left_to_launchers(job, incident, verdicts, diagnosis, now), now, effects)
    else:
        _send(job, incident, machine.Rediagnosed(diagnosis), now, effects)


def _recognise_silence(job: Job, incident: Incident, verdicts: Verdicts, now: float, effects: list[Effect]) -> None:
    """Name ranks that fell silent, of a hang that nothing was done about: its other ranks wait for them.

    Silence takes longer to be certain than a limit of a section, so the ranks that report are over theirs before it.
    """
    gone = verdicts.of_kinds(VerdictKind.SILENT, VerdictKind.NODE_LOST)
    silent = set(gone.that(lambda common: not common.node_loss).ranks.tolist())
    waits = incident.phase in (Phase.DETECTED, Phase.CONFIRMING) and incident.attempt == job.attempt
    if not waits or incident.elective or silent <= {culprit.rank for culprit in incident.culprits}:
        return
    diagnosis = _diagnose(job, incident, verdicts, now, renew=True)
    if diagnosis is not None and any(c.kind is CulpritClass.HOST_SILENT for c in diagnosis.culprits):
        _send(job, incident, machine.Rediagnosed(diagnosis), now, effects)


def _node_loss_behind(job: Job, incident: Incident) -> Diagnosis | None:
    """The loss of nodes that caused an incident of an earlier attempt; None: none did, or it is known.

    The launchers may have restarted the ranks before they detected the loss of the node.
    """
    began = incident.opened_at if incident.timeline.since is None else incident.timeline.since
    losses = node_loss.causes(job, incident.attempt, incident.culprits, began)
    ranks = {rank for loss in losses for rank in loss.ranks}
    if not ranks or ranks <= {culprit.rank for culprit in incident.culprits}:
        return None
    lost = "; ".join(reason(loss.cause) for loss in losses)
    followed = uncapital(incident.reason)
    return Diagnosis(
        VerdictKind.NODE_LOST,
        f"{capital(lost)}; after that, {followed}",
        since=min(loss.since for loss in losses),
        culprits=tuple(culprit_of(job.columns, rank, loss.cause, loss.host) for loss in losses for rank in loss.ranks),
        affected=union(incident.affected, ranks),
    )


def _recognise_mismatch(job: Job, incident: Incident, now: float, effects: list[Effect]) -> None:
    """Name the rank behind an abort: once all launchers have sent what the survivors' flight recorders hold, or late.

    Until then no rank is named, since the process that aborts may be the one that received what another should not
    have sent.
    """
    if not incident.open or not incident.aborted:
        return
    asked, stacks = nodes.acting(job), incident.stacks
    waited = now - incident.opened_at >= job.policy.capture_deadline + evidence_spread(len(asked))
    if not (set(asked) <= incident.heard_nodes or waited or job.ended is not None or _stepped(job, incident)):
        return
    text = incident.reason
    culprits = behind_abort(job.columns, stacks.groups(), stacks.group_progress())
    if culprits:
        text = also_to_blame(text, [culprit[:3] for culprit in culprits])
    else:
        culprits = tuple(culprit_of(job.columns, rank, Exited(-SIGABRT)) for rank in incident.aborted)
    diagnosis = Diagnosis(
        incident.kind,
        text,
        found=incident.found,
        since=incident.opened_at if incident.timeline.since is None else incident.timeline.since,
        culprits=culprits,
        affected=union(incident.affected, [c.rank for c in culprits]),
    )
    _send(job, incident, machine.Rediagnosed(diagnosis), now, effects)


def _recognise_cause(job: Job, incident: Incident, verdicts: Verdicts, now: float, effects: list[Effect]) -> None:
    """Name the crash behind others that were reported before it: its launcher may be another one."""
    if not incident.open or incident.attempt != job.attempt:
        return
    if not late_exits.blames_consequences(incident, job.columns):
        return
    exits = verdicts.of_kinds(VerdictKind.PROCESS_EXITED).ranks.tolist()
    if all(follows_from_another(job.columns, rank) for rank in exits) and not len(left_ranks(job.columns)):
        return
    diagnosis = _diagnose(job, incident, verdicts, now, renew=True)
    assert diagnosis is not None, "there are verdicts"
    _send(job, incident, machine.Rediagnosed(diagnosis), now, effects)


def _record_unended(job: Job, now: float, effects: list[Effect]) -> None:
    """Record the end of the launch before, of which no launcher reported anything: all were killed at once."""
    before, job.unended = job.unended, None
    assert before is not None
    incident = _new_incident(job, VerdictKind.PROCESS_EXITED, now, attempt=before.attempt)
    reason = (
        f"The launch before was last heard at {clock_time(before.heard, now)} (UTC) and ended without a word, as when "
        "all its launchers are killed; the job was launched again."
    )
    diagnosis = Diagnosis(VerdictKind.PROCESS_EXITED, reason, since=before.heard)
    _send(job, incident, machine.Recorded("nothing was left to act on", None, diagnosis), now, effects)
    _send(job, incident, machine.Closed(now, Ended.LAUNCHED_AGAIN, LAUNCHED_AGAIN), now, effects)


def _take_late_exits(job: Job, incident: Incident | None, now: float, effects: list[Effect]) -> Incident | None:
    """Name a crash of the previous attempt that was reported after the current one had begun.

    Its launcher is another one than the one that began the attempt. An incident that blames ranks which only lost their
    connection is renamed; without an incident of that attempt, one is opened that is already recovering.
    """
    job.late_exits, before = False, job.previous
    if before is None or not (diagnosis := late_exits.diagnosis(before.columns, before.since)):
        return incident
    same_attempt = [i for i in job.incidents if (i.attempt, i.launch) == (before.attempt, job.launches)]
    if not same_attempt and incident is None:
        incident = _new_incident(job, diagnosis.kind, now, attempt=before.attempt)
        why = f"launchers restarted crashed ranks {BY_THEMSELVES}"
        _send(job, incident, machine.LeftToLaunchers(Action.RESTART, why, now, diagnosis), now, effects)
        _send(job, incident, machine.AttemptBegan(job.attempt, job.attempt_since), now, effects)
    elif incident in same_attempt and late_exits.blames_consequences(incident, before.columns):
        _send(job, incident, machine.Rediagnosed(diagnosis), now, effects)
    return incident


def _reconsider(job: Job, incident: Incident, verdicts: Verdicts, now: float, effects: list[Effect]) -> None:
    """Decide again on an incident that was only recorded or is suspected: a launcher came, the policy was changed."""
    recorded = incident.phase is Phase.DETECTED and incident.action is Action.LOG and not incident.refusals
    suspected = incident.phase is Phase.CONFIRMING
    if incident.attempt != job.attempt or not (recorded or suspected):
        return
    if suspected and verdicts.left_to_launchers:
        diagnosis = _diagnose(job, incident, verdicts, now, renew=True)
        _send(job, incident, _left_to_launchers(job, incident, verdicts, diagnosis, now), now, effects)
    elif allowed_action(job, job.policy.on_hang, confirmed=verdicts.act_at_once)[0] is not incident.action:
        _decide(job, incident, verdicts, None, now, effects)


# Requests of launchers, persons and ranks -----------------------------------------------------------------------------


def _stop_requested(job: Job, incident: Incident | None) -> bool:
    """Whether the launchers asked the ranks to stop, and no incident records it yet."""
    return job.stopping is not None and not job.stopping.noted and (incident is None or incident.open)


def _take_stop_request(job: Job, incident: Incident | None, now: float, effects: list[Effect]) -> Incident:
    """Record the launchers' stop request in the open incident or in one of its own.

    The monitor sends no directive: the launchers have a deadline of their own. What the ranks do meanwhile (a long
    checkpoint, a process that ends badly while it is stopped) joins the incident.
    """
    stop = job.stopping
    assert stop is not None
    stop.noted = True
    request = f"the ranks were asked to save and stop: {stop.reason}"
    if incident is None:
        incident = _new_incident(job, VerdictKind.ORDERED, now)
        diagnosis = Diagnosis(VerdictKind.ORDERED, f"{capital(request)}.", since=stop.at)
        event = machine.LeftToLaunchers(Action.SAVE_AND_STOP, STOP_REQUESTED, stop.at, diagnosis)
        _send(job, incident, event, now, effects)
    elif incident.undecided:
        why = f"{incident.action_reason}; {request}"
        _send(job, incident, machine.LeftToLaunchers(Action.SAVE_AND_STOP, why, stop.at), now, effects)
    elif incident.phase is not Phase.ACTING or incident.action not in STOPS:
        _send(job, incident, machine.StopNoted(request), now, effects)
    return incident


def _take_order(job: Job, incident: Incident | None, now: float, effects: list[Effect]) -> Incident:
    """Take the oldest order of a person; the others in the queue repeat it."""
    order = job.orders.popleft()
    job.orders.clear()
    why = f"an operator ordered {_words(order.action)}"
    if order.nodes:
        why = f"an operator ordered a restart without {nodes.titles(job, order.nodes)}"
    why += f": {order.reason.rstrip('. ')}" if order.reason.strip() else ""
    if incident is None:
        incident = _new_incident(job, VerdictKind.ORDERED, now, since=now, reason=f"{capital(why)}.")
    if job.ended is not None:
        return incident
    if not nodes.any_acting(job):
        outcome = "there is no launcher of Rankwatch to carry it out"
        if incident.kind is VerdictKind.ORDERED:
            _send(job, incident, machine.Closed(now, Ended.NOT_CARRIED_OUT, outcome), now, effects)
        else:
            effects.append(Changed(incident, f"{capital(why)}, but {outcome}."))
        return incident
    captures = order.action is Action.CAPTURE
    if captures and incident.phase is Phase.CAPTURING and incident.action is not Action.LOG:
        return incident  # stacks are being captured already, for an action that goes further
    capture_only = captures and not incident.confirmed and incident.phase in (Phase.DETECTED, Phase.CONFIRMING)
    if order.nodes:
        why += f"; {exclusion.consequences(job, order.nodes)}"
    event = machine.Ordered(order.action, why, job.attempt, order.nodes, capture_only)
    _send(job, incident, event, now, effects)
    return incident


def _notice_is_over(job: Job, incident: Incident, verdicts: Verdicts, now: float) -> bool:
    """Whether all ranks had time to report the same notice, or something else needs the incident's place."""
    if not incident.self_reported:
        return False
    other = bool(verdicts or job.orders) or job.ended is not None or _stop_requested(job, None)
    return other or now - incident.opened_at >= notices.SETTLE


def _take_notices(job: Job, now: float, effects: list[Effect]) -> None:
    """Record what ranks reported of themselves."""
    while job.notices:
        notice = job.notices[0]
        incident = notices.known(job, notice)
        if incident is None:
            if job.open_incident is not None:
                return
            incident = _new_incident(job, notice.kind, now)
        job.notices.popleft()
        if incident.open and notice.rank not in incident.affected:
            _send(job, incident, machine.NoticeReceived(notice), now, effects)


# Moving ---------------------------------------------------------------------------------------------------------------


def _move(job: Job, incident: Incident, verdicts: Verdicts, now: float, effects: list[Effect]) -> None:
    """Move an incident along as far as it can go at ``now``."""
    if not incident.open:
        return
    if job.ended is not None and not _stepped(job, incident):
        _send(job, incident, machine.Closed(job.ended.at, Ended.JOB_ENDED, _ending(job, incident)), now, effects)
        return
    if job.attempt < incident.attempt or job.launches != incident.launch:
        _send(job, incident, machine.Closed(now, Ended.LAUNCHED_AGAIN, LAUNCHED_AGAIN), now, effects)
        return
    if _order_missed(job, incident):
        _send(job, incident, machine.OrderRepeated(job.attempt), now, effects)
        return
    if job.attempt > incident.attempt and incident.phase is not Phase.RECOVERING:
        _send(job, incident, machine.AttemptBegan(job.attempt, job.attempt_since), now, effects)
    elif job.attempt == incident.attempt:
        _observe(job, incident, verdicts, now)
    match incident.phase:
        case Phase.DETECTED if not verdicts:
            _close_if_recovered(job, incident, now, effects)
        case Phase.DETECTED if _looked_at(incident):
            _confirming(job, incident, verdicts, now, effects)
        case Phase.CAPTURING:
            _capturing(job, incident, verdicts, now, effects)
        case Phase.CONFIRMING if not verdicts:
            _close_if_recovered(job, incident, now, effects)
        case Phase.CONFIRMING:
            _confirming(job, incident, verdicts, now, effects)
        case Phase.ACTING:
            _acting(job, incident, verdicts, now, effects)
        case Phase.RECOVERING:
            _recovering(job, incident, verdicts, now, effects)


def _proven(job: Job, incident: Incident, verdicts: Verdicts, now: float) -> bool:
    """Whether a suspicion is confirmed by a configured limit that was passed meanwhile, or patience is at its end."""
    verdicts = verdicts.that(lambda common: common.kind is not VerdictKind.STALLED)  # they may do anything for long
    begun = _waited_since(job, incident)
    return proven(job.columns, job.limits.rank, verdicts, begun, patience(job, incident, begun).seconds, now)


def _waited_since(job: Job, incident: Incident) -> float:
    """When the patience with a suspicion began: no look has shown since what keeps it from being acted on.

    While other ranks go on, one that is only not heard works too, or is not needed; so does one that only sends no
    heartbeats, which nobody asked it to.
    """
    unheard = incident.kind in OF_SILENCE or incident.limit_source == LimitSource.DEFAULT
    moved = proof.last_moved(job.columns) if unheard else -math.inf
    return max(incident.opened_at, job.silence_baseline, proof.last_busy(job.columns), moved)


def _looked_at(incident: Incident) -> bool:
    """Whether looks may show something new: at a suspicion, also one that patience confirmed and nothing followed."""
    limit = incident.limit_source
    return not incident.confirmed or (
        incident.phase is Phase.DETECTED
        and limit not in ("", LimitSource.CONFIGURED)
        and incident.proof not in proof.PROVEN
    )


def _confirming(job: Job, incident: Incident, verdicts: Verdicts, now: float, effects: list[Effect]) -> None:
    """Decide on a suspicion, also one on which nothing follows: by what looks at the ranks prove, else by patience."""
    decision, shown = proof.NOTHING, incident.proof
    if not verdicts.act_at_once:
        decision = proof.decide(job.columns, job.limits.rank, incident.stacks, now)
    recent = now - proof.last_busy(job.columns) <= proof.FRESH_SECONDS
    if incident.proof == Proof.SUSPENDED and decision.proof is Proof.STOPPED and recent:
        return  # they are being continued, and not all have been looked at since
    _state(job, incident, verdicts, decision, now, effects)
    held = decision.holds or (incident.held and decision.proof is Proof.UNDECIDED)  # one look may have failed
    if held:
        proof.begin_anew(job.columns, now)
    if decision.proven or (not held and not incident.confirmed and _proven(job, incident, verdicts, now)):
        if incident.proof == Proof.BUSY:
            _send(job, incident, machine.Proved(None), now, effects)
        _confirm(job, incident, verdicts, now, effects)
    elif not incident.held and _retries_for_ever(job, incident, verdicts, now):
        stalled = Shown(Proof.STALLED, Some((), 0), seconds=now - verdicts[0].since)
        _send(job, incident, machine.Proved(stalled, _while_held(job, incident, verdicts, stalled)), now, effects)
    if incident.phase is Phase.CONFIRMING:
        before = incident.attempts_here
        _set_deadline(job, incident, decision, now)
        if incident.attempts_here != before:
            _state(job, incident, verdicts, decision, now, effects, renew=True)
    if _looked_at(incident) and _captures(job):
        if incident.proof != shown:
            effects.append(_directive(job, incident, Command.TELL, now))
        if now - incident.watched_at >= WATCH_SECONDS:
            effects.append(_directive(job, incident, Command.CAPTURE, now))


def _state(
    job: Job,
    incident: Incident,
    verdicts: Verdicts,
    decision: proof.Decision,
    now: float,
    effects: list[Effect],
    *,
    renew: bool = False,
) -> None:
    """State what the looks show, when it is something else than before (or ``renew``), or has lasted for some time."""
    changed = renew or incident.proof != decision.proof
    if decision.proof is Proof.UNDECIDED or not (changed or now - incident.proof_at >= RESTATE_AFTER):
        return
    if not changed and decision.proof not in proof.LASTING:
        return
    shown = proof.shown(decision, _waits(incident), incident.stacks, job.columns, now)
    diagnosis = None if decision.proven else _while_held(job, incident, verdicts, shown, decision.ranks)
    _send(job, incident, machine.Proved(shown, diagnosis), now, effects)


def _waits(incident: Incident) -> dict[int, Wait]:
    return {each.rank: each.wait for each in incident.waits}


def _set_deadline(job: Job, incident: Incident, decision: proof.Decision, now: float) -> None:
    """Note when patience ends, or before that a configured limit that is running; no time where none ends it."""
    begun = _waited_since(job, incident)
    bound = patience(job, incident, begun)
    acts = not decision.holds and not incident.held and incident.kind is not VerdictKind.STALLED
    configured = configured_deadline(job.columns, job.limits)
    first = min(begun + bound.seconds if acts else math.inf, configured)
    deadline = None if math.isinf(first) else first
    before = incident.acts_at
    same = deadline == before or (deadline is not None and before is not None and abs(deadline - before) < SAME_MOMENT)
    if not same or (bound.cost, bound.attempts) != (incident.restart_cost, incident.attempts_here):
        machine.transition(incident, machine.DeadlineSet(deadline, bound.cost, bound.attempts), now)


def _retries_for_ever(job: Job, incident: Incident, verdicts: Verdicts, now: float) -> bool:
    """Whether a stalled job has moved for the confirmation window, and no rank was found busy in it."""
    stalled = verdicts.kinds <= {VerdictKind.STALLED}
    return stalled and now - _waited_since(job, incident) >= job.policy.confirmation_window


def _while_held(job: Job, incident: Incident, verdicts: Verdicts, shown: Shown, ranks: Sequence[int] = ()) -> Diagnosis:
    """The diagnosis while nothing proves a hang; the others wait for the ranks that the looks show."""
    first, waits = verdicts[0], _waits(incident)
    named = ranks if shown.proof in proof.WAITED_FOR and shown.waiting else ()
    causes = proof.watched(shown, named, waits, incident.stacks)
    return Diagnosis(
        first.kind,
        stated(shown, incident),
        since=incident.timeline.since,
        found=detection_of(job.columns, first, len(verdicts) - 1, Blame(())),
        culprits=tuple(culprit_of(job.columns, rank, cause) for rank, cause in zip(named, causes, strict=True)),
        affected=union(verdicts.rank_V, ranks),
    )


def _order_missed(job: Job, incident: Incident) -> bool:
    """Whether the ranks were restarted before a person's order was carried out.

    That is: an order to stop, or one to restart without nodes that run ranks again; the latter is repeated once.
    """
    if job.attempt <= incident.attempt or not incident.ordered:
        return False
    if incident.action in STOPS:
        return True
    excluded = (job.nodes[name] for name in incident.exclude if name in job.nodes)
    return not incident.excluded_anew and any(node.ranks for node in excluded)


def _observe(job: Job, incident: Incident, verdicts: Verdicts, now: float) -> None:
    affected, furthest, reached = incident.affected, incident.furthest_iteration, job.furthest_iteration
    known = affected if isinstance(affected, RankRuns) else RankRuns(affected)
    if not known.cover(verdicts.rank_V):
        affected = union(affected, verdicts.rank_V)
    if reached is not None:  # a rank's last report may arrive after the verdict on it
        furthest = max(furthest or 0, reached)
    if (affected, furthest) != (incident.affected, incident.furthest_iteration):
        machine.transition(incident, machine.Observed(affected, furthest), now)


def _confirm(job: Job, incident: Incident, verdicts: Verdicts, now: float, effects: list[Effect]) -> None:
    diagnosis = _diagnose(job, incident, verdicts, now, renew=True)
    action, why, _ = allowed_action(job, job.policy.on_hang, confirmed=verdicts.act_at_once)
    if not verdicts.act_at_once and incident.proof not in proof.PROVEN:
        why = f"{why}, after {now - _waited_since(job, incident):.0f} s without progress"
    _send(job, incident, machine.Confirmed(diagnosis, why if action is incident.action else ""), now, effects)


def _close_if_recovered(job: Job, incident: Incident, now: float, effects: list[Effect]) -> None:
    """Close an incident without verdicts, if its ranks are known to be well."""
    if not job.policy.detection:
        _send(job, incident, machine.Closed(now, Ended.DETECTION_OFF, "detection was switched off"), now, effects)
    elif _reported_since(job, incident, now) and not leaves(job.columns, now):
        how, outcome = Ended.WENT_ON, "the ranks went on by themselves"
        silent = incident.kind in OF_SILENCE
        if (silent or incident.kind in OF_A_SECTION) and _stand_still(job, incident):
            how, outcome = Ended.RANKS_ENDED, "the ranks ended"
            if live_ranks(job.columns)[_affected(job, incident)].any():
                how, outcome = Ended.LIMIT_CHANGED, "its limit was changed; the ranks have not moved"
                if silent:
                    how, outcome = Ended.HEARD, "the ranks are heard again, and have made no progress"
        _send(job, incident, machine.Closed(now, how, outcome), now, effects)


def _capturing(job: Job, incident: Incident, verdicts: Verdicts, now: float, effects: list[Effect]) -> None:
    lost = set(verdicts.of_kinds(VerdictKind.NODE_LOST).ranks.tolist())
    asked = {name for name, node in nodes.acting(job).items() if not node.ranks or not node.ranks <= lost}
    complete = asked <= incident.heard_nodes
    if not complete and now - incident.phase_since < job.policy.capture_deadline + evidence_spread(len(asked)):
        return
    if not verdicts and not incident.decided:
        _close_if_recovered(job, incident, now, effects)
        silence = job.policy.silence_timeout
        watched = now - max(job.silence_baseline, incident.phase_since)
        if not incident.open or silence is None or watched < silence:
            return  # a monitor that has just started: the ranks may have made progress and not reported it yet
    diagnosis = None if incident.elective else _diagnose(job, incident, verdicts, now)
    excluded = None
    by_policy = incident.action is Action.RESTART_EXCLUDING_NODE and not incident.ordered
    if by_policy and incident.confirmed:
        culprits = incident.culprits if diagnosis is None else diagnosis.culprits
        excluded = exclusion.by_policy(job, incident, culprits, now)
    _send(job, incident, machine.StacksTaken(diagnosis, excluded), now, effects)
    if incident.phase is Phase.CONFIRMING:
        _set_deadline(job, incident, proof.NOTHING, now)


def _acting(job: Job, incident: Incident, verdicts: Verdicts, now: float, effects: list[Effect]) -> None:
    by_launchers = incident.action is Action.SAVE_AND_STOP or verdicts.left_to_launchers
    if by_launchers and not incident.directive:
        return
    waited = now - incident.phase_since
    if incident.action is Action.SAVE_AND_STOP:
        if job.refused_step is not None:
            _send(job, incident, machine.StopStepRefused(), now, effects)
        elif waited > job.policy.stop_deadline:
            _send(job, incident, machine.StopTimedOut(job.policy.stop_deadline), now, effects)
    elif incident.refusals and (acting := nodes.acting(job)) and acting.keys() <= set(incident.refusals):
        _send(job, incident, machine.RefusedByAll(), now, effects)
    elif waited > REPEAT_AFTER and now - job.last_heard < REPEAT_AFTER:
        _send(job, incident, machine.Unanswered(), now, effects)


def _recovering(job: Job, incident: Incident, verdicts: Verdicts, now: float, effects: list[Effect]) -> None:
    columns = job.columns
    stepped_R = np.flatnonzero(columns.first_iteration_R >= 0)
    if len(stepped_R):
        resumed = int(columns.first_iteration_R[stepped_R].min())
        outcome, steps_lost = f"attempt {job.attempt} resumed at step {resumed}", None
        if columns.counted_R[stepped_R].any():
            steps_lost = job.ledger.at_risk  # as of the last step of the attempt before
            outcome = f"attempt {job.attempt} goes on, and counts its steps from 0: " + (
                "how many were lost is not known"
                if steps_lost is None
                else f"{count(steps_lost, 'step')} since the last save {'was' if steps_lost == 1 else 'were'} lost"
            )
        elif incident.furthest_iteration is not None:
            steps_lost = max(0, incident.furthest_iteration + 1 - resumed)
            outcome += "" if resumed else ", so no checkpoint was loaded"
            outcome += f"; {count(steps_lost, 'step')} {'was' if steps_lost == 1 else 'were'} lost"
        first_step = float(columns.first_step_R[stepped_R].min())
        _send(job, incident, machine.Closed(now, Ended.RECOVERED, outcome, first_step, steps_lost), now, effects)
    elif verdicts:
        outcome = f"attempt {job.attempt} had another incident before its first step"
        _send(job, incident, machine.Closed(now, Ended.SUPERSEDED, outcome), now, effects)
    elif not job.counts_steps and now - incident.phase_since > _stepless_after(job) and len(columns) and _all_up(job):
        # Ranks that count steps may load and compile for many minutes before their first.
        outcome = f"attempt {job.attempt} runs; this job counts no steps"
        _send(job, incident, machine.Closed(now, Ended.RECOVERED, outcome), now, effects)


# Facts ----------------------------------------------------------------------------------------------------------------


def _affected(job: Job, incident: Incident) -> Ints:
    return np.array([rank for rank in incident.affected if rank < len(job.columns)], dtype=np.int64)


def _reported_since(job: Job, incident: Incident, now: float) -> bool:
    """Whether every affected rank reported since the incident was opened, and recently: it is known to be well."""
    columns, ranks = job.columns, _affected(job, incident)
    silence = math.inf if job.policy.silence_timeout is None else job.policy.silence_timeout
    since = max(incident.opened_at, job.silence_baseline, now - silence)
    return bool(np.all((columns.last_update_R[ranks] >= since) | columns.shut_down_R[ranks]))


def _stand_still(job: Job, incident: Incident) -> bool:
    """Whether no affected rank has made progress since before it passed the limit."""
    columns, ranks = job.columns, _affected(job, incident)
    signs_R = np.fmax(columns.last_progress_R[ranks], columns.last_heartbeat_R[ranks])
    return bool(np.all(signs_R < incident.opened_at - (incident.limit or 0.0)))


def _stepped(job: Job, incident: Incident) -> bool:
    """Whether a new attempt has completed a step since the incident."""
    return job.attempt > incident.attempt and bool(np.any(job.columns.first_iteration_R >= 0))


def _stepless_after(job: Job) -> float:
    return STEPLESS_AFTER if job.ever_instrumented else UNINSTRUMENTED_AFTER


def _all_up(job: Job) -> bool:
    """Whether every rank of the attempt works: it sent heartbeats or sections; uninstrumented: it was started."""
    columns = job.columns
    if not columns.reported_R.any():
        return bool(np.all(columns.pid_R >= 0))
    return bool(np.all(columns.reported_R & ((columns.heartbeats_R > 0) | columns.uses_sections_R)))


def _ending(job: Job, incident: Incident) -> str:
    assert job.ended is not None
    words = {JobState.FINISHED: "the job finished", JobState.FAILED: "the job failed"}.get(
        job.ended.state, f"the job was {job.ended.state}"
    )
    return f"{words}: {job.ended.reason}" if job.ended.reason else incident.outcome or words


def _words(action: Action) -> str:
    return action.replace("_", " ")
