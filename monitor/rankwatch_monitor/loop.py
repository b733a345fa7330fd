"""The loop: the only clock, the only place where the core is called.

How this works
--------------
Everything runs on one asyncio thread. What comes in (``take`` for telemetry, ``submit`` for launchers and people) is
applied to its job at once; a tick ten times a second judges every job. What the core decides is first stored, then
delivered: a directive becomes visible to launchers once its row was committed (or refused: a full disk stops no order).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rankwatch.wire.control import Directive
from rankwatch.wire.policy import Policy
from rankwatch.wire.vocabulary import JobState
from rankwatch_monitor.core import goodput, picture, scoring, teaching
from rankwatch_monitor.core.decide import advance
from rankwatch_monitor.core.effects import Changed, Effect, Issue, Score, Slowed
from rankwatch_monitor.core.events import JobEvent, RankReport
from rankwatch_monitor.core.incident import Incident
from rankwatch_monitor.core.kernel_scores import scored
from rankwatch_monitor.core.state import Job
from rankwatch_monitor.ingest.limits import Counters, Limits
from rankwatch_monitor.ingest.routes import RefusedReport
from rankwatch_monitor.ingest.traces import SpanRecord
from rankwatch_monitor.publish.publisher import Publishing
from rankwatch_monitor.publish.scores_report import scores_log
from rankwatch_monitor.recording import Recorder
from rankwatch_monitor.store import codec, performances, schema
from rankwatch_monitor.store.repository import Repository
from rankwatch_monitor.timeline import Timelines
from rankwatch_monitor.trends import Trends

log = logging.getLogger("rankwatch")

TICK = 0.1
"""Seconds between two judgements. A verdict may come 0.5 s after its deadline; most of that is left to others."""
SAVE_INTERVAL = 5.0
"""Seconds between two saves of a job that runs quietly; what matters is saved at once."""
SAVE_PERFORMANCE_INTERVAL = 60.0
"""The same for its performance, which is larger; a straggler that was found is saved after the interval above."""
AT_ONCE = 200_000
"""Kernel medians that are scored on the loop's own thread, in a few milliseconds; more are scored on another one."""


class Clock:
    """Unix seconds that never go back: the wall clock at the start, then the monotonic one."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        """Unix seconds."""
        return time.monotonic() + self._offset


class UnknownJobError(LookupError):
    """There is no such job; a launcher that hears it registers again."""


class TooManyError(Exception):
    """A limit on how much the monitor holds was reached; the text says which."""


@dataclass(slots=True)
class _Seen:
    """What was last stored and said of a job, to notice a change."""

    state: JobState | None = None
    saved_at: float = 0.0
    judged: float | None = None
    """When the last window was judged that was stored."""
    performance_saved_at: float = 0.0
    slowed: bool = False
    """A straggler was found or has ended since then."""
    reported_at: float | None = None


class Monitor:
    """All jobs, and the loop that watches them."""

    def __init__(
        self,
        *,
        repository: Repository | None = None,
        limits: Limits | None = None,
        policy: Policy | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock or Clock()
        self.limits = limits or Limits()
        self.counters = Counters()
        self.policy = policy or Policy()
        self.repository = repository
        self.recorder: Recorder | None = None
        """Records what reaches the core, when somebody wants it."""
        self.publishing: Publishing | None = None
        """Tells others how jobs fare, when somebody wants it."""
        self.ending = False
        """Long polls and streams are to end."""
        self.jobs: dict[str, Job] = {}
        self.timelines = Timelines()
        self.trends = Trends()
        self.started_at = self.clock.now()
        self.last_tick = self.started_at
        self.tick_seconds = 0.0
        self.tick_errors = 0
        self.failing: set[str] = set()
        """Jobs whose last judgement failed."""
        self._seen: dict[str, _Seen] = {}
        self._delivered: dict[str, int] = {}
        self._news: dict[str, asyncio.Event] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        if repository is not None:
            for job in repository.load(self.started_at, self.limits.jobs):
                self.jobs[job.id] = job
                self._seen[job.id] = _Seen(picture.job_state(job, self.started_at)[0])
                self._delivered[job.id] = job.last_directive

    # In ---------------------------------------------------------------------------------------------------------------

    def take(self, reports: Sequence[RankReport]) -> list[RefusedReport]:
        """Take telemetry in; return what was turned away and why."""
        now = self.clock.now()
        refused: list[RefusedReport] = []
        for position, report in enumerate(reports):
            who = report.identity
            if max(who.rank + 1, who.world_size) > self.limits.ranks_per_job:
                words = f"rank {who.rank} is above the limit of {self.limits.ranks_per_job} ranks a job"
                refused.append(RefusedReport(position, "too_many_ranks", words))
                continue
            try:
                job = self.jobs.get(who.job_id) or self._new_job(who.job_id, now, who.job_name)
            except TooManyError as error:
                refused.append(RefusedReport(position, "too_many_jobs", str(error)))
                continue
            if report.open_sections and len(job.columns.sections) >= self.limits.sections_per_job:
                report = self._without_new_sections(job, report)
            self._apply(job, report, now)
        return refused

    def take_spans(self, records: Sequence[SpanRecord]) -> None:
        """Keep the newest sampled spans of known jobs."""
        self.timelines.take(records, self.jobs, self.limits.ranks_per_job)

    def submit(self, job_id: str, event: JobEvent) -> Job:
        """Take in what a launcher or a person says of a job, and judge the job at once.

        Raises:
            UnknownJobError: there is no such job.
        """
        job = self.job(job_id)
        now = self.clock.now()
        self._apply(job, event, now)
        self._judge(job, now)
        self._save(job, now)
        return job

    def _apply(self, job: Job, event: JobEvent, now: float) -> None:
        if self.recorder is not None:
            self.recorder.put(now, job, event)
        job.apply(event, now)

    def job(self, job_id: str) -> Job:
        """The job of this id.

        Raises:
            UnknownJobError: there is none.
        """
        try:
            return self.jobs[job_id]
        except KeyError:
            raise UnknownJobError(job_id) from None

    def register(self, job_id: str, name: str) -> Job:
        """The job of this id, made when it is new.

        Raises:
            TooManyError: the monitor holds as many jobs as it may.
        """
        return self.jobs.get(job_id) or self._new_job(job_id, self.clock.now(), name)

    def _new_job(self, job_id: str, now: float, name: str) -> Job:
        if len(self.jobs) >= self.limits.jobs:
            self._forget_an_ended_job()
        if len(self.jobs) >= self.limits.jobs:
            raise TooManyError(
                f"job {job_id!r} is not taken: the monitor already holds its limit of {self.limits.jobs} jobs"
            )
        job = self.jobs[job_id] = Job(job_id, now, name=name, policy=self.policy)
        self._seen[job_id] = _Seen()
        log.info("job %s appeared", job_id)
        return job

    def _forget_an_ended_job(self) -> None:
        """Let the job go that ended longest ago; the store keeps it."""
        over = (JobState.FINISHED, JobState.FAILED, JobState.STOPPED, JobState.LOST)
        ended = [job for job in self.jobs.values() if self._seen[job.id].state in over]
        if ended:
            oldest = min(ended, key=lambda job: job.last_heard)
            del self.jobs[oldest.id], self._seen[oldest.id]
            self.failing.discard(oldest.id)
            self._delivered.pop(oldest.id, None)
            self.trends.forget(oldest.id)

    def _without_new_sections(self, job: Job, report: RankReport) -> RankReport:
        known = set(job.columns.sections)
        kept = {name: age for name, age in (report.open_sections or {}).items() if name in known}
        lost = len(report.open_sections or {}) - len(kept)
        if lost:
            self.counters.reject("too_many_sections", lost)
        return report._replace(open_sections=kept)

    # Out --------------------------------------------------------------------------------------------------------------

    async def directives_after(self, job_id: str, after: int, wait: float) -> list[Directive]:
        """Directives that were issued after number ``after``; waits up to ``wait`` seconds for one.

        Raises:
            UnknownJobError: there is no such job.
        """
        deadline = self.clock.now() + wait
        while True:
            job = self.job(job_id)
            ready = [d for d in job.directives if after < d.id <= self._delivered.get(job_id, 0)]
            left = deadline - self.clock.now()
            if ready or left <= 0 or self.ending:
                return ready
            news = self._news.setdefault(job_id, asyncio.Event())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), left)

    def end_waits(self) -> None:
        """Answer all who wait for news: the monitor is about to end."""
        self.ending = True
        for news in self._news.values():
            news.set()

    def incident(self, job_id: str, incident_id: str) -> Incident | None:
        """One incident of a job, with its stacks; None when there is no such one."""
        return next((i for i in self.job(job_id).incidents if i.id == incident_id), None)

    # The clock --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Judge every job at every tick, until cancelled."""
        self._loop = asyncio.get_running_loop()
        while True:
            self.tick()
            await asyncio.sleep(TICK)

    def tick(self) -> None:
        """Judge every job now."""
        now = self.clock.now()
        if self.recorder is not None:
            self.recorder.tick(now)
        for job in list(self.jobs.values()):
            self._judge(job, now)
        self.last_tick = now
        self.tick_seconds = self.clock.now() - now

    def _judge(self, job: Job, now: float) -> None:
        try:
            self._advance(job, now)
            self.failing.discard(job.id)
        except Exception:
            self.tick_errors += 1
            if job.id not in self.failing:
                log.exception("job %s cannot be judged", job.id)
            self.failing.add(job.id)

    def _advance(self, job: Job, now: float) -> None:
        before, started = job.performance.judged_at, time.perf_counter()
        effects = advance(job, now)
        if job.performance.judged_at != before and (scores := job.performance.told.scores) is not None:
            scores.seconds = time.perf_counter() - started
        for effect in effects:
            self._deliver(job, effect)
        goodput.account(job, now)
        if (lesson := teaching.teach(job, now)) is not None:
            self._store_then_show(job, lesson)
        seen = self._seen[job.id]
        state, reason = picture.job_state(job, now)
        if state is not seen.state:
            told = job.open_incident is not None or not reason
            log.info("job %s is %s%s", job.id, state, "" if told else f": {reason}")
            seen.state = state
            if self.repository is not None:
                row = {"job_id": job.id, "at": now, "state": str(state), "reason": reason}
                self.repository.save(schema.transitions, row)
            self._save(job, now)
        elif now - seen.saved_at > SAVE_INTERVAL and job.last_heard > seen.saved_at:
            self._save(job, now)
        self.trends.look(job, now)
        self._report_scores(job, seen, now)
        self._save_performance(job, seen, now)
        if self.publishing is not None:
            self.publishing.look(job, now)

    def _report_scores(self, job: Job, seen: _Seen, now: float) -> None:
        """Log the report of the scores once a report interval, as the policy wants it."""
        if job.performance.told.scores is None:
            return
        if seen.reported_at is None:
            seen.reported_at = now
        elif now - seen.reported_at >= job.policy.report_interval:
            seen.reported_at = now
            if text := scores_log(job, now):
                log.info("job %s:\n%s", job.id, text)

    def _save_performance(self, job: Job, seen: _Seen, now: float) -> None:
        judged = job.performance.judged_at
        if self.repository is None or judged is None or judged == seen.judged:
            return
        if now - seen.performance_saved_at < (SAVE_INTERVAL if seen.slowed else SAVE_PERFORMANCE_INTERVAL):
            return
        seen.judged, seen.performance_saved_at, seen.slowed = judged, now, False
        body = performances.held(job.performance)
        self.repository.save(schema.performances, {"job_id": job.id}, late=lambda: {"body": body()})

    def _score(self, job: Job, asked: Score) -> None:
        """Score the kernels: ingest must not wait for it, so of a large job on another thread."""
        loop = self._loop
        if asked.median_RK.size <= AT_ONCE or loop is None:
            scoring.take_kernel_scores(job, scored(asked))
            return
        future = loop.run_in_executor(None, scored, asked)
        future.add_done_callback(
            lambda done: None if done.cancelled() else scoring.take_kernel_scores(job, done.result())
        )

    def _deliver(self, job: Job, effect: Effect) -> None:
        match effect:
            case Issue(directive=directive):
                log.info("job %s: directive %d, %s: %s", job.id, directive.id, directive.kind, directive.reason)
                self._store_then_show(job, directive)
            case Changed(incident=incident, said=said):
                if said:
                    log.warning("job %s: %s", job.id, said)
                if self.repository is not None:
                    self.repository.save(schema.incidents, codec.incident_row(incident))
            case Slowed(said=said):
                self._seen[job.id].slowed = True
                if said:
                    log.warning("job %s: %s", job.id, said)
            case Score():
                self._score(job, effect)

    def _store_then_show(self, job: Job, directive: Directive) -> None:
        job_id, number = job.id, directive.id

        def show() -> None:
            self._delivered[job_id] = max(number, self._delivered.get(job_id, 0))
            self._news.pop(job_id, asyncio.Event()).set()

        if self.repository is None or self._loop is None:
            show()
            return
        loop = self._loop
        # The job's counter of directives goes first: a number must never be given twice.
        self.repository.save(schema.jobs, codec.job_row(job))
        self.repository.save(schema.directives, codec.directive_row(job_id, directive), then=lambda: _on(loop, show))

    def _save(self, job: Job, now: float) -> None:
        self._seen[job.id].saved_at = now
        if self.repository is not None:
            self.repository.save(schema.jobs, codec.job_row(job))

    def hand_down(self, job: Job) -> Directive:
        """Tell the launchers of a job which limits are in force now, so that its ranks know them."""
        directive = teaching.hand_down(job, "the policy was changed", self.clock.now())
        self._store_then_show(job, directive)
        return directive

    def close(self) -> None:
        """Save every job and let the store go."""
        now = self.clock.now()
        for job in self.jobs.values():
            self._save(job, now)
            self._seen[job.id].performance_saved_at = 0.0
            self._save_performance(job, self._seen[job.id], now)
        if self.publishing is not None:
            self.publishing.close(self.jobs.values(), now)
        if self.recorder is not None:
            self.recorder.close(now)
        if self.repository is not None:
            self.repository.close()


def _on(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop was closed: the monitor is shutting down
        loop.call_soon_threadsafe(call)
