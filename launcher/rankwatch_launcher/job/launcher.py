"""Wires and runs one launcher: files, monitor, membership, agent. Replaces torch's ``launch_agent``."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch.distributed.elastic import events, metrics
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.metrics.api import MetricsConfig
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.launcher.api import LaunchConfig

from rankwatch.contract import env as environment
from rankwatch.contract.enums import AckState, ConsoleWord, ProcessEventKind
from rankwatch.contract.messages import FAULTS
from rankwatch.contract.policy import Policy
from rankwatch.faults.spec import VARIABLE
from rankwatch_launcher import torch_compat
from rankwatch_launcher.coordination.decisions import RestartBudget, StopRequest
from rankwatch_launcher.coordination.membership import Loss, Member, MembershipRules, Place
from rankwatch_launcher.coordination.rendezvous import Interrupted, Rendezvous
from rankwatch_launcher.coordination.service import LauncherCalls, MembershipService
from rankwatch_launcher.core import attempt_end
from rankwatch_launcher.job import closing_summary
from rankwatch_launcher.job.endings import ENDINGS, Whereabouts, outcome_of, store_timeout_reason
from rankwatch_launcher.job.node_gate import gate_of, measure_pairs
from rankwatch_launcher.job.pair_check import Attendance
from rankwatch_launcher.log import event, logger
from rankwatch_launcher.monitor.discovery import MonitorDiscovery
from rankwatch_launcher.node import topology
from rankwatch_launcher.node.evidence import EvidenceTaker
from rankwatch_launcher.node.files import AttemptFiles
from rankwatch_launcher.node.identity import Identity
from rankwatch_launcher.node.learned_limits import LearnedLimitsFile
from rankwatch_launcher.node.rank_output import RankOutput
from rankwatch_launcher.node.session import MonitorSession
from rankwatch_launcher.options import Options
from rankwatch_launcher.outcome import (
    CODE_FAILED,
    FAILED,
    FINISHED,
    PREEMPTED,
    STOPPED,
    Outcome,
    write_finished_flag,
)
from rankwatch_launcher.prewarm.pool import PrewarmPool
from rankwatch_launcher.schedulers import kubernetes, slurm
from rankwatch_launcher.shell.agent import Agent
from rankwatch_launcher.shell.kept_output import OutputKeeper
from rankwatch_launcher.shell.loop import Surroundings
from rankwatch_launcher.shell.orphan_reaper import OrphanReaper
from rankwatch_launcher.shell.rank_log import log_facts
from rankwatch_launcher.shell.signals import Signals

T = TypeVar("T")

JOIN_SECONDS: Final = 600.0
LAST_CALL_SECONDS: Final = 30.0
"""torch's defaults of ``--rdzv-conf join_timeout`` and ``last_call_timeout``."""
LEAVE_SECONDS: Final = 30.0
"""How long the launcher of the store or the monitor waits for the others to leave: longer than ending ranks takes."""

END_EVENTS: Final = {
    FINISHED: ProcessEventKind.FINISHED,
    FAILED: ProcessEventKind.FAILED,
    STOPPED: ProcessEventKind.STOPPED,
    PREEMPTED: ProcessEventKind.STOPPED,
}

NEWER_FIELDS: Final = (
    "event_log_handler",
    "numa_options",
    "duplicate_stdout_filters",
    "duplicate_stderr_filters",
    "virtual_local_rank",
)
"""Fields of ``LaunchConfig`` handed to ``WorkerSpec`` where torch has them; each came after 2.6."""


class Launcher:
    """One launcher from its start to its outcome."""

    def __init__(self, options: Options, config: LaunchConfig, learned_limits: LearnedLimitsFile | None = None) -> None:
        """``learned_limits`` has been read already."""
        self._options, self._config = options, config
        self._learned_limits = learned_limits
        self.outcome = Outcome(FAILED, CODE_FAILED, "the launcher itself has failed; see its log")
        """How it ended, once :meth:`run` has returned or raised."""
        self.summary: closing_summary.Closing | None = None
        """The last lines for the console; empty if another launcher has them."""

    def run(self, entrypoint: str, arguments: Sequence[str]) -> None:
        """Run the ranks of this node until the job ends.

        Raises:
            ChildFailedError: ranks of this node failed and no restart was left.
        """
        os.environ[torch_compat.SIGNALS] = torch_compat.setting(self._config, "signals_to_handle")
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # each attempt's ranks get a new store
        metrics.initialize_metrics(MetricsConfig(self._config.metrics_cfg))
        with contextlib.ExitStack() as stack:
            launch = Launch(self, self._options, self._config, self._learned_limits, stack)
            failures = launch.run(entrypoint, arguments)
        if failures:
            raise ChildFailedError(script_name(entrypoint, arguments), failures)


class Launch:
    """What one launcher holds while it runs; ``stack`` closes all of it, in the reverse order of its making.

    Files in /dev/shm outlive the process: they are removed also after a start that failed.
    """

    def __init__(
        self,
        launcher: Launcher,
        options: Options,
        config: LaunchConfig,
        learned_limits: LearnedLimitsFile | None,
        stack: contextlib.ExitStack,
    ) -> None:
        self._launcher, self._options, self._config, self._stack = launcher, options, config, stack
        specs = _present(config.logs_specs)
        stack.callback(torch_compat.remove_empty_logs, specs)
        self.me = Identity.of(os.environ)
        self.files = AttemptFiles(config.nproc_per_node)
        stack.callback(self.files.close)
        self.files.launchers = config.min_nodes
        self.evidence = EvidenceTaker(self.me.name, self.files)
        self.output = RankOutput(self.me.name, sent=options.send_logs)
        self.keeper = OutputKeeper(self.output, options.keep_output_mib << 20)
        stack.callback(self.keeper.close)
        self.session = MonitorSession(
            self.me,
            self.files,
            self.evidence,
            job_name=options.job_name,
            policy=options.policy,
            learned_limits=learned_limits,
            output=self.output,
        )
        self.session.min_nodes = config.min_nodes
        versions = {"torch": str(torch.__version__), "python": sys.version.split()[0]}
        run = torch_compat.run_folder(specs, config.run_id)
        logs = log_facts(torch_compat.redirected_into(specs), run, kept=self.keeper.folder, sent=options.send_logs)
        faults = {FAULTS: given} if (given := os.environ.get(VARIABLE)) else {}
        self.session.facts = versions | faults | logs | slurm.facts(os.environ) | kubernetes.facts(os.environ)
        self.session.launch = options.launch
        self.session.topology = topology.labels(options.topology_label, os.environ)
        stop_signal = signal.Signals[options.stop_signal] if options.stop_signal else None
        handled = torch_compat.setting(config, "signals_to_handle")
        self.signals = Signals(handled, stop_signal, self.session.directives.wake_up)
        self._budget = RestartBudget(config.max_restarts, Policy().changed(options.policy).max_no_progress)
        self._event: Callable[[], Any] | None = None
        """Makes torch's event about the end."""
        self._store_lost = False

    def run(self, entrypoint: str, arguments: Sequence[str]) -> dict[int, ProcessFailure]:
        """Run the attempts; return the ranks that failed the job."""
        options, config, stack = self._options, self._config, self._stack
        self.signals.install()
        if self.signals.stop is not None and "SLURM_JOB_ID" in os.environ:
            # Slurm signals every process of a step: the ranks must handle the signal as the launcher does.
            os.environ.setdefault(environment.STOP_SIGNAL, str(int(self.signals.stop)))
        self.rendezvous = rendezvous_of(config)
        stack.callback(self.rendezvous.shutdown)
        reaper = OrphanReaper(self.files.folder.path)
        stack.callback(reaper.dismiss)
        self.discovery = MonitorDiscovery(options, self.session.connect, config.rdzv_endpoint, self.session)
        stack.callback(self.discovery.close)
        stack.callback(self._leave)
        stack.callback(self.session.close)
        stack.callback(self.evidence.close)
        stack.callback(self._conclude)
        self.rendezvous.on_standby = self._on_standby
        self.rendezvous.interrupted = interruption(options, self.me, self.session, self.rendezvous, self.signals)
        self.rendezvous.gate = self.gate = gate_of(options, self.me, self.files, self.session)
        if self.gate is not None:
            stack.callback(self.gate.close)
        pool = PrewarmPool(options.prewarm, self.files.readings) if options.prewarm is not None else None
        if pool is not None:
            stack.callback(pool.close)
        stack.callback(self.signals.ignore)  # what follows is bounded in time, and must be completed
        around = Surroundings(
            self.me,
            self.files,
            self.evidence,
            self.session,
            self.rendezvous,
            self.signals,
            self._budget,
            pool=pool,
            send_logs=options.send_logs,
            drain=self.keeper.drain,
        )
        spec = spec_of(config, entrypoint, arguments, self.rendezvous)
        tell = self.discovery.on_rendezvous
        agent = Agent(spec, config, options, around, reaper=reaper, keeper=self.keeper, on_rendezvous=tell)
        if missing := [name for name in torch_compat.PRIVATE_ATTRIBUTES if not hasattr(agent, name)]:
            raise RuntimeError(f"torch {torch.__version__} lacks {', '.join(missing)} on its agent")
        self._event = agent.get_event_failed
        try:
            if self.rendezvous.alone:
                self.discovery.begin_alone()
            self._join(agent.kill_ranks)
            result = agent.run()
        except ENDINGS as raised:
            self._end_by(raised)
            return {}
        self._launcher.outcome = replace(agent.outcome, complete=self.files.complete())
        self._event = agent.get_event_succeeded
        with contextlib.suppress(torch_compat.DistError):  # the launcher that hosts the store may have left first
            self.rendezvous.store.close(self._launcher.outcome)
        return dict(result.failures) if result is not None and self._launcher.outcome.state == FAILED else {}

    def end_without_store(self, kill_ranks: Callable[[], object], silence: float, links: frozenset[str]) -> None:
        """End this process from another thread.

        The store's host is frozen or unreachable, and the main thread may be blocked in a call to it forever.
        """
        self._store_lost = True
        reason = store_timeout_reason(self._config.rdzv_endpoint, self.me.host, silence, links)
        self._launcher.outcome = Outcome(FAILED, CODE_FAILED, reason)
        logger.error("%s", reason)
        try:
            kill_ranks()
            self._stack.close()
        except Exception:  # noqa: BLE001  # the exit below must be reached
            logger.exception("ending without the store: one step failed")
        finally:
            os._exit(CODE_FAILED)

    def _end_by(self, raised: BaseException) -> None:
        directive = self.session.directives.pending_stop() if isinstance(raised, Interrupted) else None
        at = Whereabouts(
            self.me.host,
            self._config.rdzv_endpoint,
            self.rendezvous.standing_by,
            self.signals.stop,
            self.signals.stop_received,
            directive,
        )
        self._launcher.outcome, level, text = outcome_of(raised, at)
        if level == logging.WARNING:
            event(ConsoleWord.STOP, text)
        else:
            logger.log(level, "%s", text)
        if directive is not None and at.received is None:
            self.session.directives.ack(directive, AckState.DONE, "no rank ran")
            if self.rendezvous.joined:
                self.rendezvous.store.close(self._launcher.outcome)

    # At the end -------------------------------------------------------------------------------------------------------

    def _conclude(self) -> None:
        """Complete the outcome, and tell the monitor and the next launch."""
        options, launcher = self._options, self._launcher
        if not self._store_lost:
            if self._event is not None:
                events.record(self._event(), torch_compat.setting(self._config, "event_log_handler"))
            launcher.outcome = replace(launcher.outcome, **job_record(self.rendezvous, self.files))
        launcher.outcome = outcome = replace(launcher.outcome, job_id=self.discovery.job_id)
        kind = END_EVENTS[outcome.state]
        self.session.report(kind, outcome.reason, **outcome.failure())
        if outcome.state == FINISHED:
            self.session.learned_limits.finish()
        write_finished_flag(outcome, options.finished_flag, complete_on_success=options.complete_on_success)
        if options.outcome:
            # Launchers that share a folder and a command line must not write the same file.
            path = Path(options.outcome.replace("{node}", self.me.host))
            try:
                outcome.write(path)
            except OSError as error:
                logger.error("the outcome cannot be written to %s: %s", path, error.strerror or error)

    def _leave(self) -> None:
        """Leave the other launchers, after them if they need the store or the monitor that runs here."""
        rendezvous, discovery, outcome = self.rendezvous, self.discovery, self._launcher.outcome
        if self._store_lost:
            return
        if rendezvous.joined:
            with contextlib.suppress(torch_compat.DistError):
                rendezvous.members.leave(outcome.reason, timeout=LEAVE_SECONDS, needed=discovery.holds_monitor)
        # Each launcher of a job has a console: one speaks for the job.
        if discovery.holds_monitor or rendezvous.alone or (rendezvous.attempt > 0 and rendezvous.rank == 0):
            self._launcher.summary = closing_summary.summary(outcome, discovery)

    # Membership -------------------------------------------------------------------------------------------------------

    def _on_standby(self, place: Place) -> None:
        """This node runs no ranks: it is a spare, or parked."""
        self.evidence.end()
        self.files.leave()
        self.session.role = place.role, place.reason
        self.signals.polled = self.rendezvous.members.holds_store
        self.discovery.on_standby(self.rendezvous)

    def _join(self, kill_ranks: Callable[[], object]) -> None:
        config, options, session = self._config, self._options, self.session
        rules = MembershipRules(
            config.min_nodes,
            config.max_nodes,
            options.node_timeout,
            float(config.rdzv_configs.get("last_call_timeout", LAST_CALL_SECONDS)),
            by_topology=config.rdzv_backend != "static",
        )
        me = Member(
            self.me.name,
            self.me.host,
            config.nproc_per_node,
            config.role,
            preferred_rank=preferred_rank(config, os.environ),
            checks=self.gate is not None,
            topology=session.topology,
        )
        if self.gate is not None and options.node_check == "pairs" and config.max_nodes > 1:
            longest = float(config.rdzv_configs.get("join_timeout", JOIN_SECONDS))
            expected = Attendance(config.min_nodes, config.max_nodes + options.spares, rules.last_call, longest)
            self.rendezvous.before_joining = partial(measure_pairs, config.run_id, me, expected, self.gate)

        def on_lost(loss: Loss, attempt: int) -> None:
            logger.warning("%s", loss.text)
            session.report(ProcessEventKind.NODE_LOST, loss.why, lost_node=loss.member.node, attempt=attempt)

        def make(store: torch_compat.Store, holds_store: bool) -> MembershipService:
            return MembershipService(
                store,
                config.run_id,
                me,
                rules,
                LauncherCalls(
                    budget=lambda: session.budget(self._budget),
                    progress=self.files.progress,
                    on_lost=on_lost,
                    on_store_timeout=partial(self.end_without_store, kill_ranks),
                ),
                holds_store=holds_store,
            )

        self.rendezvous.join(make)


def rendezvous_of(config: LaunchConfig) -> Rendezvous:
    """This launcher's way into the attempts."""
    return Rendezvous(
        RendezvousParameters(
            backend=config.rdzv_backend,
            endpoint=config.rdzv_endpoint,
            run_id=config.run_id,
            min_nodes=config.min_nodes,
            max_nodes=config.max_nodes,
            local_addr=config.local_addr,
            **config.rdzv_configs,
        ),
        join_timeout=float(config.rdzv_configs.get("join_timeout", JOIN_SECONDS)),
    )


def spec_of(config: LaunchConfig, entrypoint: str, arguments: Sequence[str], rendezvous: Rendezvous) -> WorkerSpec:
    """The ranks of this node, for torch's agent."""
    return WorkerSpec(
        role=config.role,
        local_world_size=config.nproc_per_node,
        entrypoint=entrypoint,
        args=tuple(arguments),
        rdzv_handler=rendezvous,
        max_restarts=config.max_restarts,
        monitor_interval=config.monitor_interval,
        local_addr=config.local_addr,
        **torch_compat.fields(config, *NEWER_FIELDS),
    )


def preferred_rank(config: LaunchConfig, env: Mapping[str, str]) -> int | None:
    """The group rank this launcher prefers: as configured, else its index in the scheduler's order."""
    if config.rdzv_backend == "static":
        return int(config.rdzv_configs.get("rank", 0))
    ranks = (slurm.node_rank(env), kubernetes.node_rank(env))
    given = env.get("GROUP_RANK", "")  # set by users of ft_launcher outside Slurm
    return next((rank for rank in ranks if rank is not None), int(given) if given.isdigit() else None)


def script_name(entrypoint: str, arguments: Sequence[str]) -> str:
    """The script's name for torch's table of failures: Python's first argument that is not an option."""
    if entrypoint != sys.executable:
        return entrypoint
    return next((argument for argument in arguments if not argument.startswith("-")), entrypoint)


def job_record(rendezvous: Rendezvous, files: AttemptFiles) -> dict[str, Any]:
    """Fields of the outcome about the whole job, as far as the store still responds."""
    steps = files.steps()
    here = steps.furthest if steps is not None else None
    facts: dict[str, Any] = {"attempt": rendezvous.attempt, "iteration": here}
    if rendezvous.joined:
        with contextlib.suppress(torch_compat.DistError):
            known = [step for step in (here, rendezvous.store.furthest_step()) if step is not None]
            facts["iteration"] = max(known, default=None)
            facts["restarts"] = rendezvous.store.restarts()
            decision = rendezvous.decision()
            facts["excluded"] = rendezvous.members.excluded(decision.exclude if decision is not None else {})
    return facts


def interruption(
    options: Options, me: Identity, session: MonitorSession, rendezvous: Rendezvous, signals: Signals
) -> Callable[[], bool]:
    """A function that returns whether to stop waiting for a place."""
    until: list[float] = []

    def interrupted() -> bool:
        if signals.stop_received is None:
            # While standing by, the launchers that run ranks carry out a stop directive and close the job.
            return session.directives.pending_stop() is not None and not rendezvous.standing_by
        if not rendezvous.standing_by or not rendezvous.members.holds_store:
            return True
        if not until:
            # The store ends with this launcher, and the other nodes' ranks would be killed unsaved: they save first.
            until.append(time.monotonic() + options.stop_grace + LEAVE_SECONDS)
            reason = attempt_end.describe_preemption(me.host, signals.stop_received.name)
            attempt = rendezvous.store.newest_attempt()
            rendezvous.store.request_stop(attempt, StopRequest(reason, me.name, PREEMPTED))
            rendezvous.members.wake()
        return time.monotonic() > until[0]

    return interrupted


def _present(value: T | None) -> T:
    assert value is not None
    return value
