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

from rankwatch.contract.enums import JobState
from rankwatch.contract.messages import Directive, Evidence
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.effects import Changed, Effect, Issue, Score, Slowed
from rankwatch_monitor.core.events import JobEvent, Order, PolicyChanged, RankReport
from rankwatch_monitor.core.goodput import accounting
from rankwatch_monitor.core.incident import settings_push
from rankwatch_monitor.core.incident.incident import Incident
from rankwatch_monitor.core.incident.lifecycle import advance
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.liveness import TERMINAL_STATES, may_compact
from rankwatch_monitor.core.views import job_view
from rankwatch_monitor.errors import HeldElsewhereError, TooManyError, TooManyRanksError, UnknownJobError
from rankwatch_monitor.ingest.limits import Counters, Limits
from rankwatch_monitor.ingest.otlp.traces import SpanRecord
from rankwatch_monitor.ingest.routes import RefusedReport
from rankwatch_monitor.publish.publisher import Publishing
from rankwatch_monitor.replay.recording import Recorder
from rankwatch_monitor.service.broker import Handout
from rankwatch_monitor.service.clock import Clock
from rankwatch_monitor.service.ownership import Sharing
from rankwatch_monitor.service.persistence import Keeping
from rankwatch_monitor.service.quotas import ranks_told, too_many_ranks, without_new_sections
from rankwatch_monitor.service.scheduler import BUSY, Turns
from rankwatch_monitor.service.score_log import ScoreLog
from rankwatch_monitor.service.scoring_thread import score
from rankwatch_monitor.service.span_store import Timelines
from rankwatch_monitor.service.trend import Trends
from rankwatch_monitor.store.leases import Leases
from rankwatch_monitor.store.repository import Repository

log = logging.getLogger("rankwatch")


class Monitor:
    """All jobs, and the loop that watches them."""

    def __init__(
        self,
        *,
        repository: Repository | None = None,
        limits: Limits | None = None,
        policy: Policy | None = None,
        clock: Clock | None = None,
        leases: Leases | None = None,
    ) -> None:
        """Take up the jobs of the repository; with ``leases``, shared with other monitors, those that become ours."""
        self.clock = clock or Clock()
        self.limits = limits or Limits()
        self.counters = Counters()
        self.policy = policy or Policy()
        self.keeping = Keeping(repository)
        self.recorder: Recorder | None = None
        """Records what reaches the core, when somebody wants it."""
        self.publishing: Publishing | None = None
        """Tells others how jobs fare, when somebody wants it."""
        self.handout = Handout()
        self.jobs: dict[str, Job] = {}
        self.timelines = Timelines()
        self.trends = Trends()
        self.started_at = self.clock.now()
        self.last_tick = self.started_at
        self.tick_seconds = 0.0
        self.tick_errors = 0
        self.failing: set[str] = set()
        """Jobs whose last judgement failed."""
        self._states: dict[str, JobState | None] = {}
        """Of each job what was last said, to notice a change."""
        self._turns = Turns()
        self._score_log = ScoreLog()
        self._turned_away = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leases = leases
        self.sharing: Sharing | None = None
        """Says which jobs are ours, when several monitors share the database."""
        if repository is not None and leases is None:
            for job in repository.load(self.started_at, self.limits.jobs, self.limits.ranks):
                self.take_up(job)

    @property
    def repository(self) -> Repository | None:
        """Where jobs are stored."""
        return self.keeping.repository

    def begin(self) -> None:
        """Be ready for requests on the event loop that runs now."""
        self._loop = asyncio.get_running_loop()
        if self._leases is not None and self.repository is not None:
            self.sharing = Sharing(self._leases, self.repository, self, self.clock.now)

    def watches(self, job_id: str) -> bool:
        """Whether this monitor may act for a job now."""
        return self.sharing is None or self.sharing.ours(job_id)

    # In ---------------------------------------------------------------------------------------------------------------

    def take(self, reports: Sequence[RankReport]) -> list[RefusedReport]:
        """Take telemetry in; return what was turned away and why."""
        now = self.clock.now()
        refused: list[RefusedReport] = []
        for position, report in enumerate(reports):
            who = report.identity
            try:
                self.make_room(who.job_id, ranks_told(report))
                job = self.register(who.job_id, who.job_name)
            except (TooManyError, HeldElsewhereError) as error:
                refused.append(RefusedReport(position, error.counted_as, str(error)))
                continue
            if (told := report.open_sections) and len(job.columns.sections) + len(told) > self.limits.sections_per_job:
                report, lost = without_new_sections(job, report, self.limits.sections_per_job)
                self.counters.reject("too_many_sections", lost)
            self._apply(job, report, now)
        return refused

    def take_spans(self, records: Sequence[SpanRecord]) -> None:
        """Keep the newest sampled spans of known jobs."""
        self.timelines.take(records, self.jobs, self.limits.ranks_per_job)

    def submit(self, job_id: str, event: JobEvent) -> Job:
        """Take in what a launcher or a person says of a job, and judge the job: at once unless that is dear.

        Raises:
            UnknownJobError: there is no such job.
            HeldElsewhereError: another monitor watches it.
            TooManyRanksError: it would have more ranks than the monitor has room for.
        """
        job = self.job(job_id)
        if self.sharing is not None:
            self.sharing.check(job_id)
        self.make_room(job_id, ranks_told(event))
        now = self.clock.now()
        self._apply(job, event, now)
        if isinstance(event, Evidence):
            self.keeping.evidence(job, event)
        if isinstance(event, Order | PolicyChanged) or self._turns.at_once(job, now):
            self._judge(job, now)
        self.keeping.save(job, now)
        return job

    def _apply(self, job: Job, event: JobEvent, now: float) -> None:
        if self.recorder is not None:
            self.recorder.put(now, job, event)
        apply(job, event, now)

    def job(self, job_id: str) -> Job:
        """The job of this id.

        Raises:
            UnknownJobError: there is none.
            HeldElsewhereError: another monitor watches it.
        """
        try:
            return self.jobs[job_id]
        except KeyError:
            if self.sharing is not None:
                raise HeldElsewhereError(self.sharing.words(job_id)) from None
            raise UnknownJobError(job_id) from None

    def register(self, job_id: str, name: str) -> Job:
        """The job of this id, of which a rank or launcher speaks; made when it is new.

        Raises:
            TooManyError: the monitor holds as many jobs as it may.
            HeldElsewhereError: another monitor watches it.
        """
        if self.sharing is not None:
            self.sharing.check(job_id)
        return self.jobs.get(job_id) or self._new_job(job_id, self.clock.now(), name)

    def _new_job(self, job_id: str, now: float, name: str) -> Job:
        if len(self.jobs) >= self.limits.jobs and not self._forget_an_ended_job():
            raise TooManyError(
                f"job {job_id!r} is not taken: the monitor already holds its limit of {self.limits.jobs} jobs"
            )
        job = self.jobs[job_id] = Job(job_id, now, name=name, policy=self.policy)
        self.keeping.begun(job, now)
        self._states[job_id] = None
        log.info("job %s appeared", job_id)
        return job

    def make_room(self, job_id: str, ranks: int) -> None:
        """Let ended jobs go for so many ranks of this one; raises TooManyRanksError when that is not room enough."""
        if (job := self.jobs.get(job_id)) is not None and ranks <= len(job.columns):
            return
        if self.sharing is not None:
            self.sharing.check(job_id)  # for another monitor's job nothing is let go
        if ranks > self.limits.ranks_per_job:
            raise TooManyRanksError(f"{ranks} ranks are above the limit of {self.limits.ranks_per_job} ranks a job")
        while words := too_many_ranks(self.jobs, job_id, ranks, self.limits):
            if not self._forget_an_ended_job(but=job_id):
                raise TooManyRanksError(words)

    def _forget_an_ended_job(self, but: str = "") -> bool:
        """Let the job go that ended longest ago, if there is one; the store keeps it."""
        ended = [job for job in self.jobs.values() if self._states[job.id] in TERMINAL_STATES and job.id != but]
        if ended:
            self._retire(min(ended, key=lambda job: job.last_heard))
        return bool(ended)

    def _retire(self, job: Job) -> None:
        if self.sharing is not None:  # whoever hears of it again, we or another one, loads it from the store
            self.keeping.save_all(job, self.clock.now(), self.sharing.retire(job.id))
        self.drop(job.id)

    # Jobs that come and go --------------------------------------------------------------------------------------------

    def take_up(self, job: Job) -> None:
        """Watch a job that was loaded from the store, or whose past was."""
        self.jobs[job.id] = job
        self._states[job.id] = job_view.job_state(job, self.clock.now())[0]
        self.handout.show(job.id, job.last_directive)
        if self.publishing is not None:
            self.publishing.adopt(job, self.clock.now())

    def drop(self, job_id: str) -> None:
        """Watch a job no more, and answer those who wait for news of it; the store keeps it."""
        self.jobs.pop(job_id, None)
        self._states.pop(job_id, None)
        self.failing.discard(job_id)
        self.keeping.forget(job_id)
        self._turns.forget(job_id)
        self.trends.forget(job_id)
        self._score_log.forget(job_id)
        self.handout.forget(job_id)

    def hand_over(self, job_id: str, then: Callable[[], None]) -> bool:
        """Let go of a job that nobody speaks to us about any more; ``then`` follows once it was stored.

        False when it was spoken of within the length of a lease.
        """
        if (job := self.jobs.get(job_id)) is None:
            then()
            return True
        now = self.clock.now()
        spoken = max([job.last_heard, *(node.seen for node in job.nodes.values())])
        if self._leases is None or now - spoken < self._leases.duration:
            return False
        self.keeping.save_all(job, now, then)
        self.drop(job_id)
        return True

    # Out --------------------------------------------------------------------------------------------------------------

    async def directives_after(self, job_id: str, after: int, wait: float) -> list[Directive]:
        """Directives issued after number ``after``; waits up to ``wait`` seconds for one, and raises as :meth:`job`."""
        return await self.handout.after(lambda: self.job(job_id), after, wait)

    @property
    def ending(self) -> bool:
        """Long polls and streams are to end."""
        return self.handout.ending

    def end_waits(self) -> None:
        """Answer all who wait for news: the monitor is about to end."""
        self.handout.end_waits()

    def incident(self, job_id: str, incident_id: str) -> Incident | None:
        """One incident of a job, with its stacks; None when there is no such one."""
        return next((i for i in self.job(job_id).incidents if i.id == incident_id), None)

    # The clock --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Judge every job at every tick, until cancelled."""
        while True:
            self.tick()
            await asyncio.sleep(self._turns.pause(self.tick_seconds))

    def tick(self) -> None:
        """Judge every job now, as far as there is time."""
        now = self.clock.now()
        for job in self.keeping.came_late(self.jobs, self.policy, now):
            self.take_up(job)
        if self.recorder is not None:
            self.recorder.tick(now)
        self._forgive_silence(now)
        for job in self._turns.due(self.jobs.values(), now):
            if self.watches(job.id):
                self._judge(job, now)
            if self.clock.now() - now > BUSY:
                break
        for job_id in self.keeping.tidy(now, self.jobs.values()):
            self._retire(self.jobs[job_id])
        self.last_tick = now
        self.tick_seconds = self.clock.now() - now

    def _forgive_silence(self, now: float) -> None:
        """Who was told to come again later is not silent: where anybody was, silence counts from here."""
        turned_away = self.counters.rejected.get("unavailable", 0)
        if turned_away != self._turned_away:
            self._turned_away = turned_away
            for job in self.jobs.values():
                job.silence_baseline = now

    def _judge(self, job: Job, now: float) -> None:
        started = time.perf_counter()
        try:
            self._advance(job, now)
            self.failing.discard(job.id)
        except Exception:
            self.tick_errors += 1
            if job.id not in self.failing:
                log.exception("job %s cannot be judged", job.id)
            self.failing.add(job.id)
        self._turns.took(job, now, time.perf_counter() - started, self._states[job.id])

    def _advance(self, job: Job, now: float) -> None:
        before, started = job.performance.judged_at, time.perf_counter()
        effects = advance(job, now)
        if job.performance.judged_at != before and (scores := job.performance.told.scores) is not None:
            scores.seconds = time.perf_counter() - started
        for effect in effects:
            self._deliver(job, effect)
        accounting.account(job, now)
        if (settings := settings_push.push_if_changed(job, now)) is not None:
            self._store_then_show(job, settings)
        state, reason = job_view.job_state(job, now)
        if state is not self._states[job.id]:
            told = job.open_incident is not None or not reason
            log.info("job %s is %s%s", job.id, state, "" if told else f": {reason}")
            self._states[job.id] = state
            self.keeping.turned(job, state, reason, now)
        self.keeping.look(job, now)
        self.trends.look(job, state, now)
        if may_compact(job, state, now):
            job.performance.rest()
        self._score_log.look(job, now)
        if self.publishing is not None:
            self.publishing.look(job, now)

    def _deliver(self, job: Job, effect: Effect) -> None:
        match effect:
            case Issue(directive=directive):
                log.info("job %s: directive %d, %s: %s", job.id, directive.id, directive.kind, directive.reason)
                self._store_then_show(job, directive)
            case Changed(incident=incident, said=said):
                if said:
                    log.warning("job %s: %s", job.id, said)
                self.keeping.incident(incident)
            case Slowed(said=said):
                self.keeping.slowed(job)
                if said:
                    log.warning("job %s: %s", job.id, said)
            case Score():
                score(job, effect, self._loop)

    def _store_then_show(self, job: Job, directive: Directive) -> None:
        job_id, number = job.id, directive.id

        def show() -> None:
            self.handout.show(job_id, number)

        if (loop := self._loop) is None:
            show()
            return
        self.keeping.directive(job, directive, self.clock.now(), lambda: _on(loop, show))

    def hand_down(self, job: Job) -> Directive:
        """Tell the launchers of a job which limits are in force now, so that its ranks know them."""
        directive = settings_push.push(job, "the policy was changed", self.clock.now())
        self._store_then_show(job, directive)
        return directive

    def close(self) -> None:
        """Save every job and let the store go."""
        now = self.clock.now()
        self.keeping.came_late(self.jobs, self.policy, now)
        for job in self.jobs.values():
            self.keeping.save_all(job, now)
        if self.publishing is not None:
            self.publishing.close(self.jobs.values(), now)
        if self.recorder is not None:
            self.recorder.close(now)
        if self.repository is not None:
            if self.sharing is not None:
                self.repository.flush()
                self.sharing.close()
            self.repository.close()


def _on(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop was closed: the monitor is shutting down
        loop.call_soon_threadsafe(call)
