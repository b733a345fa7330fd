"""What happened over all jobs since a moment, in sentences: the digest of last night.

Only what the jobs still hold is in it; what that leaves out is stated in ``notes``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rankwatch.cli.formatting import gpu_time
from rankwatch.contract.enums import RESTARTS, Cause, JobState, VerdictKind
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import KEPT_INCIDENTS, Job
from rankwatch_monitor.core.liveness import TERMINAL_STATES
from rankwatch_monitor.core.straggler.findings import Straggler
from rankwatch_monitor.core.straggler.state import KEPT_STRAGGLERS
from rankwatch_monitor.core.views import downtime, responses, verdict
from rankwatch_monitor.core.views.headline import headline
from rankwatch_monitor.core.views.host_history import CULPRIT, About, about_by_host, counted, in_jobs, latest, tally
from rankwatch_monitor.core.views.node_gpus import gpus_of, slow_by_host, standing_out
from rankwatch_monitor.core.views.responses import DigestLink as Link

LINKS: Final = 8
"""Links of one line; ``more`` counts the others."""
_HANG: Final = ("hang", "hangs")
_KINDS: Final[dict[VerdictKind, tuple[tuple[str, str], str]]] = {
    VerdictKind.NEVER_STARTED: (("failed start", "failed starts"), "a rank did not report in time"),
    VerdictKind.HEARTBEAT_OVERRUN: (_HANG, "a rank sent no heartbeat within the limit"),
    VerdictKind.SECTION_OVERRUN: (_HANG, "a section took longer than its limit"),
    VerdictKind.OUT_OF_SECTION_OVERRUN: (_HANG, "a rank was outside all sections for longer than the limit"),
    VerdictKind.SILENT: (("silent rank", "silent ranks"), "no report came within the limit"),
    VerdictKind.PROCESS_EXITED: (("crash", "crashes"), "the process of a rank ended"),
    VerdictKind.NODE_LOST: (("lost node", "lost nodes"), "its launcher and all its ranks stopped reporting"),
    VerdictKind.STALLED: (("stall", "stalls"), "the ranks were alive and completed no step"),
}
"""What an incident that is no order or report of a rank is called, one and several, and what happened."""
_SLOW_IN: Final = {
    Cause.DATA: "slow input",
    Cause.HOST: "slow host-side work",
    Cause.COMPUTE: "slow computation",
    Cause.COMMUNICATION: "slow communication",
    Cause.UNEXPLAINED: "slow, cause unknown",
}


def digest(jobs: Sequence[Job], since: float, now: float, started_at: float, *, stored: bool) -> responses.Digest:
    """The digest of ``since`` to ``now``, in unix seconds.

    Args:
        stored: the monitor has a store, from which it read earlier incidents.
    """
    opened = [each for job in jobs for each in job.incidents if each.opened_at >= since]
    faults = [each for each in opened if each.confirmed and not each.elective]
    suspicions = [each for each in opened if each.open and not each.confirmed]
    names = {job.id: job.name if job.name == job.id else f"{job.name} ({job.id})" for job in jobs}
    lines = [
        *_incidents(faults, names),
        *_others(opened, names),
        *_restarts(jobs, names, since),
        *_lost_time(jobs, names, since, now),
        *_at_stake(jobs, names, since, now),
        *_ended(jobs, names, since, now),
        *_nodes(jobs, since, now),
        *_stragglers(jobs, names, since),
    ]
    return {
        "since": since,
        "until": now,
        "summary": _summary(jobs, [*faults, *suspicions], since, now),
        "lines": lines,
        "notes": _notes(jobs, names, since, started_at, stored=stored),
    }


def _summary(jobs: Sequence[Job], counted: Sequence[Incident], since: float, now: float) -> str:
    """``counted``: faults, and suspicions that are open."""
    lost = _cost(jobs, since, now)
    restarts = sum(len(_restarted(job, since)) for job in jobs)
    waited = _waited(each for _, each in _slow_since(jobs, since))
    parts = [
        in_jobs(counted),
        _count(restarts, "restart") if restarts else "",
        f"{_gpus(lost)} lost" if lost else "",
        f"{gpu_time(waited)} of waiting for slow ranks" if waited >= 1 else "",
    ]
    return ", ".join(part for part in parts if part) or "No incident and no restart"


def _incidents(faults: Sequence[Incident], names: dict[str, str]) -> list[responses.DigestLine]:
    """One line a kind, the most frequent first."""
    kinds: dict[VerdictKind, list[Incident]] = {}
    for each in faults:
        kinds.setdefault(each.kind, []).append(each)
    lines = []
    for kind, found in sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0])):
        (one, many), what = _KINDS[kind]
        still = sum(incident.open for incident in found)
        now = f", {'not over yet' if len(found) == 1 else f'{still:,} not over yet'}" if still else ""
        text = f"{len(found):,} {one if len(found) == 1 else many}{now}: {what}."
        lines.append(_line("incidents", text, _links(found, names)))
    return lines


def _others(opened: Sequence[Incident], names: dict[str, str]) -> list[responses.DigestLine]:
    """Suspicions, orders, and what ranks reported of themselves."""
    suspicions = [each for each in opened if not each.confirmed]
    orders = [each for each in opened if each.confirmed and each.elective and not each.self_reported]
    reported = [each for each in opened if each.confirmed and each.self_reported]
    open_now = sum(each.open for each in suspicions)
    none = "not confirmed" if len(suspicions) == 1 else "none of which was confirmed"
    tail = f", {open_now:,} of which may still be confirmed" if open_now else f", {none}"
    lines = []
    if suspicions:
        lines.append(_line("suspicions", f"{_count(len(suspicions), 'suspicion')}{tail}.", _links(suspicions, names)))
    if orders:
        text = f"{_count(len(orders), 'action')} ordered by a person or taken on a slow rank."
        lines.append(_line("orders", text, _links(orders, names)))
    if reported:
        text = f"{_count(len(reported), 'problem')} that ranks reported themselves."
        lines.append(_line("reports", text, _links(reported, names)))
    return lines


def _restarts(jobs: Sequence[Job], names: dict[str, str], since: float) -> list[responses.DigestLine]:
    found = [(job, each) for job in jobs if (each := _restarted(job, since))]
    if not found:
        return []
    total = sum(len(each) for _, each in found)
    steps = sum(incident.steps_lost or 0 for _, each in found for incident in each)
    redone = f" {_count(steps, 'step')} had to be repeated." if steps else ""
    text = f"{_count(total, 'restart')} in {_count(len(found), 'job')}.{redone}"
    return [_line("restarts", text, [Link(f"{names[job.id]}: {len(each):,}", job.id) for job, each in found])]


def _lost_time(jobs: Sequence[Job], names: dict[str, str], since: float, now: float) -> list[responses.DigestLine]:
    found = _cost(jobs, since, now)
    if not found:
        return []
    text = f"Incidents cost jobs {_duration(_seconds(found))}: {_gpus(found)}."
    return [_line("time", text, _of_ranks(found, names))]


def _at_stake(jobs: Sequence[Job], names: dict[str, str], since: float, now: float) -> list[responses.DigestLine]:
    """What is no cost of incidents, and may become one: the time of open suspicions, and of jobs that are lost."""
    lines = []
    if suspected := _suspected(jobs, since, now):
        text = f"Open suspicions have taken {_duration(_seconds(suspected))} so far: {_gpus(suspected)}."
        lines.append(_line("at_stake", text, _of_ranks(suspected, names)))
    if unheard := _unheard(jobs, since, now):
        since_then = f"{_duration(_seconds(unheard))} since they were last heard"
        text = f"Lost jobs: {since_then}, {_gpus(unheard)} if they have stood still."
        lines.append(_line("at_stake", text, _of_ranks(unheard, names)))
    return lines


def _ended(jobs: Sequence[Job], names: dict[str, str], since: float, now: float) -> list[responses.DigestLine]:
    lines = []
    ends = [(job, *_end(job, now)) for job in jobs]
    for wanted in (JobState.FAILED, JobState.LOST, JobState.STOPPED, JobState.FINISHED):
        found = [
            (job, reason, at) for job, state, reason, at in ends if state is wanted and at is not None and at >= since
        ]
        if found:
            links = [
                Link(f"{names[job.id]}{f': {reason}' if reason else ''}", job.id, at=at) for job, reason, at in found
            ]
            lines.append(_line(str(wanted), f"{_count(len(found), 'job')} {_word(wanted)}.", links))
    return lines


def _nodes(jobs: Sequence[Job], since: float, now: float) -> list[responses.DigestLine]:
    named = {host: latest(about, since) for host, about in about_by_host(jobs, now).items()}
    again = sorted(((host, found) for host, found in named.items() if len(found) > 1), key=lambda item: -len(item[1]))
    if not again:
        return []
    slow = slow_by_host(jobs, since)
    verb = "was" if len(again) == 1 else "were"
    links = [Link(_node(host, found, slow.get(host, ())), host=host) for host, found in again]
    return [_line("nodes", f"{_count(len(again), 'node')} {verb} named by more than one incident.", links)]


def _node(host: str, about: Sequence[About], slow: Sequence[tuple[Job, Straggler]]) -> str:
    """``host-0: 6 incidents and 1 open suspicion; GPU 5, rank 5: 5 crashes in 2 jobs``."""
    gpu = standing_out(gpus_of(host, [incident for incident, named_as in about if named_as == CULPRIT], slow))
    if gpu is None:
        return f"{host}: {counted(host, about)}"
    return f"{host}: {tally(incident for incident, _ in about)}; {gpu.finding}"


def _stragglers(jobs: Sequence[Job], names: dict[str, str], since: float) -> list[responses.DigestLine]:
    found = _slow_since(jobs, since)
    if not found:
        return []
    found.sort(key=lambda pair: -pair[1].cost_gpu_hours)
    cost = gpu_time(_waited(each for _, each in found))
    still = sum(each.open for _, each in found)
    tail = f", {still:,} still slow" if still else ", none of which is still slow"
    text = f"{_count(len(found), 'straggler')} appeared{tail}; cost {cost}."
    return [
        _line(
            "stragglers",
            text,
            [Link(_straggler(names[job.id], each), job.id, at=each.since) for job, each in found],
        )
    ]


def _straggler(name: str, each: Straggler) -> str:
    where = f" on {each.host}" if each.host else ""
    return f"{name}: rank {each.rank}{where}, {_SLOW_IN[each.cause]}, cost {gpu_time(3600.0 * each.cost_gpu_hours)}"


def _notes(
    jobs: Sequence[Job], names: dict[str, str], since: float, started_at: float, *, stored: bool
) -> list[responses.DigestNote]:
    """What is not in it, each with the moment from which the record reaches."""
    notes: list[responses.DigestNote] = []
    if started_at > since:
        text = (
            "The monitor was started later; what happened while none ran is not known."
            if stored
            else "The monitor was started later and has no store; nothing before is known."
        )
        notes.append({"text": text, "at": started_at})
    for job in jobs:
        if len(job.incidents) >= KEPT_INCIDENTS and job.incidents[0].opened_at > since:
            text = f"Of job {names[job.id]} the last {KEPT_INCIDENTS} incidents are kept, which begin later."
            notes.append({"text": text, "at": job.incidents[0].opened_at})
        slow = job.performance.stragglers
        if len(slow) >= KEPT_STRAGGLERS and slow[0].since > since:
            text = f"Of job {names[job.id]} the last {KEPT_STRAGGLERS} stragglers are kept, which begin later."
            notes.append({"text": text, "at": slow[0].since})
    return notes


# Facts ----------------------------------------------------------------------------------------------------------------


Spent = list[tuple[Job, float]]
"""Jobs with seconds of them, the most expensive first."""


def _spent(found: Iterable[tuple[Job, float]]) -> Spent:
    return sorted((each for each in found if each[1] >= 1), key=lambda each: -each[1] * each[0].world_size)


def _cost(jobs: Iterable[Job], since: float, now: float) -> Spent:
    """What confirmed incidents have cost."""
    return _spent((job, downtime.of_job(job, since, now)) for job in jobs)


def _suspected(jobs: Iterable[Job], since: float, now: float) -> Spent:
    """What open suspicions have taken: they may still be confirmed, and then are a cost."""
    opened = ((job, job.open_incident) for job in jobs)
    return _spent(
        (job, downtime.seconds(job, each, now) - max(0.0, since - downtime.began(each)))
        for job, each in opened
        if each is not None and not each.confirmed
    )


def _unheard(jobs: Iterable[Job], since: float, now: float) -> Spent:
    """How long lost jobs were not heard, which they may have trained."""
    return _spent((job, now - max(since, job.last_heard)) for job in jobs if _end(job, now)[0] is JobState.LOST)


def _seconds(found: Spent) -> float:
    return sum(seconds for _, seconds in found)


def _gpus(found: Spent) -> str:
    return gpu_time(sum(seconds * job.world_size for job, seconds in found))


def _of_ranks(found: Spent, names: dict[str, str]) -> list[Link]:
    return [
        Link(f"{names[job.id]}: {_duration(seconds)} of {_count(job.world_size, 'rank')}", job.id)
        for job, seconds in found
    ]


def _restarted(job: Job, since: float) -> list[Incident]:
    """Incidents whose restart happened since then."""
    return [
        each
        for each in job.incidents
        if each.action in RESTARTS and each.timeline.restarted is not None and each.timeline.restarted >= since
    ]


def _slow_since(jobs: Iterable[Job], since: float) -> list[tuple[Job, Straggler]]:
    """Ranks that became slow since then."""
    return [(job, each) for job in jobs for each in job.performance.stragglers if each.since >= since]


def _waited(slow: Iterable[Straggler]) -> float:
    """GPU-seconds of waiting for slow ranks."""
    return 3600.0 * sum(each.cost_gpu_hours for each in slow)


def _end(job: Job, now: float) -> tuple[JobState, str, float | None]:
    """State, reason, and when the job ended or was last heard of; None: it has not ended."""
    state, reason = verdict.job_state(job, now)
    if state not in TERMINAL_STATES:
        return state, "", None
    if job.ended is not None:
        return state, reason, job.ended.at
    return state, "" if state is JobState.FINISHED else reason, job.last_heard


def _links(incidents: Sequence[Incident], names: dict[str, str]) -> list[Link]:
    newest = sorted(incidents, key=lambda each: -each.opened_at)
    return [Link(f"{names[each.job_id]}: {headline(each)}", each.job_id, each.id, at=each.opened_at) for each in newest]


def _line(kind: str, text: str, links: Sequence[Link]) -> responses.DigestLine:
    return {
        "kind": kind,
        "text": text,
        "links": list(links[:LINKS]),
        "more": max(0, len(links) - LINKS),
    }


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _word(state: JobState) -> str:
    return {JobState.LOST: "lost", JobState.STOPPED: "stopped by an order"}.get(state, str(state))


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
