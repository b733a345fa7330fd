"""What to do about a failed job: by its last crash, by crashes that came again, and by why no restart followed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from rankwatch.contract.enums import NoRestart
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views import ended, host_commands, rank_logs
from rankwatch_monitor.core.views.advice.record import Advice, Step
from rankwatch_monitor.core.views.advice.situation import Situation
from rankwatch_monitor.core.views.crash_advice import ErrorClass, Look, SameStep, crash_of, look, separating
from rankwatch_monitor.core.views.ended import Repeated
from rankwatch_monitor.core.views.host_activity import history_of

RUNBOOK: Final = "runbook.html#rankwatchjobfailed"
_NEXT: Final[Mapping[str, tuple[str, str]]] = {
    NoRestart.FAILED_AT_START: (
        "Correct what fails at the start (script, arguments, environment), then launch the job again",
        ": a restart would end in the same way",
    ),
    NoRestart.SCRIPT_BROKEN: ("Correct the script, then launch the job again", ": it fails while it is imported"),
    NoRestart.SCRIPT_MISSING: ("Correct the path of the script, then launch the job again", ""),
    NoRestart.RESULT_REJECTED: (
        "Decide whether the job goes on",
        ": a rank rejected a result. Test its device before you launch the job again",
    ),
    NoRestart.RESUME_ELSEWHERE: ("Launch the job again on another node", ": the result is to be checked there"),
    NoRestart.DETERMINISTIC: (
        "Mend what fails there, then launch the job again",
        ": each attempt ends at the same step",
    ),
    NoRestart.NO_PROGRESS: ("Find out why no further step completes, then launch the job again", ""),
    NoRestart.NO_OTHER_NODE: ("Launch the job again with another node", ": the excluded one had no replacement"),
}
_OTHERWISE: Final = ("Remove the cause, then launch the job again", "")
_CAUSE_IS_OPEN: Final = ("", NoRestart.USED_UP, NoRestart.NOT_ALLOWED)
"""Reasons for no further restart that leave open why the job failed."""


def advise(situation: Situation) -> Advice:
    """The steps of a job that has failed; the last is to launch it again, with the command if it is known."""
    *steps, last = _steps(situation)
    return Advice(steps=(*steps, _launching(last, situation.job)), runbook=RUNBOOK)


def _launching(step: Step, job: Job) -> Step:
    """A step with the command that launches a job again: of its first launcher, or what its scheduler keeps."""
    launchers = [node.registration for node in job.nodes.values()]
    first = next((each for each in launchers if each.launch), None)
    scheduled = next((each.facts for each in launchers if "scheduler" in each.facts), None)
    if scheduled is not None:
        command = host_commands.launched(scheduled)
        return step._replace(command=command, note="The command shows how it was submitted." if command else "")
    if first is None:
        return step
    hosts = {each.host for each in launchers}
    note = "" if len(hosts) == 1 else "The other nodes have lines of their own, which may differ."
    return step._replace(command=first.launch, host=first.host, note=note)


def _steps(situation: Situation) -> Iterator[Step]:
    job = situation.job
    assert job.ended is not None
    crashes, cause_is_open = ended.crashed(job, job.ended), job.ended.no_restart in _CAUSE_IS_OPEN
    found, again = _crash(job), ended.repeated(job)
    if again is not None and cause_is_open:
        yield from _of_repeated(situation, again, found)
        return
    if crashes:
        yield _read_log(job, crashes[0].rank, crashes[0].host)
        if cause_is_open:
            yield from _look(found)
    yield Step(*_NEXT.get(job.ended.no_restart, _OTHERWISE))


def _crash(job: Job) -> Look | None:
    """What the error of the crash with which a job ended points to; None: it did not end with one."""
    crashes = [] if job.ended is None else ended.crashed(job, job.ended)
    if not crashes:
        return None
    first = crashes[0]
    if first.local_rank < 0:
        first = first._replace(local_rank=int(job.columns.local_rank_R[first.rank]))
    return look(crash_of(first, job.incidents[-1], job.incidents))


def _of_repeated(situation: Situation, crash: Repeated, found: Look | None) -> Iterator[Step]:
    """How to find out whether the rank or its node is the cause of a crash that came again and again."""
    job = situation.job
    read = _read_log(job, crash.rank, crash.host, crash.step)
    if not crash.host:
        yield read
        yield from _look(found, crash.same_step)
        yield Step("Remove the cause, then launch the job again", ": another restart would end in the same way")
        return
    host_first = found is not None and found.host_first
    if not host_first:
        yield read
    yield from _check_gpu(situation, crash.host)
    if host_first:
        yield read
    else:
        yield from _look(found, crash.same_step, launches=True)
    elsewhere = f"without {crash.host}" if len(set(job.columns.hosts) - {""}) > 1 else "on another node"
    kernel = found is not None and found.points_to is ErrorClass.KERNEL
    yield Step(f"Launch again {elsewhere}", f": {separating(crash.rank, crash.host, kernel=kernel)}")


def _check_gpu(situation: Situation, host: str) -> Iterator[Step]:
    """The GPU of the last crash, where crashes of all jobs point to it first."""
    history = history_of(situation.job, host, situation.now, situation.activity)
    if history.finding is not None and history.finding.check and history.concerns(situation.job.incidents[-1]):
        yield Step(*history.finding.check, "; ".join(history.finding.commands), host)


def _look(found: Look | None, same: SameStep | None = None, *, launches: bool = False) -> Iterator[Step]:
    """What the error of the last crash points to, besides the log; ``same``: data or code first.

    ``launches``: a launch follows.
    """
    if found is None:
        return
    if same is not None and same.passed is None and found.points_to is not ErrorClass.KERNEL:
        yield Step(f"Look at the batch after step {same.step:,}", f": {same.text}, which points to data or code")
    if found.points_to is not ErrorClass.OTHER:
        brief = found.brief if launches else found.clause
        yield Step(brief, found.more, "; ".join(found.commands), found.host if found.commands else "")


def _read_log(job: Job, rank: int, host: str, step: int | None = None) -> Step:
    where = "" if step is None else f" around step {step}"
    place = rank_logs.place_of(job, rank, host)
    if not place.command:
        where += f", in the output of the launcher{f' on {host}' if host else ''}"
    return Step(f"Read what rank {rank} logged{where}", "", place.command, place.host, place.note, rank)
