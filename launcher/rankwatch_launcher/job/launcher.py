"""Wires one launcher together and runs it: node, members, monitor, agent. Stands for torch's ``launch_agent``."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
from rankwatch.contract.enums import AckState, NodeRole, ProcessEventKind
from rankwatch.contract.policy import Policy
from rankwatch_launcher.agent import attempt_end, reasons, torch_compat
from rankwatch_launcher.agent.agent import Agent
from rankwatch_launcher.agent.orphan_reaper import Sweeper
from rankwatch_launcher.agent.signals import Signals
from rankwatch_launcher.cli.options import Options
from rankwatch_launcher.coordination.decisions import Budget, StopRequest
from rankwatch_launcher.coordination.membership import Member, Place, Rules
from rankwatch_launcher.coordination.rendezvous import Interrupted, JobOver, Rendezvous
from rankwatch_launcher.coordination.service import STORE_SECONDS, Members
from rankwatch_launcher.coordination.store import Closed
from rankwatch_launcher.job import finished
from rankwatch_launcher.job.outcome import CODE_FAILED, FAILED, FINISHED, PREEMPTED, STOPPED, Outcome
from rankwatch_launcher.log import logger
from rankwatch_launcher.monitor.discovery import Watch
from rankwatch_launcher.node.learned_limits import FtState
from rankwatch_launcher.node.node import Node
from rankwatch_launcher.prewarm.pool import Standby
from rankwatch_launcher.schedulers import kubernetes, slurm

T = TypeVar("T")

JOIN_SECONDS: Final = 600.0
LAST_CALL_SECONDS: Final = 30.0
"""torch's defaults of ``--rdzv-conf join_timeout`` and ``last_call_timeout``."""
FAREWELL_SECONDS: Final = 30.0
"""How long whoever holds the store or the monitor waits for the others to go: more than ending ranks takes."""

ENDINGS: Final = {
    FINISHED: ProcessEventKind.FINISHED,
    FAILED: ProcessEventKind.FAILED,
    STOPPED: ProcessEventKind.STOPPED,
    PREEMPTED: ProcessEventKind.STOPPED,
}


class Launch:
    """One launcher from its start to its outcome."""

    def __init__(self, options: Options, config: LaunchConfig, ft_state: FtState | None = None) -> None:
        """``ft_state`` is the file of learned timeouts, read already."""
        self._options, self._config = options, config
        self._ft_state = ft_state
        self.outcome = Outcome(FAILED, CODE_FAILED, "the launcher itself has failed; its last words are in its log")
        """How it ended, once :meth:`run` is over, however it is."""

    def run(self, entrypoint: str, arguments: Sequence[str]) -> None:
        """Run the ranks of this node until the job ends.

        Raises:
            ChildFailedError: ranks of this node failed and no restart was left.
        """
        os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = self._config.signals_to_handle
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # ours gives the ranks a new store for each attempt
        metrics.initialize_metrics(MetricsConfig(self._config.metrics_cfg))
        node = Node(self._options.job_name, self._config.nproc_per_node, self._options.policy, self._ft_state)
        node.launchers = self._config.min_nodes
        versions = {"torch": str(torch.__version__), "python": sys.version.split()[0]}
        node.facts = versions | slurm.facts(os.environ) | kubernetes.facts(os.environ)
        try:
            failures = self._attend(node, entrypoint, arguments)
        finally:
            # However it ended, in the middle of starting too: memory files outlive a process.
            node.folder.remove()
        if failures:
            raise ChildFailedError(_name(entrypoint, arguments), failures)

    def _attend(self, node: Node, entrypoint: str, arguments: Sequence[str]) -> dict[int, ProcessFailure]:
        options, config = self._options, self._config
        signals = Signals(config.signals_to_handle, attempt_end.signal_of(options.stop_signal), node.orders.ring)
        signals.install()
        if signals.stop is not None and "SLURM_JOB_ID" in os.environ:
            # Slurm signals every process of a step: the ranks must take that as the launcher does.
            os.environ.setdefault(environment.STOP_SIGNAL, str(int(signals.stop)))
        sweeper = Sweeper(node.folder.path)
        watch = Watch(options, node, config.rdzv_endpoint)
        rendezvous = _rendezvous(config, node, watch, signals)
        rendezvous.interrupted = _interrupts(options, node, rendezvous, signals)
        standby = Standby(options.standby, node.readings) if options.standby is not None else None
        agent = Agent(
            _spec(config, entrypoint, arguments, rendezvous),
            _present(config.logs_specs),
            options=options,
            node=node,
            rendezvous=rendezvous,
            sweeper=sweeper,
            signals=signals,
            met=watch.met,
            standby=standby,
            log_line_prefix_template=config.log_line_prefix_template,
            shutdown_timeout=_present(config.shutdown_timeout),
        )
        if missing := torch_compat.missing_attributes(agent):
            raise RuntimeError(f"torch {torch.__version__} lacks {', '.join(missing)} on its agent")
        event = agent.get_event_failed
        failures: dict[int, ProcessFailure] = {}
        try:
            if rendezvous.alone:
                watch.begin_alone()
            self._join(node, rendezvous, lambda: self._give_up(node, agent, watch, sweeper))
            result = agent.run()
            self.outcome = Outcome(agent.epilogue[0], agent.epilogue[2], agent.epilogue[1], complete=node.complete())
            event = agent.get_event_succeeded
            with contextlib.suppress(torch_compat.DistError):  # its holder may have gone first; how it ended is known
                rendezvous.members.close(Closed(self.outcome.state, self.outcome.code, self.outcome.reason))
            if result is not None and self.outcome.state == FAILED:
                failures = dict(result.failures)
        except JobOver as over:
            closed = over.closed
            logger.info("the job has %s%s", closed.state, f": {closed.reason}" if closed.reason else "")
            self.outcome = Outcome(closed.state, closed.code, closed.reason)
        except Interrupted:
            if signals.asked is not None:
                self.outcome = _ended_by_signal(node, signals.asked, signals, rendezvous)
            else:
                self.outcome = _interrupted(node)
                if rendezvous.joined:
                    rendezvous.members.close(Closed(self.outcome.state, self.outcome.code, self.outcome.reason))
        except SignalException as ended:
            self.outcome = _ended_by_signal(node, ended.sigval, signals, rendezvous)
        except (RendezvousError, torch_compat.DistError, TimeoutError) as error:
            # Nothing can be agreed on any more, closing the job included.
            self.outcome = Outcome(FAILED, CODE_FAILED, _store_lost(error, config.rdzv_endpoint))
            logger.error("%s", self.outcome.reason)
        finally:
            signals.ignore()  # what follows is bounded, and nothing of it may be left out
            if standby is not None:
                standby.close()
            events.record(event(), config.event_log_handler)
            self.outcome = replace(self.outcome, job_id=watch.job_id, **_record_of(rendezvous, node))
            node.report(ENDINGS[self.outcome.state], self.outcome.reason)
            if self.outcome.state == FINISHED:
                node.finished()
            finished.note(self.outcome, options)
            if options.outcome:
                _write(self.outcome, options.outcome, node)
            node.close()
            _part(rendezvous, watch, self.outcome.reason)
            watch.close()
            sweeper.dismiss()
            rendezvous.shutdown()
        return failures

    def _give_up(self, node: Node, agent: Agent, watch: Watch, sweeper: Sweeper) -> None:
        """The store's machine is frozen or cut off, and the main thread may wait for its answer for ever."""
        self.outcome = Outcome(FAILED, CODE_FAILED, _store_silent(self._config.rdzv_endpoint), job_id=watch.job_id)
        logger.error("%s", self.outcome.reason)
        agent.kill_ranks()
        node.report(ProcessEventKind.FAILED, self.outcome.reason)
        if self._options.outcome:
            _write(self.outcome, self._options.outcome, node)
        node.close()
        watch.close()
        sweeper.dismiss()
        os._exit(self.outcome.code)

    def _join(self, node: Node, rendezvous: Rendezvous, give_up: Callable[[], None]) -> None:
        config, options = self._config, self._options
        rules = Rules(
            config.min_nodes,
            config.max_nodes,
            options.node_timeout,
            float(config.rdzv_configs.get("last_call_timeout", LAST_CALL_SECONDS)),
        )
        me = Member(node.name, node.place, config.nproc_per_node, config.role, wish=_wish(config, os.environ))
        budget = Budget(config.max_restarts, Policy().changed(options.policy).max_no_progress)

        def lost(member: Member, attempt: int, reason: str) -> None:
            logger.warning("%s", reason)
            node.report(ProcessEventKind.NODE_LOST, reason, lost_node=member.node, attempt=attempt)

        def make(store: torch_compat.Store, holds_store: bool) -> Members:
            return Members(
                store,
                config.run_id,
                me,
                rules,
                budget=lambda: node.budget(budget),
                standing=node.standing,
                on_lost=lost,
                on_deaf=give_up,
                holds_store=holds_store,
            )

        rendezvous.join(make)


def _rendezvous(config: LaunchConfig, node: Node, watch: Watch, signals: Signals) -> Rendezvous:
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

    def stand_by(place: Place) -> None:
        node.stand_by(NodeRole(place.role), place.reason)
        signals.patient = rendezvous.members.holds_store
        watch.standing_by(rendezvous)

    rendezvous.on_standby = stand_by
    return rendezvous


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
        event_log_handler=config.event_log_handler,
        numa_options=config.numa_options,
        duplicate_stdout_filters=config.duplicate_stdout_filters,
        duplicate_stderr_filters=config.duplicate_stderr_filters,
        virtual_local_rank=config.virtual_local_rank,
    )


def _wish(config: LaunchConfig, env: Mapping[str, str]) -> int | None:
    """The group rank this launcher would like: as told, else its place in the scheduler's order."""
    if config.rdzv_backend == "static":
        return int(config.rdzv_configs.get("rank", 0))
    told = (slurm.node_rank(env), kubernetes.node_rank(env))
    given = env.get("GROUP_RANK", "")  # what users of ft_launcher set outside Slurm
    return next((wish for wish in told if wish is not None), int(given) if given.isdigit() else None)


def _name(entrypoint: str, arguments: Sequence[str]) -> str:
    """The script's name for torch's table of failures: the first argument of Python that is no option."""
    if entrypoint != sys.executable:
        return entrypoint
    return next((argument for argument in arguments if not argument.startswith("-")), entrypoint)


def _record_of(rendezvous: Rendezvous, node: Node) -> dict[str, Any]:
    """What the launchers know of the whole job, as far as the store still answers."""
    reached = node.reached()
    here = reached.iteration if reached is not None else None
    facts: dict[str, Any] = {"attempt": rendezvous.attempt, "iteration": here}
    if rendezvous.joined:
        with contextlib.suppress(torch_compat.DistError):
            told = [i for i in (here, rendezvous.ledger.furthest()) if i is not None]
            facts["iteration"] = max(told, default=None)
            facts["restarts"] = rendezvous.ledger.restarts()
            ruling = rendezvous.ended_elsewhere()
            facts["excluded"] = rendezvous.members.excluded(ruling.exclude if ruling is not None else {})
    return facts


def _write(outcome: Outcome, pattern: str, node: Node) -> None:
    # Launchers that share a folder, and a command line, must not write one file.
    path = Path(pattern.replace("{node}", node.place))
    try:
        outcome.write(path)
    except OSError as error:
        logger.error("how the job ended cannot be written to %s: %s", path, error.strerror or error)


def _part(rendezvous: Rendezvous, watch: Watch, reason: str) -> None:
    """Say goodbye to the other launchers, and see them off when they need what is here."""
    if rendezvous.joined:
        with contextlib.suppress(torch_compat.DistError):
            rendezvous.members.leave(reason, patience=FAREWELL_SECONDS, needed=watch.holds_monitor)


def _store_lost(error: Exception, endpoint: str) -> str:
    detail = f"{type(error).__name__}: {error or error.__cause__ or 'no more is known'}".splitlines()[0]
    if isinstance(error, (torch_compat.DistError, RendezvousConnectionError)):
        return (
            f"the rendezvous store at {endpoint} does not answer: the launcher that holds it has ended or cannot be "
            f"reached, so the ranks here have been ended ({detail})"
        )
    return f"the nodes did not meet: {detail}"


def _store_silent(endpoint: str) -> str:
    return (
        f"the rendezvous store at {endpoint} has not answered for {STORE_SECONDS:g} s: the machine that holds it is "
        "frozen or cut off, so the ranks here have been ended"
    )


def _interrupted(node: Node) -> Outcome:
    order = node.orders.pending_stop()
    assert order is not None
    logger.info("stopped while the nodes were meeting: %s", order.reason)
    node.orders.ack(order, AckState.DONE, "no rank ran")
    return Outcome(STOPPED, CODE_FAILED, order.reason)


def _ended_by_signal(node: Node, number: signal.Signals, signals: Signals, rendezvous: Rendezvous) -> Outcome:
    reason = f"the launcher on {node.place} got {reasons.signal_name(number)}"
    state = PREEMPTED if number == signals.stop else STOPPED
    if rendezvous.stands_by:
        logger.warning("%s; it ran no rank", reason)
        return Outcome(state, 0, reason)
    logger.warning("%s; its ranks have been ended", reason)
    return Outcome(state, CODE_FAILED, reason)


def _interrupts(options: Options, node: Node, rendezvous: Rendezvous, signals: Signals) -> Callable[[], bool]:
    """Whether to stop waiting for a place."""
    until: list[float] = []

    def look() -> bool:
        if signals.asked is None:
            # Those who run ranks carry an order out; whoever stands by hears from them how it ended.
            return node.orders.stop_waits and not rendezvous.stands_by
        if not rendezvous.stands_by or not rendezvous.members.holds_store:
            return True
        if not until:
            # With this launcher the store would go, and the ranks of the others be ended unsaved: they save first.
            until.append(time.monotonic() + options.stop_grace + FAREWELL_SECONDS)
            reason = reasons.preempted(node.place, signals.asked.name)
            attempt = rendezvous.members.board.newest()
            rendezvous.ledger.ask_to_stop(attempt, StopRequest(reason, node.name, PREEMPTED))
            rendezvous.members.nudge()
        return time.monotonic() > until[0]

    return look


def _present(value: T | None) -> T:
    assert value is not None
    return value
