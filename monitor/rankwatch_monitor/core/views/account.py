"""How a job trains, or has trained, in a few clauses: what "healthy" rests on, and the account of a run that finished.

Nothing is stated that is not known, and nothing of a job in trouble, which has its own words. Derived when read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankwatch.cli.formatting import count, duration, gpu_time, percent
from rankwatch.contract.enums import JobState
from rankwatch.contract.semconv import STEP_SECTION
from rankwatch_monitor.core.hang import limits
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.regression.comparison import Evidence
from rankwatch_monitor.core.straggler.describe import seconds
from rankwatch_monitor.core.views import downtime, goodput_note, job_verdict, rank_logs, rankings, responses
from rankwatch_monitor.core.views.verdict import goodput, job_state, step
from rankwatch_monitor.core.words.step_times import clock_time, than


def clauses(job: Job, now: float) -> list[responses.Clause]:
    """The clauses, at ``now`` (unix seconds); empty: the job is in trouble, has not begun, or did not finish."""
    warnings = list(_unsaved(job)) if job_state(job, now)[0] is JobState.FINISHED else []
    shown = [(text, False) for text in _stated(job, now)] + [(text, True) for text in warnings]
    return [{"text": text, "warns": warns} for text, warns in shown]  # fmt: skip


def _stated(job: Job, now: float) -> Sequence[str]:
    state, _ = job_state(job, now)
    if state is JobState.FINISHED:
        return list(_finished(job, now))
    healthy = job_verdict.finding(job, now).verdict in job_verdict.NO_TROUBLE
    if state is not JobState.RUNNING or job.open_incident is not None or not healthy:
        return []
    return [*_steps(job, now), *_slowest(job), *_devices(job), *_limit(job)]


def _steps(job: Job, now: float) -> Iterator[str]:
    history = job.performance.history
    latest = history.latest
    if latest is None or latest.attempt != job.attempt:
        if job.steps_per_second:
            yield f"a step takes {seconds(1 / job.steps_per_second)}"
        return
    taken = f"a step takes {seconds(latest.step)}"
    found, since = history.compared([each.since for each in job.performance.stragglers])
    if found is None or found.evidence is Evidence.UNSEEN:
        yield taken
    elif found.evidence is Evidence.SAME:
        yield f"{taken}, as usual"
    else:
        yield f"{taken}, {than(found.factor, f'before {clock_time(since, now)}')} ({seconds(found.before)})"


def _slowest(job: Job) -> Iterator[str]:
    if waits := rankings.longest_wait(job):
        yield waits


def _devices(job: Job) -> Iterator[str]:
    readings = list(job.performance.readings.values())
    used = [each.memory_used / each.memory_total for each in readings if each.memory_used and each.memory_total]
    if used:
        yield f"at most {percent(max(used))} of a GPU's memory is used"
    if any(each.clock is not None for each in readings):
        throttled = sum(bool(each.slowed_by) for each in readings)
        yield f"{count(throttled, 'GPU')} throttled" if throttled else "no GPU is throttled"


def _limit(job: Job) -> Iterator[str]:
    """After what time a rank that stops in a step is found, if it does not pass the limit of a section there before."""
    if not job.policy.detection:
        return
    for row in limits.table(job.policy, job.durations):
        if row["section"] == STEP_SECTION and row["in_force"] is not None:
            limit = row["in_force"]
            shown = f"{limit:g} s" if limit < 100 else duration(limit)
            yield f"a rank that stops in a step passes a limit after {shown} at the latest"


def _unsaved(job: Job) -> Iterator[str]:
    """Which steps no known save may hold, since when, and where a later save may stand."""
    steps, checkpoint, last = goodput_note.unsaved(job), job.ledger.checkpoint, job.ledger.reached
    if not steps or checkpoint is None:
        return
    which = f"up to {steps} steps ({last - steps + 1}–{last}) have" if steps > 1 else f"step {last} has"
    logged = ", or what rank 0 logged" if _first_log(job).command else ""
    yield f"{which} no known save: check where the script saves{logged}"


def unsaved_log(job: Job, now: float) -> responses.Place | None:
    """The log in which a save of the last steps of a finished job may stand; None: none is needed, or known."""
    needed = job_state(job, now)[0] is JobState.FINISHED and any(_unsaved(job))
    log = _first_log(job)
    return log if needed and log.command else None


def _first_log(job: Job) -> responses.Place:
    return rank_logs.place_of_rank(job, 0, job.columns.hosts[0] if len(job.columns) else "")


def _finished(job: Job, now: float) -> Iterator[str]:
    ended_at = job.ended.at if job.ended else job.last_heard  # without a launcher its ranks just shut down
    lived = max(0.0, ended_at - job.created_at)
    last = step(job)
    steps = "" if last is None else f"{count(last, 'step')} in "
    yield f"{steps}{duration(lived)} on {count(job.world_size, 'rank')} ({gpu_time(lived * job.world_size)})"
    if (useful := goodput(job)) is not None:
        yield f"{percent(useful)} of the time went into steps that were kept"
    faults = [each for each in job.incidents if each.confirmed and not each.elective]
    restarts = count(job.restarts, "restart") if job.restarts else "no restart"
    if not faults:
        yield f"no incident, {restarts}"
        return
    cost = duration(downtime.of_job(job, 0.0, now))
    yield f"{count(len(faults), 'incident')} survived at a cost of {cost}, {restarts}"
