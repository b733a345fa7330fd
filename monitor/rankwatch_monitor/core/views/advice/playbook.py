"""The playbook: the first rule that applies to a job decides what a person should do about it.

====================  =====================================================  ==========================================
rule                  applies where                                          advice
====================  =====================================================  ==========================================
lost                  nothing is received of the job                         see whether it runs, and why it is unheard
failed                the job has failed                                     what its last crash and its launchers tell
over                  it has ended in another way                            nothing
quiet_host            nothing is received of a host for which others wait    see whether it is up
self_reported         a rank reported something and handles it               nothing
first_report          the ranks were restarted, and none has reported        wait; late: read their logs, restart
first_step            the ranks were restarted, and one has reported         wait
stopping              the job is being stopped                               wait
launchers_restart     the launchers restart the ranks by themselves          wait; late: read the launcher's log
restart_ordered       Rankwatch has ordered a restart                        wait
held                  samples show why no restart should follow by itself    remove the cause, then restart
capturing             stacks are being captured, and nothing else follows    wait
no_launcher           no launcher of Rankwatch runs the job                  restart it with its own tool
node_needed           a node is at fault, and too few would remain           start another launcher first
broken_node           a node is at fault                                     restart without it
capture_first         no stacks were captured                                capture them
restart               ranks are named                                        restart, without a host that repeats
no_culprit            no rank is named                                       read the stacks, then restart
busy                  a suspected rank is busy                               wait
suspected             the ranks may still make progress                      wait until Rankwatch acts
acts                  an action follows                                      wait
slow_ranks            too many ranks are slow for one to be at fault         look for what they share
slow_rank             a rank is slow                                         look at it; it stays so: restart without
slow_job              a stage, the work or a link is slow                    what its finding points to
====================  =====================================================  ==========================================

The rules from ``capturing`` to ``no_culprit`` are those of an incident about which Rankwatch does nothing.
A restart without the culprit's host is offered wherever a plain one is, if the policy permits it and launchers can
carry it out: after the plain one, and before it once incidents about that host repeat.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from rankwatch.contract.enums import RESTARTS, Action, JobState, Proof, VerdictKind
from rankwatch_monitor.core.incident.lifecycle import STOPS
from rankwatch_monitor.core.incident_record import Phase, Withheld
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views.advice import failed, lost, of_incident, slow
from rankwatch_monitor.core.views.advice.record import Advice
from rankwatch_monitor.core.views.advice.situation import Situation, situation
from rankwatch_monitor.core.views.host_activity import HostActivity
from rankwatch_monitor.core.views.verdict import job_state


class Rule(NamedTuple):
    """One row."""

    name: str
    applies: Callable[[Situation], bool]
    advise: Callable[[Situation], Advice | None]
    slow: bool = False
    """It is about slow ranks, or a slow job."""


def advice(situation: Situation) -> Advice | None:
    """What to do about a job, by the first rule that applies; None: nothing."""
    for rule in RULES:
        if rule.applies(situation):
            found = rule.advise(situation)
            return None if found is None else replace(found, rule=rule.name, slow=rule.slow)
    return None


def of_job(job: Job, now: float, activity: HostActivity | None = None) -> Advice | None:
    """What to do about a job at ``now`` (unix seconds); ``activity``: of all jobs, None: not known."""
    return advice(situation(job, job_state(job, now)[0], now, activity))


def _nothing(_: Situation) -> None:
    return None


def _open(applies: Callable[[Situation], bool]) -> Callable[[Situation], bool]:
    return lambda s: s.incident is not None and applies(s)


def _recorded(applies: Callable[[Situation], bool]) -> Callable[[Situation], bool]:
    """An incident about which nothing is done by itself, but for its stacks."""
    return _open(lambda s: s.current.action in (Action.LOG, Action.CAPTURE) and not s.current.elective and applies(s))


def _under_way(*phases: Phase) -> Callable[[Situation], bool]:
    return _open(lambda s: s.current.phase in phases and s.current.action in RESTARTS)


def _slow(applies: Callable[[Situation], bool]) -> Callable[[Situation], bool]:
    return lambda s: s.incident is None and applies(s)


RULES: Final = (
    Rule("lost", lambda s: s.state is JobState.LOST, lost.advise),
    Rule("failed", lambda s: s.job.ended is not None and s.state is JobState.FAILED, failed.advise),
    Rule("over", lambda s: s.job.ended is not None or s.state is JobState.FINISHED, _nothing),
    Rule("quiet_host", lambda s: s.quiet is not None, of_incident.quiet_host),
    Rule("self_reported", _open(lambda s: s.current.self_reported), _nothing),
    Rule("first_report", lambda s: s.report_due is not None, of_incident.first_report),
    Rule("first_step", _under_way(Phase.RECOVERING), of_incident.first_step),
    Rule(
        "stopping",
        _open(lambda s: s.current.phase in (Phase.ACTING, Phase.RECOVERING) and s.current.action in STOPS),
        of_incident.stopping,
    ),
    Rule(
        "launchers_restart",
        lambda s: _under_way(Phase.ACTING)(s) and not s.current.directive,
        of_incident.launchers_restart,
    ),
    Rule("restart_ordered", _under_way(Phase.ACTING), of_incident.restart_ordered),
    Rule("held", _open(lambda s: bool(s.current.held)), of_incident.held),
    Rule("capturing", _recorded(lambda s: s.current.phase is Phase.CAPTURING), of_incident.capturing),
    Rule("no_launcher", _recorded(lambda s: s.current.withheld is Withheld.NO_LAUNCHER), of_incident.no_launcher),
    Rule("node_needed", _recorded(lambda s: of_incident.needed(s) is not None), of_incident.node_needed),
    Rule("broken_node", _recorded(lambda s: bool(s.broken_hosts)), of_incident.broken_node),
    Rule(
        "capture_first",
        _recorded(lambda s: s.current.action is Action.LOG and not s.current.stacks),
        of_incident.capture_first,
    ),
    Rule("restart", _recorded(lambda s: bool(s.current.culprits)), of_incident.restart),
    Rule("no_culprit", _recorded(lambda _: True), of_incident.no_culprit),
    Rule("busy", _open(lambda s: s.current.proof == Proof.BUSY and not s.current.confirmed), of_incident.busy),
    Rule("suspected", _open(lambda s: not s.current.confirmed), of_incident.suspected),
    Rule("acts", _open(lambda s: s.current.kind is not VerdictKind.STRAGGLER), of_incident.acts),
    Rule("slow_ranks", _slow(slow.too_many), slow.ranks, slow=True),
    Rule("slow_rank", _slow(lambda s: bool(s.job.performance.open_stragglers)), slow.rank, slow=True),
    Rule("slow_job", _slow(slow.elsewhere), slow.job, slow=True),
)
