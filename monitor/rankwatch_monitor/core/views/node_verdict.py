"""What the incidents and ranks of all jobs state about one host, and what a person should do about it.

A host is *named* by confirmed incidents of which it is a culprit, as everywhere (:mod:`.host_history`). Suspicions, and
incidents while it is quiet, are about it and counted beside.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from rankwatch.cli.formatting import count
from rankwatch.contract.enums import JobState, RankState
from rankwatch_monitor.core import liveness
from rankwatch_monitor.core.hang.verdict import Culprit
from rankwatch_monitor.core.incident import exclusion
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.plain import copied
from rankwatch_monitor.core.views import ended, host_commands, responses
from rankwatch_monitor.core.views.advice import playbook
from rankwatch_monitor.core.views.advice.record import Advice
from rankwatch_monitor.core.views.gpu_faults import pointer
from rankwatch_monitor.core.views.host_activity import HostActivity
from rankwatch_monitor.core.views.host_history import CULPRIT, SUSPECT, WINDOW, About, HostHistory, in_jobs
from rankwatch_monitor.core.views.node_gpus import Gpu, standing_out
from rankwatch_monitor.core.views.responses import HostTodo

OFTEN: Final = 2
"""Jobs in which a host is named, from which on it is suspicious."""
PROCESSES: Final = 8
"""Processes that a command names."""
_REPORTS: Final = frozenset(map(str, set(RankState) - {RankState.SILENT, RankState.UNSEEN, RankState.DEAD}))


class Presence(NamedTuple):
    """In how many of the jobs that are not over, and have ranks on a host, something is heard of it."""

    jobs: int
    reporting: int
    """A rank reports there."""
    silent: tuple[str, ...]
    """Titles of jobs of which nothing is heard there while it is heard elsewhere."""
    restarting: tuple[str, ...]
    """Titles of jobs whose ranks there are being restarted, and do not report yet."""
    lost: int
    """Jobs of which nothing is heard anywhere."""
    launchers: bool
    """Whether a launcher reports."""

    @property
    def up(self) -> bool:
        """Whether ranks report."""
        return self.reporting > 0 or self.launchers

    @property
    def sentence(self) -> str:
        """Whether the host is up; empty: no job runs there."""
        if not self.jobs:
            return ""
        silent = f"it is silent in {_few(self.silent)}" if self.silent else ""
        verb = "is" if len(self.restarting) == 1 else "are"
        restarting = f"{_few(self.restarting)} {verb} being restarted" if self.restarting else ""
        lost = f"{self.lost} {'job is' if self.lost == 1 else 'jobs are'} lost, on all nodes" if self.lost else ""
        if self.reporting:
            count = "its job" if self.jobs == 1 else f"{self.reporting} of {self.jobs} jobs"
            lead = f"Ranks report in {count}"
        else:
            lead = f"No rank reports in {'its job' if self.jobs == 1 else f'any of {self.jobs} jobs'}"
            lead += ", a launcher does, so the node is up" if self.up else ""
        return f"{'; '.join(filter(None, (lead, silent, restarting, lost)))}."


def naming(about: Iterable[About]) -> list[Incident]:
    """Those of :func:`.host_history.about_by_host` that name the host."""
    return [incident for incident, named_as in about if named_as == CULPRIT]


def suspected(about: Iterable[About], host: str) -> list[tuple[Incident, Culprit]]:
    """The suspects on a host, of those of :func:`.host_history.about_by_host`."""
    return [
        (incident, culprit)
        for incident, named_as in about
        if named_as == SUSPECT
        for culprit in incident.culprits
        if culprit.host == host
    ]


def presence(parts: Sequence[responses.NodeJob]) -> Presence:
    """Whether the host is heard; ``parts``: what each job runs there, as in the view of a node."""
    running = [part for part in parts if not part["over"] and part["total_ranks"]]
    lost = [part for part in running if part["verdict"]["state"] == JobState.LOST]
    silent = [part for part in running if part not in lost and _silent(part)]
    reporting = [part for part in running if any(row["state"] in _REPORTS for row in part["ranks"])]
    reporting = [part for part in reporting if part not in lost]
    others = [part for part in running if part not in (*reporting, *silent)]
    restarting = [part for part in others if part["verdict"]["state"] == JobState.RESTARTING]
    launchers = any(
        not (each["silent"] or each["lost"] or each["ended"])
        for part in running
        if part not in lost
        for each in part["launchers"]
    )
    titles = tuple(map(_title, silent)), tuple(map(_title, restarting))
    return Presence(len(running), len(reporting), *titles, len(lost), launchers)


def verdict(
    host: str,
    parts: Sequence[responses.NodeJob],
    about: Sequence[About],
    gpus: Sequence[Gpu],
    history: HostHistory,
) -> str:
    """What points to the host, or to one GPU of it, in a sentence.

    Args:
        parts: what each job runs there, as in the view of a node.
        about: the incidents about it, of :func:`.host_history.about_by_host`.
        gpus: its GPUs, of :func:`.node_gpus.gpus_of`.
        history: how often it was named lately.
    """
    named = naming(about)
    heard = presence(parts)
    if _may_be_down(heard):
        silent = len(heard.silent) + heard.lost
        return f"{host} is silent in {count(silent, 'job')}, and nothing reports from it: it may be down."
    if (gpu := standing_out(gpus)) is not None:
        cause = pointer(host, gpu, suspected(about, host)).verdict
        return f"{cause} {host} is silent in {_few(heard.silent)}." if heard.silent and not history.silent else cause
    jobs, slow = {incident.job_id for incident in named}, [part for part in parts if _slow(part)]
    past = f"was named in {count(len(named), 'incident')}, none in the last 24 h" if named else ""
    found = list(filter(None, [history.clause or past]))
    if heard.silent:
        found.append(f"is silent in {len(heard.silent)} of {count(len(parts), 'job')}")
    if slow:
        found.append(f"has a slow rank in {_title(slow[0]) if len(slow) == 1 else count(len(slow), 'job')}")
    if not found:
        return "Nothing points to a fault of this node."
    if not history.compared and not heard.silent:
        return f"Nothing points to a fault of this node: it {' and '.join(found)}, and no job runs on another one."
    if len(jobs.union(part["job"] for part in slow)) == 1 and not heard.silent and not history.repeats:
        return f"{host} {' and '.join(found)}: one job alone is no sign of a fault of the node."
    several = len(jobs) >= OFTEN and sum(bool(gpu.weight) for gpu in gpus) >= OFTEN
    return f"{host} {' and '.join(found)}{'; no single GPU stands out' if several else ''}."


def todo(
    jobs: Sequence[Job],
    host: str,
    parts: Sequence[responses.NodeJob],
    about: Sequence[About],
    gpus: Sequence[Gpu],
    history: HostHistory,
) -> HostTodo | None:
    """What to do about the host; None: nothing points to it. The arguments are those of :func:`verdict`."""
    heard = presence(parts)
    if _may_be_down(heard):
        drain = _drain(jobs, host, "not heard")
        return HostTodo("See whether the node answers.", anywhere=(host_commands.reach(host),), drain=drain)
    if (gpu := standing_out(gpus)) is not None:
        found = pointer(host, gpu, suspected(about, host))
        return HostTodo(found.text, found.commands, drain=_drain(jobs, host, gpu.finding), process=found.process)
    if heard.silent:
        text = f"The node is up: see whether the processes of {_few(heard.silent)} still run there."
        quiet = [part for part in parts if _silent(part) and part["verdict"]["state"] != JobState.LOST]
        pids = sorted(row["pid"] for part in quiet for row in part["ranks"] if row["pid"])
        of = f"ranks of {quiet[0]['job']}" if pids and len(quiet) == 1 else ""
        drain = _drain(jobs, host, f"silent in {_few(heard.silent)}")
        here = (host_commands.processes(pids[:PROCESSES]),) if pids else ()
        return HostTodo(text, here, drain=drain, process=of)
    if history.compared and _named_often(about):
        text = f"Check {host} before a job runs there again: its GPUs, its memory, its network."
        drain = _drain(jobs, host, in_jobs(naming(about)))
        return HostTodo(text, (host_commands.xid(), host_commands.gpu()), drain=drain)
    return None


def state(
    parts: Sequence[responses.NodeJob], about: Sequence[About], gpus: Sequence[Gpu], history: HostHistory
) -> responses.HostState:
    """The state of the host in a word or two; the arguments are those of :func:`verdict`."""
    heard = presence(parts)
    if _may_be_down(heard):
        return "may be down"
    if standing_out(gpus) is not None or (history.compared and _named_often(about)):
        return "suspect"
    if heard.silent:
        return "partly silent"
    return "up" if heard.up else "idle"


def of_jobs(
    jobs: Iterable[Job], host: str, about: Sequence[About], now: float, activity: HostActivity | None = None
) -> list[responses.NodeAdvice]:
    """The advice about each job with an open incident about the host or a slow rank there, or that failed by it.

    Args:
        jobs: all that the reader may see.
        about: the incidents about it.
        activity: of all jobs; None: not known.
    """
    open_in = {incident.job_id for incident, _ in about if incident.open}
    return [
        {"job": job.id, "name": job.name, "advice": found.to_json(), "remaining": _remaining(job, host, found)}
        for job in jobs
        if _concerns(job, host, open_in, now) and (found := playbook.of_job(job, now, activity)) is not None
    ]


def _concerns(job: Job, host: str, open_in: Collection[str], now: float) -> bool:
    """Whether what is advised about a job is about the host."""
    if (ending := job.ended) is not None:
        lately = ending.state is JobState.FAILED and now - ending.at <= WINDOW
        return lately and any(culprit.host == host for culprit in ended.crashed(job, ending))
    if liveness.all_shut_down(job):
        return False
    return job.id in open_in or any(each.host == host for each in job.performance.open_stragglers)


def _remaining(job: Job, host: str, found: Advice) -> responses.Remaining | None:
    """What the job has left without the host; None: no such restart may be ordered now."""
    leaves_out = any(order.hosts == (host,) for order in found.orders)
    return copied(responses.Remaining, exclusion.remaining(job, host)) if leaves_out else None


def _drain(jobs: Iterable[Job], host: str, reason: str) -> tuple[str, ...]:
    """The command that keeps further jobs from a host, by what its launchers know of their scheduler; empty: none."""
    launchers = (node.registration for job in jobs for node in job.nodes.values())
    commands = (host_commands.drain(each.facts, reason) for each in launchers if each.host == host)
    return tuple(filter(None, commands))[:1]


def _silent(part: responses.NodeJob) -> bool:
    """Whether nothing is received of what a job that is not over runs there."""
    if part["over"]:
        return False
    ranks = bool(part["ranks"]) and all(row["state"] == RankState.SILENT for row in part["ranks"])
    return ranks or any(each["silent"] for each in part["launchers"])


def _named_often(about: Iterable[About]) -> bool:
    return len({incident.job_id for incident in naming(about)}) >= OFTEN


def _slow(part: responses.NodeJob) -> bool:
    return not part["over"] and any(row["straggler"] is not None for row in part["ranks"])


def _may_be_down(heard: Presence) -> bool:
    return not heard.up and bool(heard.silent or heard.lost)


def _title(part: responses.NodeJob) -> str:
    job, name = part["job"], part["verdict"]["name"]
    return name if name == job else f"{name} ({job})"


def _few(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else count(len(names), "job")
