"""Wires and runs one launcher: node, membership, monitor, agent. Replaces torch's ``launch_agent``."""

from __future__ import annotations

import contextlib
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
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousError, RendezvousParameters
from torch.distributed.launcher.api import LaunchConfig

from rankwatch.contract import env as environment
from rankwatch.contract.enums import AckState, ProcessEventKind
from rankwatch.contract.policy import Policy
from rankwatch_launcher import torch_compat
from rankwatch_launcher.agent import attempt_end
from rankwatch_launcher.agent.agent import Agent
from rankwatch_launcher.agent.orphan_reaper import OrphanReaper
from rankwatch_launcher.agent.rank_log import log_facts
from rankwatch_launcher.agent.signals import Signals
from rankwatch_launcher.checks.check import CheckedNode
from rankwatch_launcher.checks.gate import Named, NodeGate, paths_of, variables_of
from rankwatch_launcher.coordination.decisions import RestartBudget, StopRequest
from rankwatch_launcher.coordination.membership import Member, MembershipRules, Place
from rankwatch_launcher.coordination.rendezvous import Interrupted, JobOver, Rendezvous
from rankwatch_launcher.coordination.service import MembershipService
from rankwatch_launcher.job import closing_summary
from rankwatch_launcher.job.pair_check import Attendance, PairCheck, log_table
from rankwatch_launcher.log import logger
from rankwatch_launcher.monitor.discovery import MonitorDiscovery
from rankwatch_launcher.node.learned_limits import LearnedLimitsFile
from rankwatch_launcher.node.node import Node
from rankwatch_launcher.options import Options
from rankwatch_launcher.outcome import (
    CODE_FAILED,
    CODE_INTERRUPTED,
    FAILED,
    FINISHED,
    PREEMPTED,
    STOPPED,
    Outcome,
    write_finished_flag,
)
from rankwatch_launcher.prewarm.pool import PrewarmPool
from rankwatch_launcher.schedulers import kubernetes, slurm

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
        self.summary: list[str] = []
        """The last lines for the console; empty if another launcher has them."""

    def run(self, entrypoint: str, arguments: Sequence[str]) -> None:
        """Run the ranks of this node until the job ends.

        Raises:
            ChildFailedError: ranks of this node failed and no restart was left.
        """
        os.environ[torch_compat.SIGNALS] = torch_compat.setting(self._config, "signals_to_handle")
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # each attempt's ranks get a new store
        metrics.initialize_metrics(MetricsConfig(self._config.metrics_cfg))
        node = Node(self._options.job_name, self._config.nproc_per_node, self._options.policy, self._learned_limits)
        node.launchers = node.min_nodes = self._config.min_nodes
        versions = {"torch": str(torch.__version__), "python": sys.version.split()[0]}
        specs = _present(self._config.logs_specs)
        run = torch_compat.run_folder(specs, self._config.run_id)
        logs = log_facts(torch_compat.redirected_into(specs), run, sent=self._options.send_logs)
        node.facts = versions | logs | slurm.facts(os.environ) | kubernetes.facts(os.environ)
        try:
            failures = self._run_job(node, entrypoint, arguments)
        finally:
            # Also after a failed start: files in /dev/shm outlive the process.
            node.folder.remove()
            torch_compat.remove_empty_logs(specs)
        if failures:
            raise ChildFailedError(_script_name(entrypoint, arguments), failures)

    def _run_job(self, node: Node, entrypoint: str, arguments: Sequence[str]) -> dict[int, ProcessFailure]:
        options, config = self._options, self._config
        stop_signal = signal.Signals[options.stop_signal] if options.stop_signal else None
        signals = Signals(torch_compat.setting(config, "signals_to_handle"), stop_signal, node.directives.wake_up)
        signals.install()
        if signals.stop is not None and "SLURM_JOB_ID" in os.environ:
            # Slurm signals every process of a step: the ranks must handle the signal as the launcher does.
            os.environ.setdefault(environment.STOP_SIGNAL, str(int(signals.stop)))
        reaper = OrphanReaper(node.folder.path)
        discovery = MonitorDiscovery(options, node.connect, config.rdzv_endpoint, node)
        rendezvous = _rendezvous(config, node, discovery, signals)
        rendezvous.interrupted = _interruption(options, node, rendezvous, signals)
        rendezvous.gate = gate = _gate(options, node, self._learned_limits)
        if gate is not None and options.node_check == "pairs" and config.max_nodes > 1:
            rendezvous.before_joining = partial(_measure_pairs, config, options, node, gate)
        pool = PrewarmPool(options.prewarm, node.readings) if options.prewarm is not None else None
        agent = Agent(
            _spec(config, entrypoint, arguments, rendezvous),
            _present(config.logs_specs),
            options=options,
            node=node,
            rendezvous=rendezvous,
            reaper=reaper,
            signals=signals,
            on_rendezvous=discovery.on_rendezvous,
            pool=pool,
            log_line_prefix_template=config.log_line_prefix_template,
            shutdown_timeout=_present(torch_compat.setting(config, "shutdown_timeout")),
        )
        if missing := torch_compat.missing_attributes(agent):
            raise RuntimeError(f"torch {torch.__version__} lacks {', '.join(missing)} on its agent")
        event = agent.get_event_failed
        failures: dict[int, ProcessFailure] = {}
        try:
            if rendezvous.alone:
                discovery.begin_alone()
            self._join(node, rendezvous, partial(self._on_store_timeout, node, agent, discovery, reaper))
            result = agent.run()
            self.outcome = replace(agent.outcome, complete=node.complete())
            event = agent.get_event_succeeded
            with contextlib.suppress(torch_compat.DistError):  # the launcher that hosts the store may have left first
                rendezvous.store.close(self.outcome)
            if result is not None and self.outcome.state == FAILED:
                failures = dict(result.failures)
        except JobOver as over:
            ended = over.outcome
            logger.info("the job has ended (%s)%s", ended.state, f": {ended.reason}" if ended.reason else "")
            self.outcome = Outcome(
                ended.state, ended.code, ended.reason, cause=ended.cause, no_restart=ended.no_restart
            )
        except Interrupted:
            if signals.stop_received is not None:
                self.outcome = _ended_by_signal(node, signals.stop_received, signals, rendezvous)
            else:
                self.outcome = _ended_by_directive(node)
                if rendezvous.joined:
                    rendezvous.store.close(self.outcome)
        except SignalException as received:
            self.outcome = _ended_by_signal(node, received.sigval, signals, rendezvous)
        except (RendezvousError, torch_compat.DistError, TimeoutError) as error:
            # Without the store nothing can be agreed on, and the job cannot be closed.
            self.outcome = Outcome(FAILED, CODE_FAILED, _store_lost_reason(error, config.rdzv_endpoint))
            logger.error("%s", self.outcome.reason)
        finally:
            signals.ignore()  # what follows is bounded in time, and must be completed
            if pool is not None:
                pool.close()
            if gate is not None:
                gate.close()
            events.record(event(), torch_compat.setting(config, "event_log_handler"))
            self.outcome = replace(self.outcome, job_id=discovery.job_id, **_job_record(rendezvous, node))
            node.report(
                END_EVENTS[self.outcome.state],
                self.outcome.reason,
                cause=self.outcome.cause,
                no_restart=self.outcome.no_restart,
            )
            if self.outcome.state == FINISHED:
                node.finished()
            write_finished_flag(self.outcome, options.finished_flag, complete_on_success=options.complete_on_success)
            if options.outcome:
                _write(self.outcome, options.outcome, node)
            node.close()
            _leave(rendezvous, discovery, self.outcome.reason)
            if discovery.holds_monitor or _leads(rendezvous):
                self.summary = closing_summary.summary(self.outcome, discovery)
            discovery.close()
            reaper.dismiss()
            rendezvous.shutdown()
        return failures

    def _on_store_timeout(
        self,
        node: Node,
        agent: Agent,
        discovery: MonitorDiscovery,
        reaper: OrphanReaper,
        silence: float,
        links: frozenset[str],
    ) -> None:
        """The store's host is frozen or unreachable, and the main thread may be blocked in a call to it forever."""
        reason = _store_timeout_reason(self._config.rdzv_endpoint, node.host, silence, links)
        self.outcome = Outcome(FAILED, CODE_FAILED, reason, job_id=discovery.job_id)
        logger.error("%s", self.outcome.reason)
        outcome, pattern = self.outcome, self._options.outcome
        steps: tuple[Callable[[], object], ...] = (
            agent.kill_ranks,
            lambda: node.report(ProcessEventKind.FAILED, outcome.reason),
            lambda: _write(outcome, pattern, node) if pattern else None,
            node.close,
            discovery.close,
            reaper.dismiss,
        )
        try:
            for step in steps:
                try:
                    step()
                except Exception:  # noqa: BLE001  # the exit below must be reached
                    logger.exception("ending without the store: one step failed")
        finally:
            os._exit(outcome.code)

    def _join(
        self, node: Node, rendezvous: Rendezvous, on_store_timeout: Callable[[float, frozenset[str]], None]
    ) -> None:
        config, options = self._config, self._options
        rules = MembershipRules(
            config.min_nodes,
            config.max_nodes,
            options.node_timeout,
            float(config.rdzv_configs.get("last_call_timeout", LAST_CALL_SECONDS)),
        )
        me = Member(
            node.name,
            node.host,
            config.nproc_per_node,
            config.role,
            preferred_rank=_preferred_rank(config, os.environ),
            checks=rendezvous.gate is not None,
        )
        budget = RestartBudget(config.max_restarts, Policy().changed(options.policy).max_no_progress)

        def on_lost(member: Member, attempt: int, reason: str) -> None:
            logger.warning("%s", reason)
            node.report(ProcessEventKind.NODE_LOST, reason, lost_node=member.node, attempt=attempt)

        def make(store: torch_compat.Store, holds_store: bool) -> MembershipService:
            return MembershipService(
                store,
                config.run_id,
                me,
                rules,
                budget=lambda: node.budget(budget),
                progress=node.progress,
                on_lost=on_lost,
                on_store_timeout=on_store_timeout,
                holds_store=holds_store,
            )

        rendezvous.join(make)


def _rendezvous(config: LaunchConfig, node: Node, discovery: MonitorDiscovery, signals: Signals) -> Rendezvous:
    rendezvous = Rendezvous(
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

    def on_standby(place: Place) -> None:
        node.stand_by(place.role, place.reason)
        signals.polled = rendezvous.members.holds_store
        discovery.on_standby(rendezvous)

    rendezvous.on_standby = on_standby
    return rendezvous


def _gate(options: Options, node: Node, learned_limits: LearnedLimitsFile | None) -> NodeGate | None:
    """The checks of this node before each attempt; None: they are switched off."""
    if options.node_check == "off":
        return None
    beside_checkpoints = (options.finished_flag, learned_limits.path if learned_limits is not None else "")
    paths = paths_of(options.check_path, beside_checkpoints)

    def checked() -> CheckedNode:
        return CheckedNode(
            paths=paths,
            command=options.check_command,
            monitor=node.link.url if node.link is not None else "",
            slots=str(node.folder.path),
            variables=variables_of(os.environ),
        )

    def named() -> Named:
        return Named(node.name, node.host, node.link.job_id if node.link is not None else "")

    return NodeGate(checked, node.checked, named=named, on_bad_node=options.on_bad_node)


def _measure_pairs(
    config: LaunchConfig,
    options: Options,
    node: Node,
    gate: NodeGate,
    store: torch_compat.Store,
    leads: bool,
    pause: Callable[[float], None],
) -> None:
    """Measure the nodes in groups of two before the first attempt; one at fault takes no part in this launch."""
    last_call = float(config.rdzv_configs.get("last_call_timeout", LAST_CALL_SECONDS))
    patience = float(config.rdzv_configs.get("join_timeout", JOIN_SECONDS))
    attendance = Attendance(config.min_nodes, config.max_nodes + options.spares, last_call, patience)
    me = Member(node.name, node.host, config.nproc_per_node)
    verdicts = PairCheck(store, config.run_id, me, attendance, leads=leads, pause=pause).run()
    if leads:
        log_table(verdicts)
    for verdict in verdicts:
        if verdict.node == node.name and verdict.fault is not None:
            gate.keep_out(verdict.fault)


def _spec(config: LaunchConfig, entrypoint: str, arguments: Sequence[str], rendezvous: Rendezvous) -> WorkerSpec:
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


def _preferred_rank(config: LaunchConfig, env: Mapping[str, str]) -> int | None:
    """The group rank this launcher prefers: as configured, else its index in the scheduler's order."""
    if config.rdzv_backend == "static":
        return int(config.rdzv_configs.get("rank", 0))
    ranks = (slurm.node_rank(env), kubernetes.node_rank(env))
    given = env.get("GROUP_RANK", "")  # set by users of ft_launcher outside Slurm
    return next((rank for rank in ranks if rank is not None), int(given) if given.isdigit() else None)


def _script_name(entrypoint: str, arguments: Sequence[str]) -> str:
    """The script's name for torch's table of failures: Python's first argument that is not an option."""
    if entrypoint != sys.executable:
        return entrypoint
    return next((argument for argument in arguments if not argument.startswith("-")), entrypoint)


def _job_record(rendezvous: Rendezvous, node: Node) -> dict[str, Any]:
    """Fields of the outcome about the whole job, as far as the store still responds."""
    steps = node.steps()
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


def _write(outcome: Outcome, pattern: str, node: Node) -> None:
    # Launchers that share a folder and a command line must not write the same file.
    path = Path(pattern.replace("{node}", node.host))
    try:
        outcome.write(path)
    except OSError as error:
        logger.error("the outcome cannot be written to %s: %s", path, error.strerror or error)


def _leave(rendezvous: Rendezvous, discovery: MonitorDiscovery, reason: str) -> None:
    """Leave the other launchers, after them if they need the store or the monitor that runs here."""
    if rendezvous.joined:
        with contextlib.suppress(torch_compat.DistError):
            rendezvous.members.leave(reason, timeout=LEAVE_SECONDS, needed=discovery.holds_monitor)


def _leads(rendezvous: Rendezvous) -> bool:
    """Whether this launcher speaks for the job, of which each has a console."""
    return rendezvous.alone or (rendezvous.attempt > 0 and rendezvous.rank == 0)


def _store_lost_reason(error: Exception, endpoint: str) -> str:
    detail = f"{type(error).__name__}: {error or error.__cause__ or 'no details'}".splitlines()[0]
    if isinstance(error, (torch_compat.DistError, RendezvousConnectionError)):
        return (
            f"the rendezvous store at {endpoint} does not respond: the launcher that hosts it has ended or is "
            f"unreachable, so the ranks here have been killed ({detail})"
        )
    return f"rendezvous failed: {detail}"


def _store_timeout_reason(endpoint: str, host: str, silence: float, links: frozenset[str]) -> str:
    why = "the machine that hosts it is frozen or unreachable"
    if links:
        why = f"the network link of {host} is down ({', '.join(sorted(links))})"
    return (
        f"the rendezvous store at {endpoint} has not responded for {silence:.0f} s: {why}; no rank here made progress "
        "meanwhile, so they have been killed"
    )


def _ended_by_directive(node: Node) -> Outcome:
    directive = node.directives.pending_stop()
    assert directive is not None
    logger.info("stopped during rendezvous: %s", directive.reason)
    node.directives.ack(directive, AckState.DONE, "no rank ran")
    if directive.no_restart:
        reason, cause = attempt_end.without_restart(directive), directive.reason
        return Outcome(FAILED, CODE_FAILED, reason, cause=cause, no_restart=directive.no_restart)
    return Outcome(STOPPED, CODE_FAILED, directive.reason)


def _ended_by_signal(node: Node, number: signal.Signals, signals: Signals, rendezvous: Rendezvous) -> Outcome:
    reason = f"the launcher on {node.host} got {attempt_end.signal_name(number)}"
    state = PREEMPTED if number == signals.stop else STOPPED
    if rendezvous.standing_by:
        logger.warning("%s; it ran no rank", reason)
        return Outcome(state, 0, reason)
    logger.warning("%s; its ranks have been killed", reason)
    return Outcome(state, CODE_INTERRUPTED if number == signal.SIGINT else CODE_FAILED, reason)


def _interruption(options: Options, node: Node, rendezvous: Rendezvous, signals: Signals) -> Callable[[], bool]:
    """A function that returns whether to stop waiting for a place."""
    until: list[float] = []

    def interrupted() -> bool:
        if signals.stop_received is None:
            # While standing by, the launchers that run ranks carry out a stop directive and close the job.
            return node.directives.pending_stop() is not None and not rendezvous.standing_by
        if not rendezvous.standing_by or not rendezvous.members.holds_store:
            return True
        if not until:
            # The store ends with this launcher, and the other nodes' ranks would be killed unsaved: they save first.
            until.append(time.monotonic() + options.stop_grace + LEAVE_SECONDS)
            reason = attempt_end.describe_preemption(node.host, signals.stop_received.name)
            attempt = rendezvous.store.newest_attempt()
            rendezvous.store.request_stop(attempt, StopRequest(reason, node.name, PREEMPTED))
            rendezvous.members.wake()
        return time.monotonic() > until[0]

    return interrupted


def _present(value: T | None) -> T:
    assert value is not None
    return value
