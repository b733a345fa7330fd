"""An incident as API, stream and publishers show it: the record, and what is derived from it and from all jobs.

A restart without the culprit's host is offered wherever a plain one is, if the policy permits it and launchers can
carry it out. It comes after the plain restart, and before it once incidents about that host repeat. Where too few nodes
would remain, what is to be done first stands in its place.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from rankwatch.cli.formatting import uncapital
from rankwatch.contract.enums import Action, CulpritClass
from rankwatch_monitor.core.hang.verdict import Culprit
from rankwatch_monitor.core.incident import exclusion
from rankwatch_monitor.core.incident_record import Incident, Phase
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.ranks import STOPPED, UNINTERRUPTIBLE
from rankwatch_monitor.core.views import downtime, headline, host_commands, rank_logs
from rankwatch_monitor.core.views.awaited import none_reported
from rankwatch_monitor.core.views.crash_advice import crash_of, next_failure, separating
from rankwatch_monitor.core.views.headline import NextAction
from rankwatch_monitor.core.views.host_activity import HostActivity, history_of
from rankwatch_monitor.core.views.host_history import HostHistory
from rankwatch_monitor.core.views.incident_label import label
from rankwatch_monitor.core.views.node_gpus import common_function, fault_words
from rankwatch_monitor.core.views.quiet_host import QuietHost, quiet_host
from rankwatch_monitor.core.views.slow_action import can_exclude, left_without

_HANGS: Final = (CulpritClass.BEHIND, CulpritClass.GIL_HELD, CulpritClass.STOPPED)
"""What may be the fault of the rank's program as well as of its host."""
_WITH_STACK: Final = (*_HANGS, CulpritClass.DEVICE_OR_NETWORK)
"""Of a process that is there, so that its stack can be taken."""


class OfHost(NamedTuple):
    """What incidents of all jobs show of the host of an incident's first culprit, or of one that is quiet."""

    host: str
    text: str
    """``host-1 was named in 3 incidents of 2 jobs in 24 h, this one included.``; empty: not repeatedly."""
    look: str
    """What to look at on the host, as on its page; empty: nothing points to the GPU of this incident."""
    again: str
    """What to do if it happens again, or what the proposed restart shows; empty: nothing."""
    command: str = ""
    """For the look, to be run on the host; empty: none."""
    meanwhile: str = ""
    """The look as a clause, while nothing else is to be done; empty: it has no command, or is about one job."""
    suspect: str = ""
    """Of an incident that is over: ``host-0 is suspect: check GPU 5 of host-0 for errors.``, or the faults of another
    GPU of the host; empty: it is not."""

    def to_json(self) -> dict[str, Any]:
        """For the API."""
        return self._asdict()


def shown(job: Job, incident: Incident, now: float, activity: HostActivity | None = None) -> dict[str, Any]:
    """The incident with what is derived from it.

    Args:
        job: its job.
        incident: one of its incidents.
        now: unix seconds.
        activity: of all jobs; None: not known, and only this job's incidents count.
    """
    advised, host = advice(job, incident, now, activity)
    return {
        **incident.to_json(),
        "lost_steps_s": downtime.of_lost_steps(job, incident),
        "label": label(incident),
        "headline": headline.headline(incident),
        "title": headline.title(incident),
        "detail": headline.detail(incident),
        "next_action": advised.to_json(),
        "of_host": None if host is None else host.to_json(),
    }


def advice(
    job: Job, incident: Incident, now: float, activity: HostActivity | None = None
) -> tuple[NextAction, OfHost | None]:
    """What a person should do about an incident, and why its host may be the cause; arguments as of :func:`shown`.

    The host of an incident that is over is left out: see :func:`of_host`.
    """
    first = _first(incident)
    proposed = headline.next_action(incident, obstacle=_obstacle(job, incident))
    if not incident.open:
        return proposed, None
    if (waited := none_reported(job, incident)) is not None and (due := waited.until) is not None:
        its = f"attempt {job.attempt}" if job.attempt > incident.attempt else "the ranks"
        otherwise = f"read the logs of {its} and restart again if no rank has reported"
        text = f"Wait: {waited.text}."
        proposed = proposed._replace(text=text, until=due, otherwise=otherwise, waits=not _overdue(due, now))
    if first is None:
        quiet = quiet_host(job, now, activity) if incident is job.open_incident else None
        return (proposed, None) if quiet is None else _about_quiet(job, incident, quiet, proposed, now, activity)
    history = history_of(job, first.host, now, activity)
    by_launchers = _by_launchers(incident, proposed)
    if by_launchers:
        proposed = _with_launcher_log(job, first, proposed)._replace(waits=not _overdue(proposed.until, now))
    if leaves_out := _can_leave_out(job, incident, first):
        if _restarts_plainly(proposed):
            proposed = _leaving_out(incident, proposed, history)
        elif leaves_out := history.repeats and by_launchers:
            proposed = _instead_of_launchers(incident, proposed, history)
    proposed = _with_stack(job, incident, first, proposed)
    look, command, clause = "", "", ""
    if history.finding is not None and history.concerns(incident):
        look, command = history.finding.text, "; ".join(history.finding.of_host)
        clause = history.finding.clause if command else ""
    again = _again(job, incident, first, history, leaves_out=leaves_out)
    if by_launchers and proposed.action is Action.RESTART_EXCLUDING_NODE:
        again = f"{headline.restart_without(first.host)}: {_shows(job, incident, first)}."
    return proposed, OfHost(first.host, history.beside(incident), look, again, command, clause)


def _overdue(due: float | None, now: float) -> bool:
    return due is not None and now > due


def _about_quiet(
    job: Job, incident: Incident, quiet: QuietHost, proposed: NextAction, now: float, activity: HostActivity | None
) -> tuple[NextAction, OfHost | None]:
    """The same where no rank is a culprit, and nothing is received from a host."""
    host = quiet.hosts[0]
    history = history_of(job, host, now, activity)
    if quiet.other_jobs and quiet.excludable and len(quiet.hosts) == 1 and _restarts_plainly(proposed):
        proposed = _leaving_out(incident, proposed, history)._replace(ranks=quiet.ranks)
    return proposed, OfHost(host, history.beside(incident), "", "")


def of_host(job: Job, incident: Incident, now: float, activity: HostActivity | None = None) -> OfHost | None:
    """The same for any incident; of one that is over without advice. None: no host is named."""
    if incident.open:
        return advice(job, incident, now, activity)[1]
    first = _first(incident)
    if first is None:
        return None
    history = history_of(job, first.host, now, activity)
    return OfHost(first.host, history.beside(incident), "", "", suspect=_suspect(incident, first, history))


def _suspect(incident: Incident, first: Culprit, history: HostHistory) -> str:
    """What to look at on the host of an incident that is over; the faults of another GPU stand apart from it."""
    gpu, finding = history.gpu, history.finding
    if gpu is None or finding is None:
        return ""
    look = finding.clause
    if history.concerns(incident):
        return f"{first.host} is suspect{f': {look}' if look else ''}."
    this = fault_words(first.kind)[0]
    if look:  # the faults are counted beside it
        return f"Apart from this {this}, {look}."
    which = f"{gpu.of_ranks} on {first.host}" if gpu.hangs else f"{gpu.name} of {first.host}"
    return f"Apart from this {this}, {which}: {gpu.history(other=incident.job_id not in gpu.jobs)}."


def _first(incident: Incident) -> Culprit | None:
    return next((culprit for culprit in incident.culprits if culprit.host), None)


def _with_stack(job: Job, incident: Incident, first: Culprit, proposed: NextAction) -> NextAction:
    """The proposal with the command that shows where the first culprit hangs, where no stack of it was captured."""
    rank, columns = first.rank, job.columns
    here = incident.attempt == job.attempt and rank < len(columns) and columns.hosts[rank] == first.host
    pid = int(columns.pid_R[rank]) if here else 0
    taken = any(rank in group.ranks and group.frames for group in incident.stacks.groups())
    missed = incident.phase is not Phase.CAPTURING and not taken
    if pid <= 0 or not missed or proposed.waits or proposed.command or first.kind not in _WITH_STACK:
        return proposed
    if proposed.action is Action.CAPTURE:
        return proposed
    stuck = columns.process_R[rank] in (STOPPED, UNINTERRUPTIBLE)
    command = host_commands.stack_of_stuck(pid) if stuck else host_commands.stack(pid)
    text = f"{proposed.text} No stack of rank {rank} was captured: take it on {first.host} first."
    return proposed._replace(text=text, command=command, host=first.host)


def _can_leave_out(job: Job, incident: Incident, first: Culprit) -> bool:
    """Whether the culprits are on one host, and the job can be restarted without it."""
    return {culprit.host for culprit in incident.culprits} == {first.host} and can_exclude(job, first.rank)


def _obstacle(job: Job, incident: Incident) -> str:
    """What to do before a restart without the nodes that are at fault, where too few would remain; empty: nothing."""
    hosts = headline.broken_hosts(incident) if incident.open else []
    which = hosts[0] if len(hosts) == 1 else f"these {len(hosts)} nodes"
    return exclusion.remaining(job, *hosts).obstacle(which) if hosts else ""


def _restarts_plainly(proposed: NextAction) -> bool:
    """Whether a restart may be ordered now, and none without a host is proposed."""
    orders = (proposed.action, *proposed.also)
    return Action.RESTART in orders and Action.RESTART_EXCLUDING_NODE not in orders and not proposed.condition


def _leaving_out(incident: Incident, proposed: NextAction, history: HostHistory) -> NextAction:
    """The proposal with the restart without a host."""
    leave, restart = Action.RESTART_EXCLUDING_NODE, Action.RESTART
    both = (leave, restart) if history.repeats else (restart, leave)
    if history.repeats:
        proposed = proposed._replace(text=headline.next_action(incident, without=history.host).text)
    if proposed.action is restart:
        return proposed._replace(action=both[0], also=(both[1], *proposed.also))
    at = proposed.also.index(restart)
    return proposed._replace(also=(*proposed.also[:at], *both, *proposed.also[at + 1 :]))


def _by_launchers(incident: Incident, proposed: NextAction) -> bool:
    """Whether launchers are restarting a rank that crashed, on the hosts that they have."""
    dead = all(culprit.kind is CulpritClass.DEAD for culprit in incident.culprits)
    return dead and incident.phase is Phase.ACTING and not incident.directive and proposed.until is not None


def _with_launcher_log(job: Job, first: Culprit, proposed: NextAction) -> NextAction:
    """The proposal to wait, with what shows the log that is read if nothing comes."""
    place = rank_logs.of_launcher(job, first.host)
    if not place.command:
        return proposed
    where = f" ({place.note})" if place.note else ""
    otherwise = f"read the log of the launcher on {first.host}{where} if no new attempt begins"
    return proposed._replace(otherwise=otherwise, command=place.command, host=place.host)


def _instead_of_launchers(incident: Incident, proposed: NextAction, history: HostHistory) -> NextAction:
    """The proposal with the restart without a host; of crashes in several jobs it is proposed once nothing came."""
    leave = Action.RESTART_EXCLUDING_NODE
    if history.jobs < 2 or proposed.waits:
        return proposed._replace(also=(leave,))
    return proposed._replace(action=leave, ranks=tuple(culprit.rank for culprit in incident.culprits))


def _again(job: Job, incident: Incident, first: Culprit, history: HostHistory, *, leaves_out: bool) -> str:
    """What to do if it happens again, or what a restart without the host shows, as a sentence; empty: nothing."""
    elsewhere = any(host not in ("", first.host) for host in job.columns.hosts)  # of many hosts the first one answers
    if first.kind is CulpritClass.DEAD and not (leaves_out and history.repeats):
        shows = _shows(job, incident, first) if elsewhere else ""
        blocked = _blocked(job, incident, first) if history.repeats else ""
        return " ".join(filter(None, (next_failure(crash_of(first, incident, job.incidents), shows), blocked)))
    if first.kind not in (*_HANGS, CulpritClass.DEAD):
        return ""
    if blocked := _blocked(job, incident, first):
        return blocked if history.repeats else f"If it hangs again, {uncapital(blocked)}"
    if not leaves_out:
        return ""
    shows = _shows(job, incident, first)
    if history.repeats:
        return f"After a restart without {first.host}: {shows}."
    return f"If it hangs again, restart without {first.host}: {shows}."


def _blocked(job: Job, incident: Incident, first: Culprit) -> str:
    """What to do before a restart without the one host of all culprits, where too few nodes would remain."""
    if {culprit.host for culprit in incident.culprits} != {first.host}:
        return ""
    left = left_without(job, first.rank)
    return "" if left is None else left.obstacle(first.host)


def _shows(job: Job, incident: Incident, first: Culprit) -> str:
    """What a restart without the host shows, as a clause; the rank runs again only where a spare takes its place."""
    crashed = first.kind is CulpritClass.DEAD
    left = exclusion.remaining(job, first.host)
    if left.nodes + left.spares >= left.of:
        return separating(first.rank, first.host, "fails" if crashed else "hangs")
    function = common_function([(incident, first)])
    same = "the same error" if crashed else f"a hang{f' in {function}' if function else ''}"
    return f"{same} on any rank left points to data or code"
