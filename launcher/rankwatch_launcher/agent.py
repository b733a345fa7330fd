"""The elastic agent of one node: torch's, with a loop of our own that looks before it kills.

How an attempt runs and ends
----------------------------
a place in a roster -> start -> watch -> (an :class:`~rankwatch_launcher.endings.End`) -> rule -> evidence -> kill ->
the next roster, or out.

The loop watches its ranks, what they ask for, the orders of the monitor, its own signals, and what the other launchers
ruled. Whichever comes first ends the attempt. The ruling is the whole job's (:mod:`~rankwatch_launcher.ledger`), so a
crash on one node ends the attempt on all of them, each of which takes its own evidence before it kills. A request to
save and stop is the whole job's too: the coordinator (:mod:`~rankwatch_launcher.members`) names a step ahead of all
ranks.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousError

from rankwatch.wire import environment
from rankwatch.wire.control import Directive
from rankwatch.wire.policy import Policy
from rankwatch.wire.vocabulary import AckState, DirectiveKind, ProcessEventKind
from rankwatch_launcher import agreements, endings, reasons
from rankwatch_launcher.agreements import Budget, Proposal, Ruling, StopRequest
from rankwatch_launcher.endings import End, Stopping
from rankwatch_launcher.evidence import STACK_SIGNAL
from rankwatch_launcher.exits import Exits
from rankwatch_launcher.log import logger
from rankwatch_launcher.node import Node
from rankwatch_launcher.options import Options
from rankwatch_launcher.outcome import CODE_FAILED, FAILED, FINISHED, PREEMPTED, STOPPED
from rankwatch_launcher.processes import RankProcess, RankProcesses
from rankwatch_launcher.rendezvous import Rendezvous, workers_of
from rankwatch_launcher.signals import Signals
from rankwatch_launcher.sweeper import Sweeper
from rankwatch_launcher.torch_seams import DistError

LOOP_SECONDS: Final = 0.2
"""The longest the loop sleeps; an exit or an order wakes it at once, so this only paces the questions to the store."""
NODES_A_SECOND: Final = 5000
"""Launchers that may ask one store in a second: with more than that, each asks more seldom."""
STUCK_SECONDS: Final = 1.0
"""How often ranks that are stuck in the kernel are looked for."""
ABORT_SECONDS: Final = 0.3
KILL_SECONDS: Final = 10.0
TERM_SECONDS: Final = 15.0
"""What ranks get between SIGTERM and SIGKILL when they are stopped by order."""


class Agent(LocalElasticAgent):
    """Runs the attempts of one node until the job has finished, failed or been stopped: ``epilogue`` says which."""

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs,
        *,
        options: Options,
        node: Node,
        rendezvous: Rendezvous,
        sweeper: Sweeper,
        signals: Signals,
        met: Callable[[Rendezvous], None],
        log_line_prefix_template: str | None = None,
        shutdown_timeout: int = 30,
    ) -> None:
        super().__init__(
            spec, logs_specs, log_line_prefix_template=log_line_prefix_template, shutdown_timeout=shutdown_timeout
        )
        self.node = node
        self.epilogue: tuple[str, str, int] = (FINISHED, "", 0)
        """How the job has ended here: state and exit code as in an ``Outcome``, and why."""
        self._options = options
        self._meeting = rendezvous
        self._met = met
        self._sweeper = sweeper
        self._signals = signals
        self._ranks = RankProcesses(())
        self._starts = 0
        self._stopping: Stopping | None = None
        self._answered = 0
        """Number of the last proposed stop step that was answered."""
        self._exits = Exits((), node.had_finished)

    # torch's seams ----------------------------------------------------------------------------------------------------

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        spec = worker_group.spec
        # Nothing is lost by a signal while no rank runs.
        self._signals.patient = False
        with self.record_duration("RENDEZVOUS"):
            place, info = self._meeting.next_attempt()
        worker_group.workers = workers_of(place, spec.local_world_size)
        assert info.bootstrap_store_info is not None
        group: Any = worker_group  # torch declares these as None
        group.store = info.store
        self._store = info.store  # type: ignore[assignment]  # torch declares it as None
        group.group_rank, group.group_world_size = place.group_rank, place.group_world_size
        group.master_addr = spec.master_addr or info.bootstrap_store_info.master_addr
        group.master_port = spec.master_port or info.bootstrap_store_info.master_port
        self._met(self._meeting)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        attempt = self._meeting.attempt
        folder = self.node.prepare(attempt)
        os.environ[environment.ATTEMPT] = str(attempt)
        os.environ[environment.SLOTS_DIR] = str(folder)
        os.environ[environment.STACK_SIGNAL] = str(int(STACK_SIGNAL))
        # torch derives TORCHELASTIC_RESTART_COUNT, and the folder of the logs, from what it thinks remains.
        self._remaining_restarts = worker_group.spec.max_restarts - self._starts
        self._starts += 1
        pids: dict[int, int] = super()._start_workers(worker_group)
        self._signals.install()  # torch has put its own handlers in place
        ranks = [RankProcess(w.global_rank, w.local_rank, pids[w.local_rank]) for w in worker_group.workers]
        self._sweeper.watch(pids.values())
        self._ranks = RankProcesses(ranks)
        self._exits, self._stopping, self._answered = Exits(ranks, self.node.had_finished), None, 0
        self.node.started(ranks, worker_group.workers[0].world_size)
        return pids

    def _invoke_run(self, role: str = "default") -> RunResult:  # noqa: ARG002
        try:
            while True:
                self._initialize_workers(self._worker_group)
                self._signals.patient = True
                end = self._watch()
                if end is None and (end := self._wait_for_peers()) is None:
                    return self._finished()
                if (result := self._close_attempt(end)) is not None:
                    return result
        except (DistError, RendezvousError):
            # The store is gone, and with it all agreement. torch would give the ranks 30 s to end.
            self._ranks.kill(KILL_SECONDS)
            raise

    # Watching ---------------------------------------------------------------------------------------------------------

    def _watch(self) -> End | None:
        """Wait until the attempt is over; None when all ranks here ended well."""
        ask_at = stuck_at = time.monotonic()
        pause = max(LOOP_SECONDS, self._meeting.world_size / NODES_A_SECOND)
        while True:
            ended = self._ranks.wait(LOOP_SECONDS, self.node.orders.wake)
            if (crash := self._note_exits(ended)) is not None:
                return crash
            if not self._ranks.alive():
                return self._after_last()
            if (end := self._obey() or self._listen()) is not None:
                return end
            now = time.monotonic()
            if now >= ask_at or self._signals.asked is not None:
                ask_at = now + pause
                if (end := self._follow()) is not None:
                    return end
            if now >= stuck_at:
                stuck_at = now + STUCK_SECONDS
                if self._stopping is None and (end := self._stuck()) is not None:
                    return end

    def _note_exits(self, ended: Sequence[RankProcess]) -> End | None:
        failed = []
        if any(process.code == -signal.SIGABRT for process in ended):
            # Whether the peers end well tells a crash in training from torch's abort when a finished process exits.
            ended = [*ended, *self._ranks.wait_all(ABORT_SECONDS)]
        for process in ended:
            exit_ = self._exits.note(process, self._pcontext)
            reason = reasons.exited(exit_, self.node.host)
            self.node.report(
                ProcessEventKind.EXITED,
                reason,
                rank=process.rank,
                local_rank=process.local_rank,
                pid=process.pid,
                exit_code=exit_.code if exit_.code >= 0 else None,
                signal=exit_.signal,
                message=exit_.first_line,
            )
            if exit_.code != 0:
                failed.append(exit_)
        if not failed:
            return None
        if self._stopping is not None:
            logger.info("%s, while saving and stopping", reasons.crashed(failed, self.node.host))
            return None
        return endings.by_crash(failed, self.node.name, self.node.host)

    def _after_last(self) -> End | None:
        """All ranks have ended; badly only when they were being stopped, since a crash ends the attempt at once."""
        stopping = self._stopping
        if stopping is None or not (bad := self._exits.bad()):
            return None
        reason = f"{stopping.reason}; {reasons.crashed(bad, self.node.host)} before it had saved"
        return End(agreements.STOP, reason, fault=False, incident=stopping.incident)

    def _obey(self) -> End | None:
        """What the monitor orders."""
        if (order := self.node.orders.take(self.node.attempt)) is not None:
            end = endings.by_order(order)
            if end is not None and order.kind is DirectiveKind.RESTART and not self._restarts_left():
                # Ordered, not forced by a crash: better to refuse than to end a job that may be well.
                self.node.orders.ack(order, AckState.REFUSED, "no restart is left (--max-restarts)")
                return None
            if end is not None:
                return end
            self._save_by_order(order)
        stopping = self._stopping
        if stopping is not None and time.monotonic() > stopping.until:
            reason = (
                f"{stopping.reason}; the ranks did not end within {stopping.grace:g} s of being asked to save and stop"
            )
            return End(agreements.STOP, reason, fault=False, incident=stopping.incident)
        return None

    def _listen(self) -> End | None:
        """What ranks here ask for, and what signals do."""
        if self._stopping is not None:
            return None
        readings = self.node.readings()
        for request in self.node.requests(readings):
            if request.action == endings.EXCLUDE_NODE:
                return endings.by_request(request, self.node.name, self.node.host)
            reason = reasons.rank_asks(request.rank, self.node.host, "for the job to stop", request.reason)
            self._ask_to_stop(reason, STOPPED)
        stop = self._signals.stop
        signalled = [reading.rank for reading in readings.values() if reading.stop_signalled]
        if stop is not None and signalled:
            self._ask_to_stop(reasons.rank_preempted(signalled[0], self.node.host, stop.name), PREEMPTED)
        if self._signals.asked is not None:
            self._ask_to_stop(reasons.preempted(self.node.host, self._signals.asked.name), PREEMPTED)
        return None

    def _ask_to_stop(self, reason: str, state: str) -> None:
        self._meeting.ledger.ask_to_stop(self._meeting.attempt, StopRequest(reason, self.node.name, state))
        self._meeting.members.nudge()

    def _follow(self) -> End | None:
        """What the other launchers ruled or agreed on."""
        proposal = self._meeting.ledger.proposal(self._meeting.attempt)
        if proposal is not None and proposal.number > self._answered:
            self._answered = proposal.number
            self._save(proposal)
        if self._stopping is None and (ruling := self._meeting.ended_elsewhere()) is not None:
            return endings.by_ruling(ruling)
        return None

    def _stuck(self) -> End | None:
        limit = self._uninterruptible_state_timeout
        if limit > 0 and self._check_uninterruptible_state_timeout(self._worker_group, limit) is not None:
            return End(agreements.FAIL, f"a rank on {self.node.host} is stuck in the kernel (state D) for {limit:g} s")
        return None

    def _wait_for_peers(self) -> End | None:
        """All ranks here ended well: wait for the other nodes, unless one of them fails and all must run again."""
        nodes = self._meeting.world_size
        if nodes == 1:
            return None
        until = time.monotonic() + self._exit_barrier_timeout
        name = f"finished/{self._meeting.attempt}"
        try:
            arrived = self._meeting.ledger.count(name)
            while arrived < nodes and time.monotonic() < until:
                if (ruling := self._meeting.ended_elsewhere()) is not None:
                    return endings.by_ruling(ruling) if ruling.verdict == agreements.RESTART else None
                if (order := self.node.orders.take(self.node.attempt)) is not None:
                    self.node.orders.ack(order, AckState.DONE, "the ranks here had ended already")
                time.sleep(LOOP_SECONDS)
                arrived = self._meeting.ledger.count(name, 0)
        except DistError as error:
            # The launcher that holds the store leaves when all have arrived, so the others may find it gone.
            logger.debug("the rendezvous store has gone: %s", error)
        return None

    # Saving and stopping ----------------------------------------------------------------------------------------------

    def _save_by_order(self, order: Directive) -> None:
        """A person's order, or the policy's: the monitor has named the step."""
        if order.stop_step is None:
            logger.info("saving and stopping: %s; the ranks are sent SIGTERM", order.reason)
            self._ranks.signal(signal.SIGTERM)
        else:
            agreed, furthest = self.node.set_stop_step(order.stop_step)
            if not agreed:
                why, passed = "a rank here has no slots: it did not call rankwatch.init()", None
                if furthest is not None and furthest >= order.stop_step:
                    why, passed = f"a rank here has completed step {furthest}", furthest
                self.node.orders.ack(order, AckState.REFUSED, why, passed)
                return
            logger.info("saving and stopping after step %d: %s", order.stop_step, order.reason)
        until = time.monotonic() + order.deadline
        self._stopping = Stopping(order.reason, until, order.deadline, incident=order.incident_id)
        self.node.orders.ack(order, AckState.DONE)

    def _save(self, proposal: Proposal) -> None:
        """A request of a launcher: the coordinator has named the step."""
        request, step, grace = proposal.request, proposal.step, self._options.stop_grace
        if step is None:
            logger.warning(
                "%s; the ranks are sent SIGTERM, since the script does not ask rankwatch.should_stop() on every rank",
                request.reason,
            )
            self._ranks.signal(signal.SIGTERM)
        else:
            agreed, furthest = self.node.set_stop_step(step)
            self._meeting.members.answer(proposal.number, agreed, furthest)
            if not agreed:
                return
            logger.warning("%s; all ranks save and stop after step %d, within %g s", request.reason, step, grace)
        if self._stopping is None:
            self.node.report(ProcessEventKind.STOPPING, request.reason)
        self._stopping = Stopping(request.reason, time.monotonic() + grace, grace, request.state)

    # Ending -----------------------------------------------------------------------------------------------------------

    def _budget(self) -> Budget:
        spec = self._worker_group.spec
        return self.node.budget(Budget(spec.max_restarts, Policy().changed(self._options.policy).max_no_progress))

    def _restarts_left(self) -> bool:
        return self._meeting.ledger.restarts() < self._budget().max_restarts

    def _close_attempt(self, end: End) -> RunResult | None:
        """End the attempt on this node; None when another one is to be started."""
        ruling = self._meeting.ledger.end_attempt(
            self._meeting.attempt,
            end.verdict,
            end.reason,
            by=self.node.name,
            budget=self._budget(),
            counted=end.counted,
            incident=end.incident,
            fault=end.fault,
            reached=self.node.reached(),
            code=end.code,
            exclude=end.exclude,
            avoid=end.avoid,
        )
        self._announce(ruling)
        if ruling.fault and not (end.incident is not None and self.node.captured(end.incident)):
            self.node.capture(end.capture_seconds, incident=end.incident, last=True)
        gentle = endings.signal_of(self._options.rank_termination_signal) or signal.SIGKILL
        if ruling.verdict == agreements.STOP:
            self._ranks.terminate(TERM_SECONDS)
        elif gentle is not signal.SIGKILL:
            self._ranks.terminate(TERM_SECONDS, gentle)
        for process in self._ranks.kill(KILL_SECONDS):
            logger.warning("rank %d (pid %d) is not gone %g s after SIGKILL", process.rank, process.pid, KILL_SECONDS)
        self._ranks.close()
        self._shutdown(signal.SIGKILL, timeout=1)
        self._answer(end, ruling)
        if ruling.verdict == agreements.RESTART:
            return None
        self._worker_group.state = WorkerState.FAILED
        return RunResult(state=WorkerState.FAILED, failures=self._exits.failures)

    def _announce(self, ruling: Ruling) -> None:
        attempt, incident = self._meeting.attempt, ruling.incident
        if ruling.verdict == agreements.RESTART:
            line = reasons.restarting(ruling.reason, attempt, ruling.used, ruling.max_restarts, incident)
            if not ruling.fault and not ruling.exclude:
                line = reasons.regrouping(ruling.reason, attempt)
            else:
                self.node.report(ProcessEventKind.RESTARTING, ruling.reason, incident_id=incident)
        elif ruling.verdict == agreements.FAIL:
            line = reasons.ending("failed", ruling.reason, incident)
            self.epilogue = (FAILED, ruling.reason, ruling.code)
        else:
            line = reasons.ending("stopped", ruling.reason, incident)
            state = self._stopping.state if self._stopping is not None else STOPPED
            self.epilogue = (state, ruling.reason, CODE_FAILED)
        logger.warning("%s", line)

    def _answer(self, end: End, ruling: Ruling) -> None:
        if end.directive is None:
            return
        refused = end.verdict == agreements.RESTART and ruling.verdict != agreements.RESTART
        state = AckState.REFUSED if refused else AckState.DONE
        self.node.orders.ack(end.directive, state, ruling.reason if refused else "")

    def _finished(self) -> RunResult:
        if self._stopping is not None and not self.node.complete():
            reason = self._stopping.reason
            logger.info("stopped: %s; all ranks here saved and ended with exit code 0", reason)
            self.epilogue = (self._stopping.state, reason, 0)
        self._ranks.close()
        self._worker_group.state = WorkerState.SUCCEEDED
        return RunResult(
            state=WorkerState.SUCCEEDED, return_values={w.global_rank: None for w in self._worker_group.workers}
        )
