"""What is done about a job: verdicts, policy and budgets in; effects out.

:func:`advance` is called after every event that could matter and at every tick. It opens at most one incident, takes
orders, and has ``phases`` move the open incident along as far as it can go at ``now``. Nothing here waits: a deadline
is a comparison.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankwatch.contract.enums import Action, CulpritClass, VerdictKind
from rankwatch.contract.intervals import burst_spread
from rankwatch_monitor.core import nodes
from rankwatch_monitor.core.effects import Changed, Effect, Issue
from rankwatch_monitor.core.hang import node_loss
from rankwatch_monitor.core.hang.detect import detect
from rankwatch_monitor.core.hang.verdict import Culprit, Verdict
from rankwatch_monitor.core.incident import exclusion, notices, phases, settings_push, stop_request
from rankwatch_monitor.core.incident.incident import RESTARTS, Incident, Phase, Timeline
from rankwatch_monitor.core.job import KEPT_INCIDENTS, Job
from rankwatch_monitor.core.liveness import live_ranks
from rankwatch_monitor.core.straggler import actions, detector

SETTLE = 0.2
"""Seconds to hear of the other ranks before an incident is opened, and in large jobs the time over which they spread
their news. Each rank speaks when it passes its own limit, so after this the progress of all of them is known as it is,
not as it was an export interval ago."""
TOGETHER = (VerdictKind.HEARTBEAT_OVERRUN, VerdictKind.SECTION_OVERRUN, VerdictKind.OUT_OF_SECTION_OVERRUN)


def advance(job: Job, now: float) -> list[Effect]:
    """Judge a job at ``now`` and return what follows."""
    effects: list[Effect] = detector.judge(job, now)
    verdicts = verdicts_of(job, now)
    incident = job.open_incident
    if incident is not None and _over(job, incident, verdicts, now):
        phases.close(incident, now, incident.outcome, effects)
        incident = None
    if incident is None and _settled(job, verdicts, now):
        incident = _open(job, verdicts, now, effects)
    if incident is None and not verdicts:
        incident = _slow(job, now, effects)
    if stop_request.wanted(job, incident):
        incident = incident or _new_incident(job, VerdictKind.ORDERED, None, now)
        stop_request.note(job, incident, now, effects)
    if job.orders:
        incident = _ordered(job, incident, now, effects)
    if job.notices and (incident is None or not incident.open or incident.self_reported):
        _told(job, now, effects)
    if incident is None or incident.self_reported:
        return effects
    if verdicts:
        _reconsider(job, incident, verdicts, now, effects)
    _lost_meanwhile(job, incident, verdicts, now, effects)
    phases.move(job, incident, verdicts, now, effects)
    return effects


def verdicts_of(job: Job, now: float) -> list[Verdict]:
    """What is wrong with a job's ranks at ``now``; nothing while detection is off or after the job ended."""
    if not job.policy.detection or job.ended is not None or not len(job.columns):
        return []
    return node_loss.found(job, detect(job.columns, job.limits, now, silence_baseline=job.silence_baseline), now)


def _settled(job: Job, verdicts: Sequence[Verdict], now: float) -> bool:
    """Whether it is time to speak: ranks that wait for each other pass their limits within moments of each other."""
    if not verdicts:
        job.verdicts_since = None
        return False
    if job.verdicts_since is None:
        job.verdicts_since = now
    if any(v.kind not in TOGETHER for v in verdicts) or now - job.verdicts_since >= SETTLE + burst_spread(
        job.world_size
    ):
        return True
    columns = job.columns
    live = int(np.sum(live_ranks(columns)))
    return len({v.rank for v in verdicts}) >= live


def _open(job: Job, verdicts: Sequence[Verdict], now: float, effects: list[Effect]) -> Incident:
    incident = _new_incident(job, verdicts[0].kind, None, now)
    incident.confirmed = any(v.source.acts_at_once for v in verdicts)
    phases.name(job, incident, verdicts, now)
    if _crashed(verdicts):
        _leave_to_launchers(incident, verdicts)
    else:
        incident.action, incident.action_reason = allowed_action(job, job.policy.on_hang)
        if not incident.confirmed:
            incident.timeline.decided = None
            incident.action_reason += f", once {job.policy.confirmation_window:g} s have shown no progress"
        if incident.action is not Action.LOG:
            phases.capture(job, incident, effects)
    effects.append(Changed(incident, f"{incident.reason} Action: {_words(incident.action)}; {incident.action_reason}."))
    return incident


def _over(job: Job, incident: Incident, verdicts: Sequence[Verdict], now: float) -> bool:
    """Whether what ranks have told has been heard from all of them, or makes way for something else."""
    if not incident.self_reported:
        return False
    other = bool(verdicts or job.orders) or job.ended is not None or stop_request.wanted(job, None)
    return other or now - incident.opened_at >= notices.SETTLE


def _told(job: Job, now: float, effects: list[Effect]) -> None:
    """Put down what ranks tell of themselves."""
    while job.notices:
        notice = job.notices.popleft()
        incident = notices.known(job, notice)
        if incident is None:
            if job.open_incident is not None:
                job.notices.appendleft(notice)
                return
            incident = _new_incident(job, notice.kind, None, now)
            notices.begin(incident, notice)
            effects.append(Changed(incident, incident.reason))
        elif incident.open and notice.rank not in incident.affected:
            incident.affected = tuple(sorted((*incident.affected, notice.rank)))
            effects.append(Changed(incident, ""))


def _slow(job: Job, now: float, effects: list[Effect]) -> Incident | None:
    """Open an incident about stragglers that the policy acts on."""
    due = actions.due(job, allowed_action(job, job.policy.on_straggler), effects)
    if due is None:
        return None
    first = due.stragglers[0]
    incident = _new_incident(job, VerdictKind.STRAGGLER, min(s.since for s in due.stragglers), now)
    incident.reason, incident.action, incident.action_reason = first.reason, due.action, due.why
    incident.culprits = tuple(Culprit(s.rank, s.host, CulpritClass.STRAGGLER, s.reason) for s in due.stragglers)
    incident.affected = tuple(sorted(s.rank for s in due.stragglers))
    phases.capture(job, incident, effects)
    if due.action is Action.CAPTURE:
        job.performance.request_trace(first.rank, incident.id)
        effects.append(Issue(settings_push.push(job, f"a trace of rank {first.rank} is wanted", now)))
    effects.append(Changed(incident, f"{incident.reason} Action: {_words(incident.action)}; {incident.action_reason}."))
    return incident


def _crashed(verdicts: Sequence[Verdict]) -> bool:
    return any(v.left_to_launchers for v in verdicts)


def _leave_to_launchers(incident: Incident, verdicts: Sequence[Verdict]) -> None:
    incident.action, incident.phase, incident.directive = Action.RESTART, Phase.ACTING, 0
    what = "start the ranks anew without a lost node" if any(v.node_loss for v in verdicts) else "restart crashed ranks"
    incident.action_reason = f"launchers {what} at once and by themselves, within their budget"


def _lost_meanwhile(
    job: Job, incident: Incident, verdicts: Sequence[Verdict], now: float, effects: list[Effect]
) -> None:
    """What was taken for a crash or a hang was the loss of a node, as the launchers have told since: call it so."""
    if not incident.open or incident.kind is VerdictKind.ORDERED:
        return
    if incident.attempt != job.attempt:
        if incident.attempt < job.attempt and node_loss.renamed(job, incident):
            effects.append(Changed(incident, incident.reason))
        return
    if {v.rank for v in verdicts if v.node_loss} <= {c.rank for c in incident.culprits}:
        return
    incident.reason = ""  # it is said anew
    phases.name(job, incident, verdicts, now)
    if incident.phase in (Phase.DETECTED, Phase.CAPTURING, Phase.CONFIRMING) and not incident.ordered:
        incident.confirmed, incident.phase_since = True, now
        incident.timeline.decided = incident.timeline.decided or now
        _leave_to_launchers(incident, verdicts)
    effects.append(Changed(incident, incident.reason))


def _reconsider(job: Job, incident: Incident, verdicts: Sequence[Verdict], now: float, effects: list[Effect]) -> None:
    """Act on an incident that was only recorded, once acting is possible: a launcher came, observe-only was left.

    A suspicion is held to what the policy says now: a person may change it while there is still time.
    """
    recorded = incident.phase is Phase.DETECTED and incident.action is Action.LOG and not incident.refusals
    suspected = incident.phase is Phase.CONFIRMING
    if incident.attempt != job.attempt or not (recorded or suspected):
        return
    if suspected and _crashed(verdicts):
        incident.phase_since = now
        _leave_to_launchers(incident, verdicts)
        phases.confirm(job, incident, verdicts, now, effects)
        return
    action, why = allowed_action(job, job.policy.on_hang)
    if action is incident.action:
        return
    incident.action, incident.action_reason, incident.phase_since = action, why, now
    incident.timeline.decided = now if incident.confirmed else None
    if action is Action.LOG:
        incident.phase = Phase.DETECTED
    elif recorded:
        phases.capture(job, incident, effects)
    effects.append(Changed(incident, f"{incident.reason} Action: {_words(action)}; {why}."))


def _ordered(job: Job, incident: Incident | None, now: float, effects: list[Effect]) -> Incident:
    order = job.orders.popleft()
    job.orders.clear()
    because = f"a person ordered {_words(order.action)}"
    if order.nodes:
        because = f"a person ordered a restart without {nodes.titles(job, order.nodes)}"
    because += f": {order.reason.rstrip('. ')}" if order.reason.strip() else ""
    if incident is None:
        incident = _new_incident(job, VerdictKind.ORDERED, now, now)
        incident.reason = f"{because[:1].upper()}{because[1:]}."
    if job.ended is not None:
        return incident
    if not nodes.acting(job):
        outcome = "there is no launcher of Rankwatch to carry it out"
        if incident.kind is VerdictKind.ORDERED:
            phases.close(incident, now, outcome, effects)
        else:
            effects.append(Changed(incident, f"{because[:1].upper()}{because[1:]}, but {outcome}."))
        return incident
    under_way = incident.phase is Phase.CAPTURING and incident.action is not Action.LOG
    if order.action is Action.CAPTURE and under_way:
        return incident  # stacks are being taken already, for something that goes further
    waits_for_proof = not incident.confirmed and incident.phase in (Phase.DETECTED, Phase.CONFIRMING)
    only_looks = order.action is Action.CAPTURE and waits_for_proof
    incident.confirmed = not only_looks
    if not only_looks or incident.phase is Phase.DETECTED:  # else what is to follow stays
        incident.action, incident.action_reason, incident.ordered = order.action, because, True
        incident.exclude, incident.excluded_anew = order.nodes, False
        if order.nodes:
            incident.action_reason += f"; {exclusion.words(job, order.nodes)}"
    # It is about the attempt that runs now, whichever one the incident began in.
    incident.attempt, incident.phase_since = job.attempt, now
    incident.timeline.decided, incident.timeline.captured = None if only_looks else now, None
    incident.heard_nodes = set()
    phases.capture(job, incident, effects)
    effects.append(Changed(incident, f"{incident.reason} Action: {_words(incident.action)}."))
    return incident


def _new_incident(job: Job, kind: VerdictKind, since: float | None, now: float) -> Incident:
    job.last_incident += 1
    job.incident_counts[kind] = job.incident_counts.get(kind, 0) + 1
    incident = Incident(
        id=f"{job.id}-{job.created_at:.0f}-{job.last_incident}",
        job_id=job.id,
        kind=kind,
        attempt=job.attempt,
        launch=job.launches,
        opened_at=now,
        reason="",
        phase_since=now,
        furthest_iteration=job.furthest_iteration,
        timeline=Timeline(since=since, detected=now, decided=now),
    )
    job.incidents.append(incident)
    del job.incidents[:-KEPT_INCIDENTS]
    return incident


def _words(action: Action) -> str:
    return action.replace("_", " ")


def allowed_action(job: Job, wanted: Action) -> tuple[Action, str]:
    """What may really be done when ``wanted`` is wished for, and why in words."""
    if wanted is Action.LOG:
        return Action.LOG, "the policy only records"
    if not nodes.acting(job):
        return Action.LOG, "no launcher of Rankwatch runs this job, so it can only be watched"
    if job.policy.observe_only:
        return Action.LOG, "observe-only is on"
    if wanted in RESTARTS and job.restarts >= job.policy.max_restarts:
        return Action.STOP, f"the restart budget is used up ({job.restarts} of {job.policy.max_restarts})"
    return wanted, f"the policy says {_words(wanted)}"
