"""Runs one attempt: waits, turns what happens into events, does what the core answers. The launcher's only clock.

One ``poll`` waits for the ranks' exits, the monitor's directives and signals to the launcher; the store, the ranks'
slots and deadlines are looked at after each, five times a second at least.
"""

from __future__ import annotations

import collections
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from torch.distributed.elastic.multiprocessing import PContext

from rankwatch.contract import env
from rankwatch.contract.enums import DirectiveKind
from rankwatch.contract.messages import RankLog, RankStack
from rankwatch.contract.text import operands
from rankwatch.monitor_client import is_loopback
from rankwatch.recording.shared_slots import PHASE_SHUT_DOWN
from rankwatch_launcher.coordination.decisions import RESTART, RestartBudget, StopProposal
from rankwatch_launcher.coordination.membership import LOOP_SECONDS, poll_seconds
from rankwatch_launcher.coordination.rendezvous import Rendezvous
from rankwatch_launcher.core import attempt_end, effects, events
from rankwatch_launcher.core.exits import RankError, RankExit
from rankwatch_launcher.core.state import (
    AttemptState,
    Explaining,
    Over,
    Running,
    Settling,
    Terminating,
    WaitingForPeers,
)
from rankwatch_launcher.core.step import step, takes_directives
from rankwatch_launcher.log import event, logger, note
from rankwatch_launcher.node.attempt import RankProcess
from rankwatch_launcher.node.evidence import EvidenceTaker
from rankwatch_launcher.node.files import AttemptFiles
from rankwatch_launcher.node.identity import Identity
from rankwatch_launcher.node.session import MonitorSession
from rankwatch_launcher.outcome import PREEMPTED
from rankwatch_launcher.prewarm.pool import PrewarmPool
from rankwatch_launcher.shell.rank_error import read_error, redirected
from rankwatch_launcher.shell.rank_log import logs_of
from rankwatch_launcher.shell.ranks import RankProcesses
from rankwatch_launcher.shell.signals import Signals
from rankwatch_launcher.torch_compat import DistError

STUCK_SECONDS: Final = 1.0
"""How often ranks that are stuck in the kernel are looked for."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What one launcher has for all of its attempts."""

    me: Identity
    files: AttemptFiles
    evidence: EvidenceTaker
    session: MonitorSession
    rendezvous: Rendezvous
    signals: Signals
    budget: RestartBudget
    """What the launcher was configured with."""
    pool: PrewarmPool | None = None
    send_logs: bool = True
    drain: Callable[[], None] = lambda: None
    """Pass on what the ranks have printed."""
    clock: Callable[[], float] = time.monotonic


class Reaper(Protocol):
    """What holds the ranks' processes."""

    def stuck_seconds(self) -> float:
        """How long a rank has been stuck in the kernel, if that is too long; 0: none is."""

    def reap(self) -> None:
        """Close the logs and reap the ranks, which have been killed."""


class Loop:
    """One attempt on this node, from its start to its end."""

    def __init__(
        self,
        state: AttemptState,
        ranks: RankProcesses,
        context: PContext | None,
        around: Surroundings,
        reaper: Reaper,
    ) -> None:
        self.state = state
        self._ranks, self._context, self._around, self._reaper = ranks, context, around, reaper
        self._files, self._session, self._rendezvous = around.files, around.session, around.rendezvous
        self._clock = around.clock
        self._next_poll = self._next_stuck_check = self._clock()
        self._lost_before = False
        """The store did not respond to the last poll either."""
        # Exits and directives wake the loop at once: this only paces the calls to the store.
        self._store_pause = max(LOOP_SECONDS, poll_seconds(state.site.nodes))
        self._running_peers = list(range(1, state.site.nodes))
        self._logs: tuple[RankLog, ...] = ()
        self._error: DistError | None = None

    def run(self) -> AttemptState:
        """Run the attempt to its end.

        Raises:
            DistError: the store was lost; the ranks have been killed.
        """
        while not isinstance(self.state.phase, Over):
            timeout = max(0.0, min(LOOP_SECONDS, self.state.deadline - self._clock()))
            # A directive that is not taken now would wake the loop again and again.
            wake = self._session.directives.wake if takes_directives(self.state) else None
            if exited := self._ranks.wait(timeout, wake):
                self._take(self._exited(exited))
            self._look()
        if self.state.phase.lost and self._error is not None:
            raise self._error
        return self.state

    # Events -----------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """What has happened besides exits."""
        if takes_directives(self.state):
            self._take_directive()
            self._take_requests()
        work = self._files.progress().work if self.state.alone is not None else 0
        self._take(events.Tick(self._clock(), self._failing(), self._only_record_sigterm(), work))
        if self._around.pool is not None and isinstance(self.state.phase, Running):
            self._around.pool.tick()
        self._poll_store()
        if (now := self._clock()) >= self._next_stuck_check and isinstance(self.state.phase, Running):
            self._next_stuck_check = now + STUCK_SECONDS
            if seconds := self._reaper.stuck_seconds():
                self._take(events.Stuck(now, seconds))

    def _take(self, event: events.Event) -> None:
        """Take one event, with the answers to its effects."""
        ahead = collections.deque([event])
        while ahead:
            self.state, wanted = step(self.state, ahead.popleft())
            for effect in wanted:
                if (answer := self._carry_out(effect)) is not None:
                    ahead.append(answer)

    def _exited(self, exited: Sequence[RankProcess]) -> events.Exited:
        self._around.drain()  # what follows is logged below it
        requests = tuple(self._session.requests())  # the ranks may have explained their exits
        exits = tuple(self._exit(process, process.code or 0) for process in exited)
        return events.Exited(
            self._clock(),
            exits,
            requests,
            stepped=self._files.steps() is not None,
            complete=self._files.complete(),
        )

    def _exit(self, process: RankProcess, code: int) -> RankExit:
        error = self._rank_error(process) if code else None
        message = self._files.exit_reason(process) or (error.message if error is not None else "") if code else ""
        reading = self._files.readings().get(process.local_rank)
        finished = reading is not None and reading.phase == PHASE_SHUT_DOWN
        expendable = reading is not None and reading.expendable
        step = reading.iteration if reading is not None else None
        return RankExit(process.rank, process.local_rank, process.pid, code, message, finished, expendable, error, step)

    def _rank_error(self, process: RankProcess) -> RankError | None:
        """The exception that a rank has written; it may not have exited yet."""
        if self._context is None:
            return None
        stderr = redirected(self._context.stderrs, process.local_rank) if (process.code or 0) > 0 else ""
        return read_error(self._context.error_files.get(process.local_rank, ""), stderr)

    def _take_directive(self) -> None:
        if (directive := self._session.directives.take(self.state.site.attempt)) is None:
            return
        left = True
        if directive.kind is DirectiveKind.RESTART:
            try:
                left = self._rendezvous.store.restarts() < self._budget().max_restarts
            except DistError as error:
                self._take(self._lost(error))
                return
        self._take(events.Directed(self._clock(), directive, left))

    def _take_requests(self) -> None:
        if requests := self._session.requests():
            self._take(events.Requested(self._clock(), tuple(requests)))
        signals, now = self._around.signals, self._clock()
        if signals.stop is not None:
            for reading in self._files.readings().values():
                if reading.stop_signalled:
                    self._take(events.Signalled(now, signals.stop.name, reading.rank))
        if signals.stop_received is not None:
            self._take(events.Signalled(now, signals.stop_received.name))

    def _failing(self) -> bool:
        return isinstance(self.state.phase, Settling) and any(
            self._rank_error(process) is not None for process in self._ranks.alive()
        )

    def _only_record_sigterm(self) -> bool:
        """Whether every live rank only recorded SIGTERM (:mod:`rankwatch.liveness.stop_signal`)."""
        expected = self.state.stopping is not None or isinstance(self.state.phase, Terminating)
        if not expected or self._around.signals.stop is not signal.SIGTERM:
            return False
        readings = self._files.readings()
        left = [readings.get(process.local_rank) for process in self._ranks.alive()]
        return all(reading is not None and reading.stop_signalled for reading in left)

    # The store --------------------------------------------------------------------------------------------------------

    def _poll_store(self) -> None:
        """Follow the other launchers' decisions and agreements."""
        now = self._clock()
        hurried = isinstance(self.state.phase, Running) and self._around.signals.stop_received is not None
        if self.state.alone is not None or (now < self._next_poll and not hurried):
            return
        self._next_poll = now + self._store_pause
        try:
            for event in self._seen_in_store(now):
                self._take(event)
            self._lost_before = False
        except DistError as error:
            # Saving needs no store: the launcher that hosts it may have left first.
            ended, asked_again = self._rendezvous.host_has_ended(), self._lost_before
            self._lost_before = True
            if ended or asked_again:  # the sockets of a process that is killed close one after another
                self._take(self._lost(error, needed=False, ended=ended))

    def _seen_in_store(self, now: float) -> Iterator[events.Event]:
        store, attempt = self._rendezvous.store, self.state.site.attempt
        if isinstance(self.state.phase, Running) and (proposal := store.stop_proposal(attempt)) is not None:
            yield events.Proposed(now, proposal)
        if isinstance(self.state.phase, WaitingForPeers) and store.all_finished(
            attempt, self._rendezvous.rank, self._running_peers
        ):
            yield events.PeersFinished(now)
        followed = isinstance(self.state.phase, Running | Settling | Explaining) and self.state.stopping is None
        if (followed or isinstance(self.state.phase, WaitingForPeers)) and (
            decision := self._rendezvous.decision()
        ) is not None:
            yield events.Decided(now, decision)

    def _lost(self, error: DistError, *, needed: bool = True, ended: bool = True) -> events.StoreLost:
        self._error = error
        return events.StoreLost(self._clock(), needed, ended)

    # Effects ----------------------------------------------------------------------------------------------------------

    def _carry_out(self, effect: effects.Effect) -> events.Event | None:
        """Carry out one effect; return the answer if it has one."""
        try:
            return self._do(effect)
        except DistError as error:
            return self._lost(error)

    def _do(self, effect: effects.Effect) -> events.Event | None:
        session, rendezvous, attempt = self._session, self._rendezvous, self.state.site.attempt
        match effect:
            case effects.Log(text, warning):
                logger.log(logging.WARNING if warning else logging.DEBUG, "%s", text)
            case effects.Show(word, what, more):
                if word is not None:
                    event(word, what, *more)
                else:
                    note(what, *filter(None, (incidents_command(os.environ),)))
            case effects.Report(kind, reason, details):
                session.report(kind, reason, **details)
            case effects.Ack(directive, state, detail, furthest):
                session.directives.ack(directive, state, detail, furthest)
            case effects.RequestStop(request):
                rendezvous.store.request_stop(attempt, request)
                rendezvous.members.wake()
            case effects.AnswerStop(number, agreed, furthest):
                rendezvous.members.answer_stop(number, agreed, furthest)
            case effects.SetStopStep(number, origin):
                preempts = isinstance(origin, StopProposal) and origin.request.state == PREEMPTED
                agreed, furthest = self._files.set_stop_step(number, preempts=preempts)
                return events.StopStepSet(self._clock(), origin, agreed, furthest)
            case effects.PublishFinish():
                rendezvous.store.finish(attempt, rendezvous.rank)
                self._next_poll = self._clock()
            case effects.Propose():
                return self._propose(effect)
            case effects.Capture(deadline, incident):
                exited = self._tracebacks()
                self._around.evidence.capture(deadline, incident=incident, last=True, exited=exited, logs=self._logs)
                return events.Captured(self._clock())
            case effects.SignalRanks(number, ending):
                self._ranks.signal(number, ending=ending)
            case effects.Kill():
                self._ranks.kill()
            case effects.Close(reap):
                self._ranks.close()
                if reap:
                    self._reaper.reap()
        return None

    def _propose(self, effect: effects.Propose) -> events.Stored:
        store, attempt, decision = self._rendezvous.store, self.state.site.attempt, effect.decision
        request = store.stop_request(attempt)
        if request is not None and decision.verdict == RESTART and effect.yields:
            decision = attempt_end.during_stop(decision, request)
        me, steps = self._around.me, self._files.steps()
        stored = store.end_attempt(attempt, decision, by=me.name, budget=self._budget(), steps=steps)
        # Before this launcher writes to the same file.
        crashed = attempt_end.by_cause(self.state.errors()) if self._around.send_logs else []
        self._logs = logs_of(crashed, self._context, me.hostname, self._files.launchers) if crashed else ()
        return events.Stored(self._clock(), stored)

    def _budget(self) -> RestartBudget:
        return self._session.budget(self._around.budget)

    def _tracebacks(self) -> tuple[RankStack, ...]:
        """The exceptions of ranks that have exited or are about to.

        The latter are not asked for a stack: torch's control plane aborts a process whose interpreter ends meanwhile.
        """
        now = time.time()
        ended = {e.rank: e.error.stack(e.rank, e.pid, now) for e in self.state.errors() if e.error is not None}
        for process in self._ranks.alive():
            if (error := self._rank_error(process)) is not None:
                ended[process.rank] = error.stack(process.rank, process.pid, now)
        return tuple(ended.values())


def incidents_command(environment: Mapping[str, str]) -> str:
    """The command that shows the job's incidents; empty: no monitor is known. One on this host is found by itself."""
    job, url = environment.get(env.JOB_ID, ""), environment.get(env.MONITOR_URL, "")
    if not job:
        return ""
    return f"rankwatch incidents {operands(job)}" + (f" --monitor {url}" if url and not is_loopback(url) else "")
