"""An open incident from phase to phase; the table stands in ``incident``."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rankwatch.contract.enums import Action, CulpritClass, DirectiveKind, JobState, VerdictKind
from rankwatch.contract.intervals import evidence_spread
from rankwatch_monitor.core import nodes
from rankwatch_monitor.core.effects import Changed, Effect, Issue
from rankwatch_monitor.core.hang import blame as culprit
from rankwatch_monitor.core.hang import messages
from rankwatch_monitor.core.hang.confirmation import proven
from rankwatch_monitor.core.hang.verdict import Blame, Verdict
from rankwatch_monitor.core.incident import exclusion
from rankwatch_monitor.core.incident.incident import RESTARTS, Incident, Phase
from rankwatch_monitor.core.job import Job

STOP_MARGIN_SECONDS = 3.0
"""An agreed stop step lies this far ahead of the furthest rank: every slot holds it before any rank gets there."""
STOP_MARGIN_STEPS = 2
REPEAT_AFTER = 60.0
"""Seconds without an answer after which a directive is issued again; one that was obeyed is ``superseded``."""

STEPLESS_AFTER = 60.0
"""Seconds in a new attempt after which ranks that work are taken for ones that count no steps, if none ever has."""

UNINSTRUMENTED_AFTER = 10.0
"""The same for a job none of whose ranks speaks."""


def move(job: Job, incident: Incident, verdicts: Sequence[Verdict], now: float, effects: list[Effect]) -> None:
    """Move an incident along as far as it can go at ``now``."""
    if not incident.open:
        return
    if job.ended is not None and not _stepped(job, incident):
        close(incident, job.ended.at, _ending_words(job, incident), effects)
        return
    if job.attempt < incident.attempt or job.launches != incident.launch:
        close(incident, now, "the job was launched anew", effects)
        return
    if job.attempt > incident.attempt and incident.ordered and incident.action in (Action.STOP, Action.SAVE_AND_STOP):
        # The ranks were started anew before a person's order was carried out: it holds for the new attempt.
        incident.attempt, incident.phase, incident.phase_since = job.attempt, Phase.ACTING, now
        _act(job, incident, effects)
        effects.append(Changed(incident, ""))
        return
    if _excluded_in_vain(job, incident):
        incident.attempt, incident.phase, incident.phase_since = job.attempt, Phase.ACTING, now
        incident.excluded_anew, incident.timeline.restarted = True, None
        _act(job, incident, effects)
        effects.append(Changed(incident, ""))
        return
    if job.attempt > incident.attempt and incident.phase is not Phase.RECOVERING:
        # Whoever began it (the launcher after a crash, a person's torchrun), a new attempt answers the incident.
        incident.timeline.restarted = job.attempt_since
        incident.phase, incident.phase_since = Phase.RECOVERING, now
        effects.append(Changed(incident, f"Attempt {job.attempt} has begun."))
    elif job.attempt == incident.attempt and job.furthest_iteration is not None:
        # The last word of a rank may come after the verdict on it.
        incident.furthest_iteration = max(incident.furthest_iteration or 0, job.furthest_iteration)
    if job.attempt == incident.attempt:
        incident.affected = tuple(sorted({*incident.affected, *(v.rank for v in verdicts)}))
    match incident.phase:
        case Phase.DETECTED:
            if not verdicts:
                _went_on(job, incident, now, effects)
            elif not incident.confirmed and proven(job, incident.opened_at, verdicts, now):
                confirm(job, incident, verdicts, now, effects)
        case Phase.CAPTURING:
            _capturing(job, incident, verdicts, now, effects)
        case Phase.CONFIRMING:
            _confirming(job, incident, verdicts, now, effects)
        case Phase.ACTING:
            _acting(job, incident, verdicts, now, effects)
        case Phase.RECOVERING:
            _recovering(job, incident, verdicts, now, effects)


def _excluded_in_vain(job: Job, incident: Incident) -> bool:
    """The ranks were started anew with the nodes that a person wants left out: his order holds for the new attempt."""
    if job.attempt <= incident.attempt or not incident.ordered or incident.excluded_anew:
        return False
    return any(job.nodes[n].ranks for n in incident.exclude if n in job.nodes)


def name(job: Job, incident: Incident, verdicts: Sequence[Verdict], now: float) -> None:
    """Put down who is past a limit, who is to blame and why, as well as it is known now."""
    if not verdicts:
        return
    taken = incident.stacks
    unasked = _unasked(job, incident)
    judged = culprit.blame(job.columns, verdicts, taken.groups(), fronts=taken.fronts(), unasked=unasked)
    same = [c[:3] for c in judged.culprits] == [c[:3] for c in incident.culprits]
    if incident.reason and same and _said(incident, judged):
        return  # the same ranks for the same cause: the sentence that was said stands
    first = _foremost(job, verdicts, judged, now)
    incident.kind, incident.section = first.kind, first.section
    incident.limit, incident.elapsed = first.limit or None, first.elapsed or None
    since = incident.timeline.since
    # Told twice, a beginning may differ by what a report took on its way.
    incident.timeline.since = first.since if since is None else min(since, first.since)
    incident.culprits = judged.culprits
    incident.affected = tuple(sorted({v.rank for v in verdicts} | {first.rank}))
    incident.reason = messages.sentence(first, len(incident.affected) - 1, judged, job.columns)


def _said(incident: Incident, judged: Blame) -> bool:
    """Whether the incident's sentence says so already; stacks and collectives may tell more than progress did."""
    if judged.culprits and judged.culprits[0].kind is not CulpritClass.BEHIND:
        return True  # how long it has been silent changes all the time
    return (judged.culprits[0].reason if judged.culprits else judged.explanation) in incident.reason


def _unasked(job: Job, incident: Incident) -> list[str]:
    """Hosts whose launchers were asked for stacks and sent none before the deadline."""
    if not incident.heard_nodes:
        return []
    return sorted(
        {node.registration.host for name, node in nodes.acting(job).items() if name not in incident.heard_nodes}
    )


def capture(job: Job, incident: Incident, effects: list[Effect]) -> None:
    """Ask every launcher for the stacks of its ranks."""
    incident.phase = Phase.CAPTURING
    _issue(job, incident, DirectiveKind.CAPTURE, job.policy.capture_deadline, None, effects)


def close(incident: Incident, at: float, outcome: str, effects: list[Effect]) -> None:
    """End an incident, with what came of it."""
    incident.phase, incident.closed_at, incident.outcome = Phase.CLOSED, at, outcome.rstrip(". ")
    effects.append(Changed(incident, f"Incident {incident.id} is over: {incident.outcome}."))


def _foremost(job: Job, verdicts: Sequence[Verdict], judged: Blame, now: float) -> Verdict:
    """The verdict to speak of: a culprit's own, if there is one.

    Ranks pass a limit within milliseconds of each other and report it in any order; a culprit that entered the same
    section long enough ago has passed it too, whether or not it has said so yet.
    """
    if not judged.culprits:
        return verdicts[0]
    rank = judged.culprits[0].rank
    own = next((v for v in verdicts if v.rank == rank), None)
    if own is not None:
        return own
    seen = verdicts[0]
    if seen.section is None:
        return seen
    columns = job.columns
    elapsed = columns.open_sections(rank, now).get(seen.section, 0.0)
    if not seen.source.acts_at_once:
        elapsed = float(np.nan_to_num(now - columns.last_progress_R[rank]))
    return seen._replace(rank=rank, elapsed=elapsed, since=now - elapsed) if elapsed > seen.limit else seen


def _spoke_again(job: Job, incident: Incident, now: float) -> bool:
    """Every affected rank was heard since the incident was opened, and lately: that nothing is wrong now is known."""
    columns = job.columns
    ranks = np.array([rank for rank in incident.affected if rank < len(columns)], dtype=np.int64)
    silence = math.inf if job.policy.silence_timeout is None else job.policy.silence_timeout
    since = max(incident.opened_at, job.silence_baseline, now - silence)
    return bool(np.all((columns.last_update_R[ranks] >= since) | columns.shut_down_R[ranks]))


def _stand_still(job: Job, incident: Incident) -> bool:
    """No affected rank has shown a sign of life since before it passed the limit."""
    columns = job.columns
    ranks = np.array([rank for rank in incident.affected if rank < len(columns)], dtype=np.int64)
    signs_R = np.fmax(columns.last_progress_R[ranks], columns.last_heartbeat_R[ranks])
    return bool(np.all(signs_R < incident.opened_at - (incident.limit or 0.0)))


def _went_on(job: Job, incident: Incident, now: float, effects: list[Effect]) -> bool:
    """Close an incident whose ranks are well again; say whether it is over."""
    if not job.policy.detection:
        close(incident, now, "detection was switched off", effects)
    elif _spoke_again(job, incident, now):
        outcome = "the ranks went on by themselves"
        if incident.kind is VerdictKind.SECTION_OVERRUN and _stand_still(job, incident):
            outcome = "its limit was changed; the ranks have not moved"
        close(incident, now, outcome, effects)
    return not incident.open


def _capturing(job: Job, incident: Incident, verdicts: Sequence[Verdict], now: float, effects: list[Effect]) -> None:
    lost = {v.rank for v in verdicts if v.kind is VerdictKind.NODE_LOST}
    asked = {name for name, node in nodes.acting(job).items() if not node.ranks or not node.ranks <= lost}
    complete = asked <= incident.heard_nodes
    if not complete and now - incident.phase_since < job.policy.capture_deadline + evidence_spread(len(asked)):
        return
    if not verdicts and not incident.decided:
        if _went_on(job, incident, now, effects):
            return
        silence = job.policy.silence_timeout
        if silence is None or now - max(job.silence_baseline, incident.phase_since) < silence:
            return  # this monitor has just begun to watch: the ranks may have gone on, and have not said so yet
    # Of two captures the one counts that came before the action.
    incident.timeline.captured = now if incident.stacks else None
    said = incident.reason
    if not incident.elective:
        name(job, incident, verdicts, now)
    incident.phase_since = now
    if incident.action is Action.CAPTURE:
        incident.phase = Phase.DETECTED
        if incident.elective:
            close(incident, now, f"stacks of {_count(len(incident.stacks), 'rank')} were taken", effects)
            return
    elif incident.confirmed:
        incident.phase = Phase.ACTING
        if incident.action is Action.RESTART_EXCLUDING_NODE and not incident.ordered:
            exclusion.settle(job, incident, now)
        _act(job, incident, effects)
    else:
        incident.phase = Phase.CONFIRMING
    effects.append(Changed(incident, incident.reason if incident.reason != said else ""))


def _confirming(job: Job, incident: Incident, verdicts: Sequence[Verdict], now: float, effects: list[Effect]) -> None:
    if not verdicts:
        _went_on(job, incident, now, effects)
    elif proven(job, incident.opened_at, verdicts, now):
        confirm(job, incident, verdicts, now, effects)
        incident.phase_since, incident.heard_nodes = now, set()
        capture(job, incident, effects)


def confirm(job: Job, incident: Incident, verdicts: Sequence[Verdict], now: float, effects: list[Effect]) -> None:
    """A suspicion holds: say so, and what is done about it."""
    incident.confirmed, incident.timeline.decided = True, now
    incident.reason = ""  # it is said anew, with how long it has lasted by now
    name(job, incident, verdicts, now)
    effects.append(Changed(incident, f"{incident.reason} Action: {incident.action.replace('_', ' ')}."))


def _act(job: Job, incident: Incident, effects: list[Effect]) -> None:
    deadline, stop_step = job.policy.capture_deadline, None
    if incident.action is Action.SAVE_AND_STOP:
        deadline = job.policy.stop_deadline
        ahead = math.ceil((job.steps_per_second or 0.0) * STOP_MARGIN_SECONDS) + STOP_MARGIN_STEPS
        furthest = -1 if job.furthest_iteration is None else job.furthest_iteration
        stop_step = incident.stop_step = max(furthest, job.refused_step or -1) + ahead
        job.refused_step = None
    kind = DirectiveKind.RESTART if incident.action in RESTARTS else DirectiveKind(incident.action)
    _issue(job, incident, kind, deadline, stop_step, effects)


def _issue(
    job: Job,
    incident: Incident,
    kind: DirectiveKind,
    deadline: float,
    stop_step: int | None,
    effects: list[Effect],
) -> None:
    exclude = incident.exclude if kind is DirectiveKind.RESTART else ()
    directive = job.new_directive(
        kind, incident.reason, incident_id=incident.id, deadline=deadline, stop_step=stop_step, exclude=exclude
    )
    incident.directive, incident.refusals = directive.id, ()
    effects.append(Issue(directive))


def _acting(job: Job, incident: Incident, verdicts: Sequence[Verdict], now: float, effects: list[Effect]) -> None:
    by_launchers = incident.action is Action.SAVE_AND_STOP or any(v.left_to_launchers for v in verdicts)
    if by_launchers and not incident.directive:
        return  # the launchers act by themselves: on a crash, a lost node, a signal
    waited = now - incident.phase_since
    if incident.action is Action.SAVE_AND_STOP:
        if job.refused_step is not None:
            _act(job, incident, effects)
        elif waited > job.policy.stop_deadline:
            incident.action, incident.phase_since = Action.STOP, now
            incident.action_reason += f"; the ranks did not stop by themselves within {job.policy.stop_deadline:g} s"
            _act(job, incident, effects)
            effects.append(Changed(incident, f"{incident.action_reason[:1].upper()}{incident.action_reason[1:]}."))
    elif nodes.acting(job) and set(nodes.acting(job)) <= set(incident.refusals):
        # Nobody carries it out: record what is wrong, so that the next thing can still be found.
        incident.action_reason += f"; every launcher refused: {incident.outcome or 'without a word'}"
        incident.action, incident.phase, incident.phase_since = Action.LOG, Phase.DETECTED, now
        effects.append(Changed(incident, f"{incident.action_reason[:1].upper()}{incident.action_reason[1:]}."))
    elif waited > REPEAT_AFTER and now - job.last_heard < REPEAT_AFTER:
        incident.phase_since = now
        _act(job, incident, effects)


def _recovering(job: Job, incident: Incident, verdicts: Sequence[Verdict], now: float, effects: list[Effect]) -> None:
    columns = job.columns
    stepped_R = np.flatnonzero(columns.first_iteration_R >= 0)
    if len(stepped_R):
        first = stepped_R[np.argmin(columns.first_step_R[stepped_R])]
        incident.timeline.first_step = float(columns.first_step_R[first])
        resumed = int(columns.first_iteration_R[stepped_R].min())
        lost = ""
        if incident.furthest_iteration is not None:
            incident.steps_lost = max(0, incident.furthest_iteration + 1 - resumed)
            lost = f"; {_count(incident.steps_lost, 'step')} {'was' if incident.steps_lost == 1 else 'were'} lost"
        close(incident, now, f"attempt {job.attempt} goes on at step {resumed}{lost}", effects)
    elif verdicts:
        close(incident, now, f"attempt {job.attempt} ran into trouble before its first step", effects)
    elif not job.counts_steps and now - incident.phase_since > _stepless_after(job) and len(columns) and _all_up(job):
        # It has no first step to wait for; others may load and compile for many minutes before theirs.
        close(incident, now, f"attempt {job.attempt} runs; this job counts no steps", effects)


def _stepped(job: Job, incident: Incident) -> bool:
    """A new attempt has completed a step since the incident."""
    return job.attempt > incident.attempt and bool(np.any(job.columns.first_iteration_R >= 0))


def _stepless_after(job: Job) -> float:
    return STEPLESS_AFTER if job.ever_instrumented else UNINSTRUMENTED_AFTER


def _all_up(job: Job) -> bool:
    """Every rank of the attempt is there: it has beaten or worked if any ever does, else its process was started."""
    columns = job.columns
    if not columns.reported_R.any():
        return bool(np.all(columns.pid_R >= 0))
    return bool(np.all(columns.reported_R & ((columns.heartbeats_R > 0) | columns.uses_sections_R)))


def _ending_words(job: Job, incident: Incident) -> str:
    assert job.ended is not None
    words = {JobState.FINISHED: "the job finished", JobState.FAILED: "the job failed"}.get(
        job.ended.state, f"the job was {job.ended.state}"
    )
    return f"{words}: {job.ended.reason}" if job.ended.reason else incident.outcome or words


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
