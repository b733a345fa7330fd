"""The elastic agent of one node: torch's, with a loop of our own that looks before it kills.

How an attempt runs and ends
----------------------------
rendezvous -> start -> watch -> (an :class:`End`) -> rule -> evidence -> kill -> next rendezvous, or out.

The loop watches three things at once: its ranks, the orders of the monitor, and what the other launchers ruled.
Whichever comes first ends the attempt. The ruling is the whole job's (:mod:`~rankwatch_launcher.ledger`), so a crash
on one node ends the attempt on all of them, each of which takes its own evidence before it kills.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousError

from rankwatch.wire import environment
from rankwatch.wire.control import Directive
from rankwatch.wire.vocabulary import AckState, DirectiveKind, ProcessEventKind
from rankwatch_launcher import ledger, reasons
from rankwatch_launcher.evidence import STACK_SIGNAL
from rankwatch_launcher.ledger import Ruling
from rankwatch_launcher.log import logger
from rankwatch_launcher.node import Node
from rankwatch_launcher.processes import RankProcess, RankProcesses
from rankwatch_launcher.reasons import Exit
from rankwatch_launcher.rendezvous import Rendezvous
from rankwatch_launcher.sweeper import Sweeper
from rankwatch_launcher.torch_seams import DistError

LOOP_SECONDS: Final = 0.2
"""The longest the loop sleeps; an exit or an order wakes it at once, so this only paces the questions to the store."""
MEMBERS_SECONDS: Final = 1.0
"""How often the rendezvous is asked for nodes that wait to join."""
CRASH_CAPTURE_SECONDS: Final = 0.6
"""A crash is restarted within a second, so the survivors' stacks get less than that."""
ABORT_SECONDS: Final = 0.3
KILL_SECONDS: Final = 10.0
TERM_SECONDS: Final = 15.0
"""What ranks get between SIGTERM and SIGKILL when they are stopped by order."""


@dataclass(frozen=True, slots=True)
class End:
    """Why the attempt is over on this node."""

    verdict: str
    """What this node wants: ``restart``, ``fail`` or ``stop``; the ledger may rule otherwise."""
    reason: str
    counted: bool = True
    """Whether the restart is taken from the budget."""
    fault: bool = True
    """Whether something went wrong, so that evidence is worth taking."""
    incident: str | None = None
    directive: Directive | None = None
    capture_seconds: float = CRASH_CAPTURE_SECONDS


@dataclass
class Stopping:
    """A save-and-stop under way: the ranks are asked, and are given time."""

    directive: Directive
    until: float


class Agent(LocalElasticAgent):
    """Runs the attempts of one node until the job has finished, failed or been stopped: ``epilogue`` says which."""

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs,
        *,
        node: Node,
        rendezvous: Rendezvous,
        sweeper: Sweeper,
        met: Callable[[Rendezvous], None],
        log_line_prefix_template: str | None = None,
        shutdown_timeout: int = 30,
    ) -> None:
        super().__init__(
            spec, logs_specs, log_line_prefix_template=log_line_prefix_template, shutdown_timeout=shutdown_timeout
        )
        self.node = node
        self.epilogue: tuple[ProcessEventKind, str] = (ProcessEventKind.FINISHED, "")
        self._meeting = rendezvous
        self._met = met
        self._sweeper = sweeper
        self._ranks = RankProcesses(())
        self._starts = 0
        self._stopping: Stopping | None = None
        self._exits: list[Exit] = []
        self._failures: dict[int, ProcessFailure] = {}

    # torch's seams ----------------------------------------------------------------------------------------------------

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        # A stop that arrives now finds the main thread inside torch; a signal to ourselves is the way out of there.
        self.node.orders.interrupt = lambda: os.kill(os.getpid(), signal.SIGTERM)
        try:
            if self.node.orders.stop_waits:
                os.kill(os.getpid(), signal.SIGTERM)
            super()._rendezvous(worker_group)
        finally:
            self.node.orders.interrupt = None
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
        ranks = [RankProcess(w.global_rank, w.local_rank, pids[w.local_rank]) for w in worker_group.workers]
        self._sweeper.watch(pids.values())
        self._ranks = RankProcesses(ranks)
        self._exits, self._failures, self._stopping = [], {}, None
        self.node.started(ranks, worker_group.workers[0].world_size)
        return pids

    def _invoke_run(self, role: str = "default") -> RunResult:  # noqa: ARG002
        try:
            while True:
                self._initialize_workers(self._worker_group)
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
        members_at = time.monotonic() + MEMBERS_SECONDS
        while True:
            ended = self._ranks.wait(LOOP_SECONDS, self.node.orders.wake)
            if (crash := self._note_exits(ended)) is not None:
                return crash
            if not self._ranks.alive():
                return self._after_last()
            if (end := self._obey()) is not None:
                return end
            if (ruling := self._meeting.ended_elsewhere()) is not None and self._stopping is None:
                return End(ruling.verdict, ruling.reason, fault=ruling.fault, incident=ruling.incident)
            if time.monotonic() >= members_at:
                members_at = time.monotonic() + MEMBERS_SECONDS
                if self._stopping is None and (end := self._regroup_or_stuck()) is not None:
                    return end

    def _note_exits(self, ended: Sequence[RankProcess]) -> End | None:
        failed = []
        if any(process.code == -signal.SIGABRT for process in ended):
            # Whether the peers end well tells a crash in training from torch's abort when a finished process exits.
            ended = [*ended, *self._ranks.wait_all(ABORT_SECONDS)]
        for process in ended:
            exit_ = self._exit_of(process)
            self._exits.append(exit_)
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
            logger.info("%s, while stopping by order", reasons.crashed(failed, self.node.host))
            return None
        return End(ledger.RESTART, reasons.crashed(failed, self.node.host))

    def _after_last(self) -> End | None:
        """All ranks have ended; badly only when they were being stopped, since a crash ends the attempt at once."""
        if self._stopping is None or not self._failures:
            return None
        bad = [e for e in self._exits if e.code != 0]
        reason = f"{self._stopping.directive.reason}; {reasons.crashed(bad, self.node.host)} before it had saved"
        return End(ledger.STOP, reason, fault=False, incident=self._stopping.directive.incident_id)

    def _obey(self) -> End | None:
        if (order := self.node.orders.take(self.node.attempt)) is not None:
            end = _end_by(order)
            if end is not None and order.kind is DirectiveKind.RESTART and not self._restarts_left():
                # Ordered, not forced by a crash: better to refuse than to end a job that may be well.
                self.node.orders.ack(order, AckState.REFUSED, "no restart is left (--max-restarts)")
                return None
            if end is not None:
                return end
            self._begin_to_stop(order)
        if self._stopping is not None and time.monotonic() > self._stopping.until:
            order = self._stopping.directive
            reason = (
                f"{order.reason}; the ranks did not end within {order.deadline:g} s of being asked to save and stop"
            )
            return End(ledger.STOP, reason, fault=False, incident=order.incident_id)
        return None

    def _restarts_left(self) -> bool:
        return self._meeting.ledger.restarts() < self._worker_group.spec.max_restarts

    def _begin_to_stop(self, order: Directive) -> None:
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
        self._stopping = Stopping(order, time.monotonic() + order.deadline)
        self.node.orders.ack(order, AckState.DONE)

    def _regroup_or_stuck(self) -> End | None:
        if self._meeting.num_nodes_waiting() > 0:
            return End(ledger.RESTART, "another node waits to join", counted=False, fault=False)
        limit = self._uninterruptible_state_timeout
        if limit > 0 and self._check_uninterruptible_state_timeout(self._worker_group, limit) is not None:
            return End(ledger.FAIL, f"a rank on {self.node.host} is stuck in the kernel (state D) for {limit:g} s")
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
                    if ruling.verdict != ledger.RESTART:
                        return None
                    return End(ruling.verdict, ruling.reason, fault=False, incident=ruling.incident)
                if (order := self.node.orders.take(self.node.attempt)) is not None:
                    self.node.orders.ack(order, AckState.DONE, "the ranks here had ended already")
                time.sleep(LOOP_SECONDS)
                arrived = self._meeting.ledger.count(name, 0)
        except DistError as error:
            # The launcher that holds the store leaves when all have arrived, so the others may find it gone.
            logger.debug("the rendezvous store has gone: %s", error)
        return None

    # Ending -----------------------------------------------------------------------------------------------------------

    def _close_attempt(self, end: End) -> RunResult | None:
        """End the attempt on this node; None when another one is to be started."""
        ruling = self._meeting.ledger.end_attempt(
            self._meeting.attempt,
            end.verdict,
            end.reason,
            by=self.node.name,
            max_restarts=self._worker_group.spec.max_restarts,
            counted=end.counted,
            incident=end.incident,
            fault=end.fault,
        )
        self._announce(ruling)
        if ruling.fault and not (end.incident is not None and self.node.captured(end.incident)):
            self.node.capture(end.capture_seconds, incident=end.incident, last=True)
        if ruling.verdict == ledger.STOP:
            self._ranks.terminate(TERM_SECONDS)
        for process in self._ranks.kill(KILL_SECONDS):
            logger.warning("rank %d (pid %d) is not gone %g s after SIGKILL", process.rank, process.pid, KILL_SECONDS)
        self._ranks.close()
        self._shutdown(signal.SIGKILL, timeout=1)
        self._answer(end, ruling)
        if ruling.verdict == ledger.RESTART:
            return None
        self._worker_group.state = WorkerState.FAILED
        return RunResult(state=WorkerState.FAILED, failures=self._failures)

    def _announce(self, ruling: Ruling) -> None:
        attempt, incident = self._meeting.attempt, ruling.incident
        if ruling.verdict == ledger.RESTART:
            kind = ProcessEventKind.RESTARTING
            line = reasons.restarting(ruling.reason, attempt, ruling.used, ruling.max_restarts, incident)
            if not ruling.fault:
                line = reasons.regrouping(ruling.reason, attempt)
        else:
            kind = ProcessEventKind.FAILED if ruling.verdict == ledger.FAIL else ProcessEventKind.STOPPED
            line = reasons.ending(str(kind), ruling.reason, incident)
            self.epilogue = (kind, ruling.reason)
        logger.warning("%s", line)
        if kind is ProcessEventKind.RESTARTING and ruling.fault:
            self.node.report(kind, ruling.reason, incident_id=incident)

    def _answer(self, end: End, ruling: Ruling) -> None:
        if end.directive is None:
            return
        refused = end.verdict == ledger.RESTART and ruling.verdict != ledger.RESTART
        state = AckState.REFUSED if refused else AckState.DONE
        self.node.orders.ack(end.directive, state, ruling.reason if refused else "")

    def _finished(self) -> RunResult:
        if self._stopping is not None:
            reason = self._stopping.directive.reason
            logger.info("stopped: %s; all ranks here saved and ended with exit code 0", reason)
            self.epilogue = (ProcessEventKind.STOPPED, reason)
        self._ranks.close()
        self._worker_group.state = WorkerState.SUCCEEDED
        return RunResult(
            state=WorkerState.SUCCEEDED, return_values={w.global_rank: None for w in self._worker_group.workers}
        )

    def _exit_of(self, process: RankProcess) -> Exit:
        assert process.code is not None
        message = ""
        if process.code != 0:
            failure = self._failure_of(process, process.code)
            self._failures[process.rank] = failure
            # What @record wrote into the error file; torch calls it a string, and it mostly is a dictionary.
            data: Any = failure.error_file_data.get("message", "")
            message = str(data.get("message", "")) if isinstance(data, dict) else ""
        others = [r for r in self._ranks.all if r is not process]
        finished = self.node.had_finished(process.local_rank) or (bool(others) and all(r.code == 0 for r in others))
        return Exit(process.rank, process.local_rank, process.pid, process.code, message, finished)

    def _failure_of(self, process: RankProcess, code: int) -> ProcessFailure:
        files = self._pcontext.error_files if self._pcontext is not None else {}
        try:
            return ProcessFailure(process.local_rank, process.pid, code, files.get(process.local_rank, ""))
        except (ValueError, KeyError, TypeError):
            # The rank died while it wrote its error file.
            return ProcessFailure(process.local_rank, process.pid, code, "")


def _end_by(order: Directive) -> End | None:
    if order.kind is DirectiveKind.SAVE_AND_STOP:
        return None
    if order.kind is DirectiveKind.RESTART:
        return End(
            ledger.RESTART,
            order.reason,
            incident=order.incident_id,
            directive=order,
            capture_seconds=order.deadline,
        )
    return End(ledger.STOP, order.reason, fault=False, incident=order.incident_id, directive=order)
