"""The elastic agent of one node: torch's agent with its own loop, which captures stacks before it kills.

How an attempt runs and ends
----------------------------
a place in a roster -> start ranks -> watch -> propose a decision -> the job's decision -> capture stacks -> kill
-> the next roster, or the outcome

The loop watches the ranks' exits and requests, the monitor's directives, the launcher's signals, and the other
launchers' decisions; whichever comes first ends the attempt. The decision
(:class:`~rankwatch_launcher.coordination.decisions.AttemptDecision`) holds for the whole job: a crash on one node ends
the attempt on all of them, and each captures its own stacks before it kills. A graceful stop is agreed on for the whole
job, too (:mod:`~rankwatch_launcher.agent.graceful_stop`).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousError

from rankwatch.contract import env
from rankwatch.contract.enums import AckState, DirectiveKind, ProcessEventKind
from rankwatch.contract.messages import Directive, RankLog, RankStack
from rankwatch.contract.policy import Policy
from rankwatch_launcher import torch_compat
from rankwatch_launcher.agent import attempt_end, workers
from rankwatch_launcher.agent.graceful_stop import GracefulStop
from rankwatch_launcher.agent.orphan_reaper import OrphanReaper
from rankwatch_launcher.agent.processes import RankExit, RankExits, RankProcesses
from rankwatch_launcher.agent.rank_log import logs_of
from rankwatch_launcher.agent.signals import Signals
from rankwatch_launcher.coordination.decisions import FAIL, RESTART, STOP, AttemptDecision, RestartBudget
from rankwatch_launcher.coordination.membership import LOOP_SECONDS, poll_seconds
from rankwatch_launcher.coordination.rendezvous import Rendezvous, workers_of
from rankwatch_launcher.log import logger
from rankwatch_launcher.node.attempt import RankProcess
from rankwatch_launcher.node.node import Node
from rankwatch_launcher.options import Options
from rankwatch_launcher.outcome import (
    CODE_FAILED,
    CODE_RESULT_REJECTED,
    CODE_RESUME_ELSEWHERE,
    FAILED,
    FINISHED,
    Outcome,
)
from rankwatch_launcher.prewarm.bootstrap import Bootstrap
from rankwatch_launcher.prewarm.pool import PrewarmPool
from rankwatch_launcher.stacks.capture import STACK_SIGNAL
from rankwatch_launcher.torch_compat import DistError

STUCK_SECONDS: Final = 1.0
"""How often ranks that are stuck in the kernel are looked for."""
RERUN_CODES: Final = (CODE_RESULT_REJECTED, CODE_RESUME_ELSEWHERE)
"""Exit codes of the re-run state machine: all ranks of the job exit with them, and one has the reason."""
RERUN_SECONDS: Final = 5.0
"""How long ranks that exit with such a code, and the launcher that knows the reason, are waited for."""
ABORT_SECONDS: Final = 0.3
CAUSE_SECONDS: Final = 0.5
"""How long another rank, or launcher, may take to show the cause of exits that only follow from it."""
EXITING_SECONDS: Final = 2.0
"""How long ranks that have failed may take to exit."""
KILL_SECONDS: Final = 10.0
TERM_SECONDS: Final = 15.0
"""Between SIGTERM and SIGKILL when ranks are stopped on request."""
CRASH_CAPTURE_SECONDS: Final = 0.6
"""A crash is restarted within a second, so capturing the survivors' stacks gets less than that."""


class Agent(LocalElasticAgent):
    """Runs the attempts of one node until the job has finished, failed or been stopped."""

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs,
        *,
        options: Options,
        node: Node,
        rendezvous: Rendezvous,
        reaper: OrphanReaper,
        signals: Signals,
        on_rendezvous: Callable[[Rendezvous], None],
        pool: PrewarmPool | None = None,
        log_line_prefix_template: str | None = None,
        shutdown_timeout: int = 30,
    ) -> None:
        newer = torch_compat.accepted(LocalElasticAgent.__init__, shutdown_timeout=shutdown_timeout)
        super().__init__(spec, logs_specs, log_line_prefix_template=log_line_prefix_template, **newer)
        self.node = node
        self.outcome = Outcome(FINISHED, 0)
        """How the job ended here, once :meth:`run` has returned."""
        self._options = options
        self._rendezvous_handler = rendezvous
        self._on_rendezvous = on_rendezvous
        self._reaper = reaper
        self._pool = pool
        self._signals = signals
        self._ranks = RankProcesses(())
        self._starts = 0
        self._started_at = 0.0
        self._stop = GracefulStop(node, rendezvous, signals, self._ranks, options.stop_grace, options.shutdown_timeout)
        self._exits = RankExits((), node.had_shut_down)
        self._directive: Directive | None = None
        """The directive that ends the attempt, to be acknowledged."""

    def kill_ranks(self) -> None:
        """Kill the ranks at once; for another thread, when the main thread may be blocked forever."""
        self._ranks.kill(KILL_SECONDS)

    # Overrides of torch's agent ---------------------------------------------------------------------------------------

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        spec, handler = worker_group.spec, self._rendezvous_handler
        # No rank runs: a stop signal may interrupt.
        self._signals.polled = False
        with self.record_duration("RENDEZVOUS"):
            place, info = handler.next_attempt()
        with self.record_duration("ASSIGN_WORKER_RANKS"):
            worker_group.workers = workers_of(place, spec.local_world_size)
        assert info.bootstrap_store_info is not None
        group: Any = worker_group  # torch declares these as None
        group.store = info.store
        self._store = info.store  # type: ignore[assignment]  # torch declares it as None
        group.group_rank, group.group_world_size = place.group_rank, place.group_world_size
        group.master_addr = spec.master_addr or info.bootstrap_store_info.master_addr
        group.master_port = spec.master_port or info.bootstrap_store_info.master_port
        self._on_rendezvous(handler)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        attempt = self._attempt
        folder = self.node.prepare(attempt)
        os.environ[env.ATTEMPT] = str(attempt)
        os.environ[env.SLOTS_DIR] = str(folder)
        os.environ[env.STACK_SIGNAL] = str(int(STACK_SIGNAL))
        # torch derives TORCHELASTIC_RESTART_COUNT, and the folder of the logs, from the remaining restarts.
        self._remaining_restarts = worker_group.spec.max_restarts - self._starts
        self._starts += 1
        self._started_at = time.monotonic()
        self._reaper.forget()
        bootstrap = Bootstrap(self._options.auto, self._options.stand_in, errors=True)
        with self._signals.deferred(), workers.rank_handlers(self._pool, self._reaper.add, bootstrap):
            pids: dict[int, int] = super()._start_workers(worker_group)
            ranks = [RankProcess(w.global_rank, w.local_rank, pids[w.local_rank]) for w in worker_group.workers]
            self._ranks = RankProcesses(ranks)
        self._exits = RankExits(ranks, self.node.had_shut_down)
        self._stop = GracefulStop(
            self.node,
            self._rendezvous_handler,
            self._signals,
            self._ranks,
            self._options.stop_grace,
            self._options.shutdown_timeout,
        )
        self._directive = None
        self.node.started(ranks, worker_group.workers[0].world_size)
        return pids

    def _invoke_run(self, role: str = "default") -> RunResult:  # noqa: ARG002
        try:
            while True:
                self._initialize_workers(self._worker_group)
                self._signals.polled = True
                decision = self._watch()
                if decision is None and (decision := self._wait_for_peers()) is None:
                    return self._finish()
                if (result := self._end_attempt(decision)) is not None:
                    return result
        except (DistError, RendezvousError):
            # Without the store nothing can be agreed on. torch would give the ranks 30 s to exit.
            self._ranks.kill(KILL_SECONDS)
            raise

    @property
    def _attempt(self) -> int:
        return self._rendezvous_handler.attempt

    # Watching ---------------------------------------------------------------------------------------------------------

    def _watch(self) -> AttemptDecision | None:
        """Wait until the attempt is over; None when all ranks here exited with code 0."""
        next_call = next_stuck_check = time.monotonic()
        # Exits and directives wake the loop at once: this only paces the calls to the store.
        pause = max(LOOP_SECONDS, poll_seconds(self._rendezvous_handler.world_size))
        while True:
            exited = self._ranks.wait(LOOP_SECONDS, self.node.directives.wake)
            if (decision := self._on_exits(exited)) is not None:
                return decision
            if not self._ranks.alive():
                return self._after_last_exit()
            decision = self._on_directive() or self._stop.collect_requests(elsewhere=self._elsewhere())
            if decision is not None:
                return decision
            if self._pool is not None:
                self._pool.tick()
            now = time.monotonic()
            if now >= next_call or self._signals.stop_received is not None:
                next_call = now + pause
                if (decision := self._follow_others()) is not None:
                    return decision
            if now >= next_stuck_check:
                next_stuck_check = now + STUCK_SECONDS
                if self._stop.stopping is None and (decision := self._check_stuck()) is not None:
                    return decision

    def _on_exits(self, exited: Sequence[RankProcess]) -> AttemptDecision | None:
        if any(process.code == -signal.SIGABRT for process in exited):
            # The peers' exits tell a crash in training from torch's abort in the exit of a finished process.
            exited = [*exited, *self._ranks.wait_all(ABORT_SECONDS)]
        if any(process.code in RERUN_CODES for process in exited):
            exited = [*exited, *self._ranks.wait_all(RERUN_SECONDS)]
        else:
            exited = self._with_cause(exited)
        if exited:
            self.node.read_requests()  # the ranks may have explained their exits
        exits = []
        for process in exited:
            expected, notice = self._is_expected(process), self.node.exit_reason(process)
            exits.append(self._exits.record(process, self._pcontext, notice, expected=expected))
        crashed = attempt_end.by_cause([exit_ for exit_ in exits if exit_.code != 0 and not exit_.expected])
        left = self._exits.left() if crashed and crashed[0].consequence else []
        futile = self._futile_restart(crashed)
        # The monitor names a culprit as soon as it knows of a failure, so the likely cause goes first.
        causes = [*(exit_ for exit_ in exits if exit_ in left), *crashed]
        for exit_ in [*causes, *(exit_ for exit_ in exits if exit_ not in causes)]:
            self._report_exit(exit_, final=futile is not None and exit_ in crashed)
        if not crashed:
            return None
        # A rank may have requested a stop or its exclusion before it crashed; the request takes precedence.
        if (requested := self._stop.collect_requests(elsewhere=self._elsewhere())) is not None:
            return requested
        decision = attempt_end.on_crash(
            crashed, self.node.name, self.node.hostname, elsewhere=self._elsewhere(), futile=futile, left=left
        )
        if self._stop.stopping is not None and decision.code != CODE_RESULT_REJECTED:
            logger.info("%s, during a graceful stop", attempt_end.describe_crash(crashed, self.node.hostname))
            return None
        if decision.code in RERUN_CODES and not any(exit_.message for exit_ in crashed):
            self._wait_for_explanation(RERUN_SECONDS)
        elif crashed[0].consequence and self._rendezvous_handler.world_size > 1:
            self._wait_for_explanation(CAUSE_SECONDS)
        return decision

    def _with_cause(self, exited: Sequence[RankProcess]) -> Sequence[RankProcess]:
        """The exits with those of the next moments, if these may hold the cause, or show that a restart is futile."""
        failed = [process for process in exited if process.code]
        errors = [self._exits.error(process, self._pcontext) for process in failed]
        if not failed or self._stop.stopping is not None:
            return exited
        if all(error is not None and error.consequence for error in errors):
            exited = [*exited, *self._ranks.wait_all(CAUSE_SECONDS)]
            left = self._ranks.alive()
            if any(self._exits.error(process, self._pcontext) is not None for process in left):
                exited = [*exited, *self._ranks.wait_all(EXITING_SECONDS)]
            return exited
        missing = all(process.code == attempt_end.CODE_NO_SCRIPT for process in failed) and self._missing_script()
        late = time.monotonic() - self._started_at > attempt_end.START_SECONDS
        lasting = all(e is not None and not e.may_pass and (e.of_script or not late) for e in errors)
        if self._starting() and (missing or lasting):
            return [*exited, *self._ranks.wait_all(EXITING_SECONDS)]
        return exited

    def _starting(self) -> bool:
        """Whether this is the job's first attempt, and no rank here has completed a step."""
        return self._attempt == 1 and self._starts == 1 and self.node.steps() is None

    def _futile_restart(self, crashed: Sequence[RankExit]) -> attempt_end.Futile | None:
        if not crashed or self._stop.stopping is not None or not self._starting():
            return None
        elapsed = time.monotonic() - self._started_at
        return attempt_end.futile_restart(crashed, len(self._ranks.all), elapsed, self._missing_script())

    def _missing_script(self) -> str:
        return missing_script(self._worker_group.spec)

    def _report_exit(self, exit_: RankExit, *, final: bool) -> None:
        describe = attempt_end.describe_expected_exit if exit_.expected else attempt_end.describe_exit
        reason = describe(exit_, self.node.hostname)
        self.node.report(
            ProcessEventKind.EXITED,
            reason,
            rank=exit_.rank,
            local_rank=exit_.local_rank,
            pid=exit_.pid,
            exit_code=exit_.code if exit_.code >= 0 else None,
            signal=exit_.signal,
            message=exit_.first_line,
            spared=exit_.expected,
            final=final,
        )
        if exit_.expected:
            logger.warning("%s", reason)

    def _is_expected(self, process: RankProcess) -> bool:
        """Whether the other ranks continue without a rank that failed; when all here failed, it is a crash."""
        if process.code == 0 or process.code in RERUN_CODES or not self.node.expendable(process.local_rank):
            return False
        return any(other.code in (None, 0) for other in self._ranks.all if other is not process)

    def _wait_for_explanation(self, seconds: float) -> None:
        """Leave the decision to the launcher whose rank has the reason."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._rendezvous_handler.decision() is None:
            time.sleep(LOOP_SECONDS)

    def _elsewhere(self) -> bool:
        """Whether the ranks of this node could run on another one."""
        return self._rendezvous_handler.world_size > 1 or self._options.spares > 0

    def _after_last_exit(self) -> AttemptDecision | None:
        """All ranks have exited; with errors only during a graceful stop, since a crash ends the attempt at once."""
        stopping = self._stop.stopping
        if stopping is None or not (errors := self._exits.errors()):
            return None
        reason = f"{stopping.reason}; {attempt_end.describe_crash(errors, self.node.hostname)} before it had saved"
        return AttemptDecision(STOP, reason, fault=False, incident=stopping.incident, state=stopping.state)

    def _on_directive(self) -> AttemptDecision | None:
        """Carry out the monitor's next directive."""
        if (directive := self.node.directives.take(self.node.attempt)) is not None:
            decision = attempt_end.on_directive(directive)
            if decision is None:
                self._stop.on_directive(directive)
            elif directive.kind is DirectiveKind.RESTART and not self._restarts_left():
                # The job may be healthy: refusing is better than ending it.
                self.node.directives.ack(directive, AckState.REFUSED, "no restart is left (--max-restarts)")
                return None
            else:
                self._directive = directive
                return decision
        return self._stop.check_timeout()

    def _follow_others(self) -> AttemptDecision | None:
        """Follow the other launchers' decisions and agreements."""
        try:
            self._stop.follow_proposal()
        except DistError:
            if self._stop.stopping is None:
                raise
            return None  # saving needs no store: the launcher that hosts it may have left first
        return self._rendezvous_handler.decision() if self._stop.stopping is None else None

    def _check_stuck(self) -> AttemptDecision | None:
        limit = getattr(self, "_uninterruptible_state_timeout", 0)  # torch has the check since 2.13
        if limit > 0 and self._check_uninterruptible_state_timeout(self._worker_group, limit) is not None:
            reason = f"a rank on {self.node.hostname} has been stuck in the kernel (state D) for {limit:g} s"
            return AttemptDecision(FAIL, reason)
        return None

    def _wait_for_peers(self) -> AttemptDecision | None:
        """All ranks here exited with code 0: wait for the other nodes, without a limit, unless one of them fails."""
        handler, nodes = self._rendezvous_handler, self._rendezvous_handler.world_size
        if nodes == 1:
            return None
        saved = self._stop.stopping is not None
        handler.store.finish(self._attempt, handler.rank)
        running = list(range(1, nodes))
        while not handler.store.all_finished(self._attempt, handler.rank, running):
            if (decision := handler.decision()) is not None:
                # Ranks that have saved and stopped need not run again because another node was lost meanwhile.
                return None if saved and decision.verdict == RESTART else decision
            if (directive := self.node.directives.take(self.node.attempt)) is not None:
                self.node.directives.ack(directive, AckState.DONE, "the ranks here had already exited")
            self._stop.collect_requests(elsewhere=False)
            time.sleep(max(LOOP_SECONDS, poll_seconds(nodes)))
        return None

    # Ending -----------------------------------------------------------------------------------------------------------

    def _budget(self) -> RestartBudget:
        max_restarts = self._worker_group.spec.max_restarts
        return self.node.budget(RestartBudget(max_restarts, Policy().changed(self._options.policy).max_no_progress))

    def _restarts_left(self) -> bool:
        return self._rendezvous_handler.store.restarts() < self._budget().max_restarts

    def _end_attempt(self, proposed: AttemptDecision) -> RunResult | None:
        """End the attempt on this node as the job decides; None when another attempt follows."""
        store = self._rendezvous_handler.store
        request = store.stop_request(self._attempt)
        if request is not None and proposed.verdict == RESTART and self._directive is None:
            proposed = attempt_end.during_stop(proposed, request)
        decision = store.end_attempt(
            self._attempt, proposed, by=self.node.name, budget=self._budget(), steps=self.node.steps()
        )
        logs = self._logs()  # before this launcher writes to the same file
        self._announce(decision)
        if decision.fault and not (proposed.incident is not None and self.node.captured(proposed.incident)):
            deadline = self._directive.deadline if self._directive is not None else CRASH_CAPTURE_SECONDS
            exited = self._tracebacks()
            self.node.capture(deadline, incident=proposed.incident, last=True, exited=exited, logs=logs)
        self._kill(decision)
        self._acknowledge(proposed, decision)
        if decision.verdict == RESTART:
            return None
        self._worker_group.state = WorkerState.FAILED
        return RunResult(state=WorkerState.FAILED, failures=self._exits.failures)

    def _tracebacks(self) -> tuple[RankStack, ...]:
        """The exceptions of ranks that have exited or are about to.

        The latter are not asked for a stack: torch's control plane aborts a process whose interpreter ends meanwhile.
        """
        ended = {e.rank: e.error.stack(e.rank, e.pid) for e in self._exits.errors() if e.error is not None}
        for process in self._ranks.alive():
            if (error := self._exits.error(process, self._pcontext)) is not None:
                ended[process.rank] = error.stack(process.rank, process.pid)
        return tuple(ended.values())

    def _logs(self) -> tuple[RankLog, ...]:
        """The ends of the logs of ranks that crashed; empty where they are not to be sent."""
        crashed = attempt_end.by_cause(self._exits.errors()) if self._options.send_logs else []
        return logs_of(crashed, self._pcontext, self.node.hostname, self.node.launchers) if crashed else ()

    def _announce(self, decision: AttemptDecision) -> None:
        if decision.verdict == RESTART:
            if not attempt_end.is_regrouping(decision):
                self.node.report(ProcessEventKind.RESTARTING, decision.reason, incident_id=decision.incident)
        elif decision.verdict == FAIL:
            self.outcome = Outcome(
                FAILED, decision.code, decision.reason, cause=decision.cause, no_restart=decision.no_restart
            )
        else:
            self.outcome = Outcome(decision.state, CODE_FAILED, decision.reason)
        logger.warning("%s", attempt_end.describe_end(decision, self._attempt))
        if crashed := attempt_end.by_cause(self._exits.errors()):
            logger.warning("%s", attempt_end.describe_place(crashed[0]))

    def _kill(self, decision: AttemptDecision) -> None:
        name = self._options.rank_termination_signal
        number = signal.Signals[name] if name else signal.SIGKILL
        if decision.verdict == STOP:
            self._ranks.terminate(self._stop.term_seconds(TERM_SECONDS), futile=self._stop.sigterm_ignored)
        elif number is not signal.SIGKILL:
            self._ranks.terminate(self._stop.term_seconds(TERM_SECONDS), number)
        for process in self._ranks.kill(KILL_SECONDS):
            logger.warning("rank %d (pid %d) still exists %g s after SIGKILL", process.rank, process.pid, KILL_SECONDS)
        self._ranks.close()
        self._shutdown(signal.SIGKILL, **torch_compat.accepted(LocalElasticAgent._shutdown, timeout=1))

    def _acknowledge(self, proposed: AttemptDecision, decision: AttemptDecision) -> None:
        if self._directive is None:
            return
        refused = proposed.verdict == RESTART and decision.verdict != RESTART
        state = AckState.REFUSED if refused else AckState.DONE
        self.node.directives.ack(self._directive, state, decision.reason if refused else "")

    def _finish(self) -> RunResult:
        stopping = self._stop.stopping
        if stopping is not None and not self.node.complete():
            logger.info("stopped: %s", attempt_end.describe_stopped(stopping.reason, by_signal=stopping.by_signal))
            self.outcome = Outcome(stopping.state, 0, stopping.reason)
        self._ranks.close()
        self._worker_group.state = WorkerState.SUCCEEDED
        return RunResult(
            state=WorkerState.SUCCEEDED, return_values={w.global_rank: None for w in self._worker_group.workers}
        )


def missing_script(spec: WorkerSpec) -> str:
    """The script's path if the ranks are Python and it does not exist; empty: it does, or it is no file (``-m``)."""
    arguments = list(spec.args)
    if spec.entrypoint != os.getenv("PYTHON_EXEC", sys.executable):
        return ""
    while arguments and arguments[0] in ("-u",):
        arguments.pop(0)
    script = str(arguments[0]) if arguments else ""
    return script if script and not script.startswith("-") and not os.path.exists(script) else ""
