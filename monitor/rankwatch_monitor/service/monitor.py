"""The running monitor: the only module that reads the clock and calls the core.

Everything runs on one asyncio thread. Telemetry (``ingest``) and messages of launchers and operators (``submit``) are
applied to their job immediately; a tick ten times a second evaluates every job. Effects of the core are stored first,
then delivered: a directive becomes visible to launchers once its row was committed. If the database refuses the row
(for example a full disk), the directive is issued anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from rankwatch.contract.enums import JobState, ProcessEventKind
from rankwatch.contract.messages import Directive, Evidence, NodeRegistration, ProcessEvent
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core import attempts, console, goodput_accounting, straggler_detector
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.effects import Changed, Effect, Issue, Slowed
from rankwatch_monitor.core.events import JobEvent, Order, PolicyChanged, RankIdentity, RankReport
from rankwatch_monitor.core.incident import settings_push
from rankwatch_monitor.core.incident.lifecycle import advance
from rankwatch_monitor.core.incident_record import Incident, settle
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.liveness import COMPACT_AFTER, TERMINAL_STATES
from rankwatch_monitor.core.ranks import failed_ranks
from rankwatch_monitor.core.straggler.scores import KernelScoreRequest, kernel_scores
from rankwatch_monitor.core.views import verdict
from rankwatch_monitor.core.views.host_activity import HostActivity
from rankwatch_monitor.errors import HeldElsewhereError, TooManyError, TooManyRanksError, UnknownJobError
from rankwatch_monitor.ingest.limits import Counters, Limits
from rankwatch_monitor.ingest.rejection import Forbidden, Refusal
from rankwatch_monitor.ingest.routes import RefusedReport
from rankwatch_monitor.ingest.traces_decoder import SpanRecord
from rankwatch_monitor.publish.publisher import Publishing
from rankwatch_monitor.publish.text.scores_report import scores_log
from rankwatch_monitor.service import flight_dumps, trend
from rankwatch_monitor.service.broker import DirectiveBroker
from rankwatch_monitor.service.log_requests import LogRequests
from rankwatch_monitor.service.ownership import Ownership
from rankwatch_monitor.service.persistence import Persistence
from rankwatch_monitor.service.quotas import (
    SECTIONS_AT_ONCE,
    EvidenceQuota,
    LauncherBytes,
    claimed_ranks,
    limit_sections,
    over_rank_limit,
    section_limit,
)
from rankwatch_monitor.service.runs import Runs
from rankwatch_monitor.service.scheduler import TICK_BUDGET, Scheduler
from rankwatch_monitor.service.span_store import SpanStore
from rankwatch_monitor.store.leases import Leases
from rankwatch_monitor.store.repository import Repository

log = logging.getLogger("rankwatch")

INLINE_MEDIANS: Final = 200_000
"""Kernel medians that are scored on the event loop, in a few milliseconds; more are scored on another thread."""

GETS_THROUGH: Final = 1.0
"""Seconds between the beginning of a request and its effect, up to which requests get through."""
_HOUR: Final = 3600.0
_MOST_APPEARED: Final = 4_000
"""New jobs that are remembered: those of four bound tokens at their limit."""
_MOST_SHED: Final = 16
"""Refused reports without a job of which a tick notes the jobs."""
LOG_INTERVAL: Final = 60.0
"""Seconds between two log entries of one recurring exception."""
LINES: Final = 30
"""Lines about one job in the same time; an incident takes five."""
LONGEST_LINE: Final = 1_000


class Clock:
    """Unix seconds that never go backwards: wall-clock time at the start plus monotonic time since then."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        """Unix seconds."""
        return time.monotonic() + self._offset


class EventRecorder(Protocol):
    """Records everything that reaches the core (:class:`rankwatch_monitor.replay.recording.Recorder`)."""

    def put(self, now: float, job: Job, event: JobEvent) -> None:
        """Record an event before it is applied."""

    def tick(self, now: float) -> None:
        """Record that the jobs are evaluated now."""

    def close(self, now: float) -> None:
        """End the recording."""


class Monitor:
    """All jobs of this process, and the loop that evaluates them."""

    def __init__(
        self,
        *,
        repository: Repository | None = None,
        limits: Limits | None = None,
        policy: Policy | None = None,
        clock: Clock | None = None,
        leases: Leases | None = None,
        read_only: bool = False,
    ) -> None:
        """Load the repository's jobs; with ``leases`` (a database shared by several monitors) only once acquired.

        ``read_only``: the jobs are shown as they were stored, and never evaluated.
        """
        self.read_only = read_only
        self.clock = clock or Clock()
        self.limits = limits or Limits()
        self.counters = Counters()
        self.policy = policy or Policy()
        self.persistence = Persistence(repository)
        self.recorder: EventRecorder | None = None
        self.publishing: Publishing | None = None
        self.broker = DirectiveBroker()
        self.log_requests = LogRequests(self.broker.wake, self.limits)
        self.runs = Runs()
        self.jobs: dict[str, Job] = {}
        self.host_activity = HostActivity(self.jobs)
        self.spans = SpanStore()
        self.started_at = self.clock.now()
        self.last_tick = self.started_at
        self.tick_seconds = 0.0
        self.tick_errors = 0
        self.failing: set[str] = set()
        """Jobs whose last evaluation raised."""
        self.failing_stages: set[str] = set()
        """Stages of the last tick that raised outside the evaluation of a job."""
        self._logged_at: dict[str, float] = {}
        """When the exception of a job or stage was last logged."""
        self._states: dict[str, JobState | None] = {}
        """The last logged state of each job."""
        self._scheduler = Scheduler()
        self._scores_logged_at: dict[str, float] = {}
        self._said: dict[str, tuple[float, int]] = {}
        """By job: since when its lines are counted, and how many there were, those that are left out too."""
        self._unattributed_shed = False
        self._shed_of: deque[Forbidden] = deque(maxlen=_MOST_SHED)
        """Which jobs the senders of refused reports may not report on."""
        self._launcher_bytes = LauncherBytes()
        self._evidence = EvidenceQuota()
        self._appeared: deque[tuple[float, str]] = deque(maxlen=_MOST_APPEARED)
        """When each of the newest jobs appeared."""
        self._brought_by: dict[str, Callable[[str], bool]] = {}
        """Of jobs that a token which is bound to jobs is about to bring: the jobs of that token."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leases = leases
        self.ownership: Ownership | None = None
        self.team_of: Callable[[str], str] = lambda job_id: job_id
        """Who has a job: see :meth:`.TokenRegistry.team_of`."""
        """Which jobs this monitor may act for, when several monitors share the database."""
        if repository is not None and leases is None:
            for job in repository.load(self.started_at, self.limits.jobs, self.limits.ranks):
                if read_only:
                    job.silence_baseline, job.of_record = job.last_heard, True
                self.adopt(job)

    @property
    def repository(self) -> Repository | None:
        """Where jobs are stored."""
        return self.persistence.repository

    def begin(self) -> None:
        """Attach to the running event loop; must be called before the first request."""
        self._loop = asyncio.get_running_loop()
        if self._leases is not None and self.repository is not None:
            self.ownership = Ownership(self._leases, self.repository, self, self.clock.now)

    @property
    def shared(self) -> bool:
        """Whether several monitors share the database."""
        return self._leases is not None

    @property
    def shared_as(self) -> str:
        """Its name among the monitors that share the database; empty: there are no others."""
        return "" if self._leases is None else self._leases.name

    def owns(self, job_id: str) -> bool:
        """Whether this monitor may act for a job now."""
        return self.ownership is None or self.ownership.owns(job_id)

    # Input ------------------------------------------------------------------------------------------------------------

    def ingest(self, reports: Sequence[RankReport]) -> list[RefusedReport]:
        """Apply telemetry to its jobs; returns the rejected reports with their reasons."""
        now = self.clock.now()
        refused: list[RefusedReport] = []
        for position, report in enumerate(reports):
            identity = report.identity
            try:
                self.make_room(identity.job_id, claimed_ranks(report))
                job = self.register(identity.job_id, identity.job_name)
            except (TooManyError, HeldElsewhereError) as error:
                refused.append(RefusedReport(position, error.counted_as, str(error)))
                continue
            sections = report.open_sections
            most = self.limits.sections_per_job
            if sections and len(job.columns.sections) + len(sections) > min(most, SECTIONS_AT_ONCE):
                report, dropped = limit_sections(job, report, section_limit(job, most, claimed_ranks(report)))
                if dropped:
                    self.counters.reject("too_many_sections", dropped)
            self._apply(job, report, now)
        return refused

    def report_shed(self, job_id: str | None, forbidden: Forbidden | None = None) -> None:
        """Restart the silence timers of the job whose report was refused under load.

        Args:
            job_id: None: it is unknown, and may be any that is not ``forbidden``.
            forbidden: which jobs the sender may not report on.
        """
        if job_id is not None:
            if (job := self.jobs.get(job_id)) is not None:
                job.shed_at = self.clock.now()
        elif forbidden is not None:
            self._shed_of.append(forbidden)
        else:
            self._unattributed_shed = True

    def replaced(self, identity: RankIdentity) -> bool:
        """Whether a process belongs to an attempt that was replaced for good."""
        job = self.jobs.get(identity.job_id)
        return job is not None and attempts.replaced(job, identity.attempt)

    def ingest_spans(self, records: Sequence[SpanRecord]) -> None:
        """Store the newest sampled spans of known jobs."""
        self.spans.add(records, self.jobs, self.limits.ranks_per_job)

    def submit(self, job_id: str, *events: JobEvent) -> Job:
        """Apply messages of a launcher or operator, and evaluate the job: immediately unless it is large.

        Raises:
            UnknownJobError: there is no such job.
            HeldElsewhereError: another monitor holds the job.
            TooManyRanksError: the job would exceed the limits on ranks.
        """
        job = self.job(job_id)
        if self.ownership is not None:
            self.ownership.require(job_id)
        self.make_room(job_id, max(map(claimed_ranks, events)))
        now = self.clock.now()
        for event in events:
            if isinstance(event, Evidence):
                event = flight_dumps.keep(self.repository, job, event)
            if _replaces_a_crash(job, event):
                self._evaluate(job, now)  # which is expensive, so it was left to the next tick
            self._apply(job, event, now)
            if isinstance(event, Evidence):
                self.persistence.save_late_evidence(job, event, now)
        if isinstance(events[-1], Order | PolicyChanged) or self._scheduler.small(job):
            self._evaluate(job, now)
        self.persistence.save(job, now)
        return job

    def _apply(self, job: Job, event: JobEvent, now: float) -> None:
        if self.recorder is not None:
            self.recorder.put(now, job, event)
        apply(job, event, now)

    # Jobs -------------------------------------------------------------------------------------------------------------

    def job(self, job_id: str) -> Job:
        """The job of this ID.

        Raises:
            UnknownJobError: there is no such job.
            HeldElsewhereError: another monitor holds the job.
        """
        try:
            return self.jobs[job_id]
        except KeyError:
            if self.ownership is not None:
                raise self.ownership.refusal(job_id) from None
            raise UnknownJobError(job_id) from None

    def register(self, job_id: str, name: str) -> Job:
        """The job of this ID; created if it is new.

        Raises:
            TooManyError: the monitor holds its limit of jobs.
            HeldElsewhereError: another monitor holds the job.
        """
        if self.ownership is not None:
            self.ownership.require(job_id)
        return self.jobs.get(job_id) or self._new_job(job_id, self.clock.now(), name)

    def _new_job(self, job_id: str, now: float, name: str) -> Job:
        if len(self.jobs) >= self.limits.jobs and not self._evict_terminal_job(but=job_id):
            raise TooManyError(
                f"job {job_id!r} is rejected: the monitor already holds its limit of {self.limits.jobs} jobs"
            )
        self._brought_by.pop(job_id, None)
        job = self.jobs[job_id] = Job(job_id, now, name=name, policy=self.policy)
        self.persistence.on_new_job(job, now)
        self._appeared.append((now, job_id))
        self._states[job_id] = None
        log.info("job %s appeared", job_id)
        return job

    def make_room(self, job_id: str, ranks: int) -> None:
        """Evict jobs in a terminal state until this job may have ``ranks`` ranks.

        Raises:
            TooManyRanksError: the limits do not allow it.
            HeldElsewhereError: another monitor holds the job.
        """
        if (job := self.jobs.get(job_id)) is not None and ranks <= len(job.columns):
            return
        if self.ownership is not None:
            self.ownership.require(job_id)  # nothing is evicted for another monitor's job
        if ranks > self.limits.ranks_per_job:
            raise TooManyRanksError(f"{ranks} ranks are above the limit of {self.limits.ranks_per_job} ranks a job")
        names, most = len(job.columns.sections) if job is not None else 0, self.limits.sections_per_job
        if job is not None and names > min(most, SECTIONS_AT_ONCE) and names > section_limit(job, most, ranks):
            raise TooManyRanksError(f"{ranks} ranks with {names} sections are above the limits of a job: few report")
        while reason := over_rank_limit(self.jobs, job_id, ranks, self.limits):
            if not self._evict_terminal_job(but=job_id):
                raise TooManyRanksError(reason)

    def token_jobs(self, covers: Callable[[str], bool]) -> int:
        """The jobs that have not ended, of those a token is bound to. May be called on any thread."""
        living = [job_id for job_id, state in list(self._states.items()) if state not in TERMINAL_STATES]
        return sum(map(covers, living))

    def refuses_job(self, job_id: str, covers: Callable[[str], bool] | None, more: int = 1) -> str:
        """Why a token may not bring ``more`` new jobs, ``job_id`` the last of them; empty when it may.

        Those that have ended count for an hour: each of them leaves rows in the database. So does one that was only
        named, where it takes a lease.
        """
        if covers is None or job_id in self.jobs:
            return ""
        if self.ownership is not None:
            more += sum(map(covers, self.ownership.without_job() - {job_id}))
        hour_ago = self.clock.now() - _HOUR
        brought = sum(1 for at, each in list(self._appeared) if at > hour_ago and covers(each))
        if brought + more > self.limits.new_jobs_per_token:
            return (
                f"job {job_id[:100]!r} is rejected: this token is bound to jobs and has brought "
                f"{self.limits.new_jobs_per_token} within the hour, which is its limit"
            )
        if self.token_jobs(covers) + more <= self.limits.jobs_per_token:
            if len(self._brought_by) >= self.limits.jobs:
                self._brought_by.clear()
            self._brought_by[job_id] = covers
            return ""
        return (
            f"job {job_id[:100]!r} is rejected: this token is bound to jobs of which {self.limits.jobs_per_token} run "
            "already, which is its limit"
        )

    def refuses_launcher(
        self, job_id: str, registration: NodeRegistration, covers: Callable[[str], bool] | None
    ) -> str:
        """Why there is no room for a registration, once ended jobs have made room; empty when there is.

        ``covers``: the jobs that the sender's token is bound to; None: all.
        """
        while True:
            reason, by_others = self._launcher_bytes.over_limit(self.jobs, job_id, registration, self.limits, covers)
            if not by_others or not self._evict_terminal_job(but=job_id):
                return reason

    def refuse_evidence(
        self, job_id: str, size: int, token: str, covers: Callable[[str], bool] | None
    ) -> Callable[[int], None]:
        """Count a body of evidence before it is read; return what gives bytes back that did not arrive.

        Raises:
            Refusal: 429, the job or the token has sent as much as it may in a minute.
        """
        wait = self._evidence.take(self.jobs, job_id, size, self.limits, self.clock.now(), token, covers)
        if wait > 0.0:
            raise Refusal(
                429,
                "too_much_evidence",
                f"job {job_id[:100]!r}, or the token that its evidence comes with, has sent as much evidence as it may "
                "in a minute",
                retry_after=math.ceil(wait),
            )
        return lambda unread: self._evidence.give_back(job_id, unread, token if covers is not None else "")

    def _evict_terminal_job(self, but: str = "") -> bool:
        """Evict the least recently active job in a terminal state, if there is one; its rows stay.

        ``but``: the job that needs room. If a token that is bound to jobs brings it, that token's go first: a team that
        brings many jobs which end at once pushes out its own.
        """
        ended = [job for job in self.jobs.values() if self._states[job.id] in TERMINAL_STATES and job.id != but]
        covers = self._brought_by.get(but)
        own = [job for job in ended if covers(job.id)] if covers is not None else []
        if ended:
            self._evict(min(own or ended, key=lambda job: job.last_heard))
        return bool(ended)

    def _evict(self, job: Job, *, expired: bool = False) -> None:
        if self.ownership is not None:  # the next monitor that receives its telemetry loads it from the database
            self.persistence.save_all(job, self.clock.now(), self.ownership.disown(job.id))
        else:
            self.persistence.on_evicted(job, self.clock.now(), save=not expired)
        self.drop(job.id)

    def adopt(self, job: Job) -> None:
        """Take over a job that was loaded from the database, or merged with its stored past."""
        self.jobs[job.id] = job
        self.persistence.on_loaded(job)
        self._states[job.id] = verdict.job_state(job, self.clock.now())[0]
        self.broker.publish(job.id, job.last_directive)
        if self.publishing is not None:
            self.publishing.adopt(job, self.clock.now())

    def _before_merge(self, job: Job, past: Job) -> None:
        if self.publishing is not None:
            self.publishing.merge(job, past, self.clock.now())

    def lose(self, job_id: str) -> None:
        """Drop a job that another monitor owns."""
        self.drop(job_id)
        if self.publishing is not None:
            self.publishing.release(job_id)

    def drop(self, job_id: str) -> None:
        """Remove a job from memory and answer its waiters; its rows stay."""
        self.jobs.pop(job_id, None)
        self._states.pop(job_id, None)
        self.failing.discard(job_id)
        self.persistence.forget(job_id)
        self._scheduler.forget(job_id)
        self._launcher_bytes.forget(job_id)
        self._scores_logged_at.pop(job_id, None)
        self._said.pop(job_id, None)
        self.broker.forget(job_id)
        self.runs.forget(job_id)

    def hand_over(self, job_id: str, on_saved: Callable[[], None], *, first: float | None = None) -> bool:
        """Save and drop a job that no longer reports to this monitor; ``on_saved`` is called once it is stored.

        Returns False, and does nothing, when it has reported here within the last lease duration. ``first``: it goes to
        the monitor that a proxy asks first, and this one was contacted so many seconds ago. Then the reports must have
        got through, since an overloaded monitor is asked first too, and no incident may be open.
        """
        job, now = self.jobs[job_id], self.clock.now()
        last_contact = max([job.last_heard, *(node.seen for node in job.nodes.values())])
        recent = self._leases is None or now - last_contact < self._leases.duration
        if first is None:
            may = not recent
        else:
            may = recent and job.open_incident is None and now - last_contact <= first + GETS_THROUGH
        if not may:
            return False

        def saved() -> None:
            if self.publishing is not None:
                self.publishing.release(job_id)  # its last messages were queued for delivery by the same commit
            on_saved()

        self.persistence.save_all(job, now, saved)
        self.drop(job_id)
        return True

    # Output -----------------------------------------------------------------------------------------------------------

    def incident(self, job_id: str, incident_id: str) -> Incident | None:
        """One incident of a job, with its stacks; None when there is no such incident."""
        return next((i for i in self.job(job_id).incidents if i.id == incident_id), None)

    def push_settings(self, job: Job) -> Directive:
        """Send the limits in force to the launchers of a job after its policy was changed."""
        directive = settings_push.push(job, "the policy was changed", self.clock.now())
        self._save_then_publish(job, directive)
        return directive

    # Evaluation -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Evaluate every job at every tick, until cancelled."""
        while True:
            for _ in self._turns():
                await asyncio.sleep(0)
            await asyncio.sleep(self._scheduler.pause(self.tick_seconds))

    def tick(self) -> None:
        """Evaluate the jobs that are due, within the tick's budget; no exception ends the loop."""
        for _ in self._turns():
            pass

    def _turns(self) -> Iterator[None]:
        """A tick, which yields before each window of a large job: it takes as long as a decision about a hang."""
        now = self.clock.now()
        if self.read_only:
            self.last_tick = now
            return
        with self._contained("merge the stored jobs", now):
            for job in self.persistence.merge_pending(self.jobs, self.policy, now, self._before_merge):
                self.adopt(job)
        with self._contained("record the tick", now):
            if self.recorder is not None:
                self.recorder.tick(now)
        for job in self.jobs.values():
            if self._unattributed_shed or any(forbidden(job.id) is None for forbidden in self._shed_of):
                job.shed_at = now
        self._unattributed_shed = False
        self._shed_of.clear()
        complete: list[Job] = []
        with self._contained("schedule the jobs", now):
            for job in self._scheduler.due(self.jobs.values(), now):
                if self.owns(job.id):
                    self._evaluate(job, now)
                    if not self._scheduler.small(job) and straggler_detector.ready_at(job) <= now:
                        complete.append(job)
                if self.clock.now() - now > TICK_BUDGET:
                    break
            self.last_tick = now
        with self._contained("remove expired jobs", now):
            for job_id in self.persistence.expire(now, self.jobs.values()):
                self._evict(self.jobs[job_id], expired=True)
        self.tick_seconds = self.clock.now() - now
        for job in complete:
            yield
            now = self.clock.now()
            if self.jobs.get(job.id) is job and self.owns(job.id):
                with self._evaluating(job, now):
                    self._judge(job, now)
            self.tick_seconds += self.clock.now() - now

    @contextlib.contextmanager
    def _contained(self, stage: str, now: float) -> Iterator[None]:
        """Count and log an exception of a tick's stage, so that the next stage and the next tick run."""
        try:
            yield
        except Exception:
            self.tick_errors += 1
            self.failing_stages.add(stage)
            if self._log_due(stage, now):
                log.exception("the monitor could not %s", stage)
        else:
            self.failing_stages.discard(stage)

    def _log_due(self, what: str, now: float) -> bool:
        """Whether to log an exception of this job or stage: at most once in :data:`LOG_INTERVAL`."""
        if now - self._logged_at.get(what, -LOG_INTERVAL) < LOG_INTERVAL:
            return False
        if len(self._logged_at) > self.limits.jobs:
            self._logged_at.clear()
        self._logged_at[what] = now
        return True

    def _evaluate(self, job: Job, now: float) -> None:
        with self._evaluating(job, now):
            self._advance(job, now)
        self._scheduler.record(job, now, self._states.get(job.id))

    @contextlib.contextmanager
    def _evaluating(self, job: Job, now: float) -> Iterator[None]:
        """Count and log an exception of a job's evaluation, which fails no other job."""
        try:
            yield
            self.failing.discard(job.id)
        except Exception:
            self.tick_errors += 1
            if self._log_due(job.id, now):
                log.exception("job %s could not be evaluated", job.id)
            self.failing.add(job.id)

    def _advance(self, job: Job, now: float) -> None:
        if self._scheduler.small(job):
            self._judge(job, now)
        for effect in advance(job, now, windows=False):
            self._deliver(job, effect)
        goodput_accounting.account(job, now)
        if (settings := settings_push.push_if_changed(job, now)) is not None:
            self._save_then_publish(job, settings)
        state, reason = verdict.job_state(job, now)
        if state is not self._states[job.id]:
            explained = job.open_incident is not None or not reason
            self._say(job, logging.INFO, f"job {job.id} is {state}{'' if explained else f': {reason}'}")
            self._states[job.id] = state
            self.persistence.save_transition(job, state, reason, now)
        self.persistence.save_if_due(job, now)
        trend.sample(job, state, now)
        if state in TERMINAL_STATES and now - job.last_heard > COMPACT_AFTER:
            job.performance.compact()
            job.trends.compact()
        settle(job.incidents, now)
        self._log_scores(job, now)
        if self.publishing is not None:
            self.publishing.observe(job, now)

    def _judge(self, job: Job, now: float) -> None:
        """Evaluate the job's window, if it is complete."""
        before, started = job.performance.judged_at, time.perf_counter()
        effects = straggler_detector.judge(job, now)
        if job.performance.judged_at != before:
            job.performance.timed(time.perf_counter() - started)
        for effect in effects:
            self._deliver(job, effect)

    def _log_scores(self, job: Job, now: float) -> None:
        """Write the score report to the log of debug messages, once in the policy's report interval."""
        if job.performance.scores is None:
            return
        if now - self._scores_logged_at.setdefault(job.id, now) >= job.policy.report_interval:
            self._scores_logged_at[job.id] = now
            if text := scores_log(job, now):
                log.debug("job %s:\n%s", job.id, text)

    def _say(self, job: Job, level: int, line: str) -> None:
        """Log a line about a job, cut; :data:`LINES` of a job in a minute, of which senders can cause any number."""
        now = self.clock.now()
        began, said = self._said.get(job.id, (now, 0))
        if now - began >= LOG_INTERVAL:
            if said > LINES:
                log.warning("job %s: %d more lines are left out of this log", job.id, said - LINES)
            began, said = now, 0
        self._said[job.id] = began, said + 1
        if said < LINES:
            log.log(level, "%s", line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}...")

    def _deliver(self, job: Job, effect: Effect) -> None:
        for each in console.worded(job, effect):
            self._deliver_one(job, each)

    def _deliver_one(self, job: Job, effect: Effect) -> None:
        match effect:
            case Issue(directive=directive):
                found = f"job {job.id}: directive {directive.id}, {directive.kind}: {directive.reason}"
                self._say(job, logging.INFO, found)
                self._save_then_publish(job, directive)
            case Changed(incident=incident, message=message):
                if message:
                    self._say(job, logging.WARNING, f"job {job.id}: {message}")
                self.persistence.save_incident(incident)
            case Slowed(message=message):
                self.persistence.straggler_changed(job)
                if message:
                    self._say(job, logging.WARNING, f"job {job.id}: {message}")
            case KernelScoreRequest():
                self._score_kernels(job, effect)

    def _score_kernels(self, job: Job, request: KernelScoreRequest) -> None:
        """Score kernels on another thread when there are many: ingest must not wait for them."""
        if self._loop is None or request.median_RK.size <= INLINE_MEDIANS:
            job.performance.take_kernel_scores(kernel_scores(request))
            return
        future = self._loop.run_in_executor(None, kernel_scores, request)
        future.add_done_callback(
            lambda done: None if done.cancelled() else job.performance.take_kernel_scores(done.result())
        )

    def _save_then_publish(self, job: Job, directive: Directive) -> None:
        job_id, number = job.id, directive.id

        def publish() -> None:
            self.broker.publish(job_id, number)

        if (loop := self._loop) is None:
            publish()
            return
        self.persistence.save_directive(job, directive, self.clock.now(), lambda: _call_on(loop, publish))

    def close(self) -> None:
        """Save every job and close recorder, publishers, leases and database."""
        now = self.clock.now()
        with self._contained("merge the stored jobs", now):
            self.persistence.merge_pending(self.jobs, self.policy, now, self._before_merge)
        for job in () if self.read_only else self.jobs.values():
            with self._contained(f"save job {job.id}", now):
                self.persistence.save_all(job, now)
        with self._contained("end publishing", now):
            if self.publishing is not None:
                self.publishing.close(self.jobs.values(), now)
        with self._contained("end the recording", now):
            if self.recorder is not None:
                self.recorder.close(now)
        if self.repository is not None:
            if self.ownership is not None:
                self.repository.flush()
                self.ownership.close()
            self.repository.close()


def _replaces_a_crash(job: Job, event: JobEvent) -> bool:
    """Whether a message begins the attempt after a crash that has no incident yet, and would have none any more."""
    if not isinstance(event, ProcessEvent) or event.kind is not ProcessEventKind.STARTED:
        return False
    return event.attempt > job.attempt and job.open_incident is None and bool(failed_ranks(job.columns).any())


def _call_on(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: the monitor shuts down
        loop.call_soon_threadsafe(call)
