"""The elastic agent of one node: torch's, with a loop of our own that looks before it kills.

How an attempt runs and ends
----------------------------
a place in a roster -> start -> watch -> (an :class:`~rankwatch_launcher.agent.attempt_end.End`) -> rule -> evidence ->
kill -> the next roster, or out.

The loop watches its ranks, what they ask for, the orders of the monitor, its own signals, and what the other launchers
ruled. Whichever comes first ends the attempt. The ruling is the whole job's
(:mod:`~rankwatch_launcher.coordination.attempt_log`), so a crash on one node ends the attempt on all of them, each of
which takes its own evidence before it kills. A request
to save and stop is the whole job's too: the coordinator (:mod:`~rankwatch_launcher.coordination.service`) names a step
ahead of all
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

from rankwatch.contract import env
from rankwatch.contract.enums import AckState, DirectiveKind, ProcessEventKind
from rankwatch.contract.policy import Policy
from rankwatch_launcher.agent import attempt_end, reasons, workers
from rankwatch_launcher.agent.attempt_end import End
from rankwatch_launcher.agent.exits import Exits
from rankwatch_launcher.agent.graceful_stop import Saving
from rankwatch_launcher.agent.orphan_reaper import Sweeper
from rankwatch_launcher.agent.processes import RankProcess, RankProcesses
from rankwatch_launcher.agent.signals import Signals
from rankwatch_launcher.agent.torch_compat import DistError
from rankwatch_launcher.cli.options import Options
from rankwatch_launcher.coordination import decisions
from rankwatch_launcher.coordination.decisions import Budget, Ruling
from rankwatch_launcher.coordination.rendezvous import Rendezvous, workers_of
from rankwatch_launcher.job.outcome import CODE_FAILED, CODE_RESULT_REJECTED, CODE_RESUME_ELSEWHERE, FAILED, FINISHED
from rankwatch_launcher.log import logger
from rankwatch_launcher.node.node import Node
from rankwatch_launcher.prewarm.bootstrap import FirstLine
from rankwatch_launcher.prewarm.pool import Standby
from rankwatch_launcher.stacks.capture import STACK_SIGNAL

LOOP_SECONDS: Final = 0.2
"""The longest the loop sleeps; an exit or an order wakes it at once, so this only paces the questions to the store."""
NODES_A_SECOND: Final = 5000
"""Launchers that may ask one store in a second: with more than that, each asks more seldom."""
STUCK_SECONDS: Final = 1.0
"""How often ranks that are stuck in the kernel are looked for."""
VERDICT_CODES: Final = (CODE_RESULT_REJECTED, CODE_RESUME_ELSEWHERE)
VERDICT_SECONDS: Final = 5.0
"""For the other ranks to end that leave together with one that found a result to be wrong."""
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
        standby: Standby | None = None,
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
        self._standby = standby
        self._signals = signals
        self._ranks = RankProcesses(())
        self._starts = 0
        self._saving = Saving(node, rendezvous, signals, self._ranks, options.stop_grace)
        self._exits = Exits((), node.had_finished)

    def kill_ranks(self) -> None:
        """End the ranks here at once; for a thread other than the main one, which may never come back from a call."""
        self._ranks.kill(KILL_SECONDS)

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
        os.environ[env.ATTEMPT] = str(attempt)
        os.environ[env.SLOTS_DIR] = str(folder)
        os.environ[env.STACK_SIGNAL] = str(int(STACK_SIGNAL))
        # torch derives TORCHELASTIC_RESTART_COUNT, and the folder of the logs, from what it thinks remains.
        self._remaining_restarts = worker_group.spec.max_restarts - self._starts
        self._starts += 1
        self._sweeper.forget()
        first_line = FirstLine(self._options.auto, self._options.stand_in)
        with self._signals.held(), workers.made_here(self._standby, self._sweeper.add, first_line):
            pids: dict[int, int] = super()._start_workers(worker_group)
            ranks = [RankProcess(w.global_rank, w.local_rank, pids[w.local_rank]) for w in worker_group.workers]
            self._ranks = RankProcesses(ranks)
        self._exits = Exits(ranks, self.node.had_finished)
        self._saving = Saving(self.node, self._meeting, self._signals, self._ranks, self._options.stop_grace)
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
            if (end := self._obey() or self._saving.listen(elsewhere=self._elsewhere())) is not None:
                return end
            if self._standby is not None:
                self._standby.tick()
            now = time.monotonic()
            if now >= ask_at or self._signals.asked is not None:
                ask_at = now + pause
                if (end := self._follow()) is not None:
                    return end
            if now >= stuck_at:
                stuck_at = now + STUCK_SECONDS
                if self._saving.stopping is None and (end := self._stuck()) is not None:
                    return end

    def _note_exits(self, ended: Sequence[RankProcess]) -> End | None:
        failed = []
        if any(process.code == -signal.SIGABRT for process in ended):
            # Whether the peers end well tells a crash in training from torch's abort when a finished process exits.
            ended = [*ended, *self._ranks.wait_all(ABORT_SECONDS)]
        if any(process.code in VERDICT_CODES for process in ended):
            # All ranks of the job end with it, and one among them has said why.
            ended = [*ended, *self._ranks.wait_all(VERDICT_SECONDS)]
        if ended:
            self.node.hear()  # why they have ended, if they said so
        for process in ended:
            spared = self._goes_on_without(process)
            exit_ = self._exits.note(process, self._pcontext, self.node.last_words(process), spared=spared)
            reason = (reasons.spared if spared else reasons.exited)(exit_, self.node.host)
            self.node.report(
                ProcessEventKind.EXITED,
                reason,
                rank=process.rank,
                local_rank=process.local_rank,
                pid=process.pid,
                exit_code=exit_.code if exit_.code >= 0 else None,
                signal=exit_.signal,
                message=exit_.first_line,
                spared=spared,
            )
            if spared:
                logger.warning("%s", reason)
            elif exit_.code != 0:
                failed.append(exit_)
        if not failed:
            return None
        end = attempt_end.by_crash(failed, self.node.name, self.node.host, elsewhere=self._elsewhere())
        if self._saving.stopping is not None and end.code != CODE_RESULT_REJECTED:
            logger.info("%s, while saving and stopping", reasons.crashed(failed, self.node.host))
            return None
        if end.code in VERDICT_CODES and not any(exit_.message for exit_ in failed):
            self._leave_the_word()
        return end

    def _goes_on_without(self, process: RankProcess) -> bool:
        """Whether a rank ended badly and the others have a reserve for it; when all here did, it is a crash."""
        if process.code == 0 or process.code in VERDICT_CODES or not self.node.expendable(process.local_rank):
            return False
        return any(other.code in (None, 0) for other in self._ranks.all if other is not process)

    def _leave_the_word(self) -> None:
        """Wait for the launcher whose rank found the result: it knows the reason, and its node is the one to avoid."""
        until = time.monotonic() + VERDICT_SECONDS
        while time.monotonic() < until and self._meeting.ledger.ruling(self._meeting.attempt) is None:
            time.sleep(LOOP_SECONDS)

    def _elsewhere(self) -> bool:
        """Whether the ranks of this node could run on another one."""
        return self._meeting.world_size > 1 or self._options.spares > 0

    def _after_last(self) -> End | None:
        """All ranks have ended; badly only when they were being stopped, since a crash ends the attempt at once."""
        stopping = self._saving.stopping
        if stopping is None or not (bad := self._exits.bad()):
            return None
        reason = f"{stopping.reason}; {reasons.crashed(bad, self.node.host)} before it had saved"
        return End(decisions.STOP, reason, fault=False, incident=stopping.incident, state=stopping.state)

    def _obey(self) -> End | None:
        """What the monitor orders."""
        if (order := self.node.orders.take(self.node.attempt)) is not None:
            end = attempt_end.by_order(order)
            if end is not None and order.kind is DirectiveKind.RESTART and not self._restarts_left():
                # Ordered, not forced by a crash: better to refuse than to end a job that may be well.
                self.node.orders.ack(order, AckState.REFUSED, "no restart is left (--max-restarts)")
                return None
            if end is not None:
                return end
            self._saving.by_order(order)
        return self._saving.overdue()

    def _follow(self) -> End | None:
        """What the other launchers ruled or agreed on."""
        try:
            self._saving.follow()
        except DistError:
            if self._saving.stopping is None:
                raise
            return None  # ranks that save need no store: whoever held it may have gone first
        if self._saving.stopping is None and (ruling := self._meeting.ended_elsewhere()) is not None:
            return attempt_end.by_ruling(ruling)
        return None

    def _stuck(self) -> End | None:
        limit = self._uninterruptible_state_timeout
        if limit > 0 and self._check_uninterruptible_state_timeout(self._worker_group, limit) is not None:
            return End(decisions.FAIL, f"a rank on {self.node.host} is stuck in the kernel (state D) for {limit:g} s")
        return None

    def _wait_for_peers(self) -> End | None:
        """All ranks here ended well: wait for the other nodes, as long as they take, unless one of them fails."""
        nodes = self._meeting.world_size
        if nodes == 1:
            return None
        saved = self._saving.stopping is not None
        name = f"finished/{self._meeting.attempt}"
        arrived = self._meeting.ledger.count(name)
        while arrived < nodes:
            if (ruling := self._meeting.ended_elsewhere()) is not None:
                # Ranks that have saved and ended need not run again because another node was lost on the way.
                return None if saved and ruling.verdict == decisions.RESTART else attempt_end.by_ruling(ruling)
            if (order := self.node.orders.take(self.node.attempt)) is not None:
                self.node.orders.ack(order, AckState.DONE, "the ranks here had ended already")
            self._saving.listen(elsewhere=False)
            time.sleep(max(LOOP_SECONDS, nodes / NODES_A_SECOND))
            arrived = self._meeting.ledger.count(name, 0)
        return None

    # Ending -----------------------------------------------------------------------------------------------------------

    def _budget(self) -> Budget:
        spec = self._worker_group.spec
        return self.node.budget(Budget(spec.max_restarts, Policy().changed(self._options.policy).max_no_progress))

    def _restarts_left(self) -> bool:
        return self._meeting.ledger.restarts() < self._budget().max_restarts

    def _close_attempt(self, end: End) -> RunResult | None:
        """End the attempt on this node; None when another one is to be started."""
        request = self._meeting.ledger.stop_request(self._meeting.attempt)
        if request is not None and end.verdict == decisions.RESTART and end.directive is None:
            end = attempt_end.while_stopping(end, request)
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
            state=end.state,
        )
        self._announce(ruling)
        if ruling.fault and not (end.incident is not None and self.node.captured(end.incident)):
            self.node.capture(end.capture_seconds, incident=end.incident, last=True)
        gentle = attempt_end.signal_of(self._options.rank_termination_signal) or signal.SIGKILL
        if ruling.verdict == decisions.STOP:
            self._ranks.terminate(TERM_SECONDS, futile=self._saving.only_noted)
        elif gentle is not signal.SIGKILL:
            self._ranks.terminate(TERM_SECONDS, gentle)
        for process in self._ranks.kill(KILL_SECONDS):
            logger.warning("rank %d (pid %d) is not gone %g s after SIGKILL", process.rank, process.pid, KILL_SECONDS)
        self._ranks.close()
        self._shutdown(signal.SIGKILL, timeout=1)
        self._answer(end, ruling)
        if ruling.verdict == decisions.RESTART:
            return None
        self._worker_group.state = WorkerState.FAILED
        return RunResult(state=WorkerState.FAILED, failures=self._exits.failures)

    def _announce(self, ruling: Ruling) -> None:
        attempt, incident = self._meeting.attempt, ruling.incident
        if ruling.verdict == decisions.RESTART:
            line = reasons.restarting(ruling.reason, attempt, ruling.used, ruling.max_restarts, incident)
            if not ruling.fault and not ruling.exclude:
                line = reasons.regrouping(ruling.reason, attempt)
            else:
                self.node.report(ProcessEventKind.RESTARTING, ruling.reason, incident_id=incident)
        elif ruling.verdict == decisions.FAIL:
            line = reasons.ending("failed", ruling.reason, incident)
            self.epilogue = (FAILED, ruling.reason, ruling.code)
        else:
            line = reasons.ending("stopped", ruling.reason, incident)
            self.epilogue = (ruling.state, ruling.reason, CODE_FAILED)
        logger.warning("%s", line)

    def _answer(self, end: End, ruling: Ruling) -> None:
        if end.directive is None:
            return
        refused = end.verdict == decisions.RESTART and ruling.verdict != decisions.RESTART
        state = AckState.REFUSED if refused else AckState.DONE
        self.node.orders.ack(end.directive, state, ruling.reason if refused else "")

    def _finished(self) -> RunResult:
        if self._saving.stopping is not None and not self.node.complete():
            reason = self._saving.stopping.reason
            logger.info("stopped: %s; all ranks here saved and ended with exit code 0", reason)
            self.epilogue = (self._saving.stopping.state, reason, 0)
        self._ranks.close()
        self._worker_group.state = WorkerState.SUCCEEDED
        return RunResult(
            state=WorkerState.SUCCEEDED, return_values={w.global_rank: None for w in self._worker_group.workers}
        )
