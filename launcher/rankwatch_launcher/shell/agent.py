"""torch's elastic agent, reduced to what starts ranks; :mod:`~rankwatch_launcher.shell.loop` runs the attempts.

How an attempt runs and ends
----------------------------
a place in a roster -> start ranks -> watch -> propose a decision -> the job's decision -> capture stacks -> kill
-> the next roster, or the outcome
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import PContext
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.launcher.api import LaunchConfig

from rankwatch.contract import env
from rankwatch.contract.text import one_line
from rankwatch_launcher import torch_compat
from rankwatch_launcher.coordination.rendezvous import Rendezvous, workers_of
from rankwatch_launcher.core.ending import KILL_SECONDS
from rankwatch_launcher.core.exits import RankExit
from rankwatch_launcher.core.state import AttemptState, Over, Site
from rankwatch_launcher.node.attempt import RankProcess
from rankwatch_launcher.options import Options
from rankwatch_launcher.outcome import FINISHED, Outcome
from rankwatch_launcher.prewarm.bootstrap import Bootstrap
from rankwatch_launcher.shell import workers
from rankwatch_launcher.shell.kept_output import OutputKeeper
from rankwatch_launcher.shell.loop import Loop, Surroundings
from rankwatch_launcher.shell.orphan_reaper import OrphanReaper
from rankwatch_launcher.shell.ranks import RankProcesses
from rankwatch_launcher.stacks.capture import STACK_SIGNAL
from rankwatch_launcher.torch_compat import DistError


class Agent(LocalElasticAgent):
    """Runs the attempts of one node until the job has finished, failed or been stopped."""

    def __init__(
        self,
        spec: WorkerSpec,
        config: LaunchConfig,
        options: Options,
        around: Surroundings,
        *,
        reaper: OrphanReaper,
        keeper: OutputKeeper,
        on_rendezvous: Callable[[Rendezvous], None],
    ) -> None:
        assert config.logs_specs is not None  # config_from_args() fills it in
        timeout = torch_compat.setting(config, "shutdown_timeout")
        newer = torch_compat.accepted(LocalElasticAgent.__init__, shutdown_timeout=timeout)
        specs, prefix = keeper.specs(config.logs_specs), config.log_line_prefix_template
        super().__init__(spec, specs, log_line_prefix_template=prefix, **newer)
        self.outcome = Outcome(FINISHED, 0)
        """How the job ended here, once :meth:`run` has returned."""
        self._options, self._around, self._specs = options, around, config.logs_specs
        self._signals, self._pool = around.signals, around.pool
        self._rendezvous_handler, self._on_rendezvous = around.rendezvous, on_rendezvous
        self._reaper, self._keeper = reaper, keeper
        self._ranks = RankProcesses(())
        self._starts = 0
        self._started_at = 0.0

    def kill_ranks(self) -> None:
        """Kill the ranks at once; for another thread, when the main thread may be blocked forever."""
        self._ranks.kill()
        self._ranks.wait_all(KILL_SECONDS)

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
        around, attempt = self._around, self._rendezvous_handler.attempt
        around.evidence.end()
        folder = around.files.prepare(attempt)
        around.session.prepared(folder)
        os.environ[env.ATTEMPT] = str(attempt)
        os.environ[env.SLOTS_DIR] = str(folder)
        os.environ[env.STACK_SIGNAL] = str(int(STACK_SIGNAL))
        # torch derives TORCHELASTIC_RESTART_COUNT, and the folder of the logs, from the remaining restarts.
        self._remaining_restarts = worker_group.spec.max_restarts - self._starts
        self._starts += 1
        self._started_at = time.monotonic()
        self._reaper.forget()
        torch_compat.remove_old_errors(self._specs)
        self._keeper.begin(attempt)
        bootstrap = Bootstrap(self._options.auto, self._options.stand_in, errors=True)
        with (
            self._signals.deferred(),
            workers.rank_handlers(self._pool, self._reaper.add, bootstrap, self._keeper.stream),
        ):
            pids: dict[int, int] = super()._start_workers(worker_group)
            ranks = [RankProcess(w.global_rank, w.local_rank, pids[w.local_rank]) for w in worker_group.workers]
            self._ranks = RankProcesses(ranks)
        started = around.files.started(ranks, worker_group.workers[0].world_size)
        around.evidence.begin(started)
        around.session.started(started)
        return pids

    def _invoke_run(self, role: str = "default") -> RunResult:  # noqa: ARG002
        try:
            while True:
                self._initialize_workers(self._worker_group)
                self._signals.polled = True
                ended = Loop(AttemptState(self._site()), self._ranks, self._pcontext, self._around, self).run()
                if not (isinstance(ended.phase, Over) and ended.phase.restart):
                    return self._result(ended)
        except (DistError, RendezvousError):
            # Without the store nothing can be agreed on. torch would give the ranks 30 s to exit.
            self.kill_ranks()
            raise

    # For the loop -----------------------------------------------------------------------------------------------------

    def _site(self) -> Site:
        options, rendezvous, me = self._options, self._rendezvous_handler, self._around.me
        name = options.rank_termination_signal
        return Site(
            me.name,
            me.host,
            me.hostname,
            rendezvous.attempt,
            tuple(worker.global_rank for worker in self._worker_group.workers),
            self._started_at,
            nodes=rendezvous.world_size,
            spares=options.spares > 0,
            first=rendezvous.attempt == 1 and self._starts == 1,
            stop_grace=options.stop_grace,
            shutdown_timeout=options.shutdown_timeout,
            node_timeout=options.node_timeout,
            kill_signal=signal.Signals[name] if name else signal.SIGKILL,
        )

    def stuck_seconds(self) -> float:  # noqa: D102
        limit = float(getattr(self, "_uninterruptible_state_timeout", 0))  # torch has the check since 2.13
        if limit > 0 and self._check_uninterruptible_state_timeout(self._worker_group, limit) is not None:
            return limit
        return 0.0

    def reap(self) -> None:  # noqa: D102
        self._shutdown(signal.SIGKILL, **torch_compat.accepted(LocalElasticAgent._shutdown, timeout=1))

    def _result(self, ended: AttemptState) -> RunResult:
        self.outcome = ended.outcome
        if ended.outcome.code == 0:  # also of a stop, if the ranks have saved
            self._worker_group.state = WorkerState.SUCCEEDED
            values = {w.global_rank: None for w in self._worker_group.workers}
            return RunResult(state=WorkerState.SUCCEEDED, return_values=values)
        self._worker_group.state = WorkerState.FAILED
        failures = {exit_.rank: _failure(exit_, self._pcontext) for exit_ in ended.exits if exit_.code != 0}
        return RunResult(state=WorkerState.FAILED, failures=failures)


def _failure(exit_: RankExit, context: PContext | None) -> ProcessFailure:
    """An exit as torch reports it.

    With error files of ``@record`` only: torch's table would repeat the tracebacks of all ranks, which are on the
    terminal. Of other exceptions it has the last line, in place of torch's advice to use ``@record``.
    """
    recorded = context is not None and exit_.error is not None and exit_.error.recorded
    file = context.error_files.get(exit_.local_rank, "") if context is not None and recorded else ""
    try:
        failure = ProcessFailure(exit_.local_rank, exit_.pid, exit_.code, file)
    except (ValueError, KeyError, TypeError):
        # The rank died while it wrote its error file.
        failure = ProcessFailure(exit_.local_rank, exit_.pid, exit_.code, "")
    if exit_.error is not None and not recorded:
        failure.message = one_line(exit_.error.message)
    return failure
