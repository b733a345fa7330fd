"""Wires one launcher together and runs it: rendezvous, node, monitor, agent. Stands for torch's ``launch_agent``."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

import torch
from torch.distributed.elastic import events, metrics
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.metrics.api import MetricsConfig
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousError, RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from torch.distributed.launcher.api import LaunchConfig

from rankwatch.wire.vocabulary import AckState, ProcessEventKind
from rankwatch_launcher import reasons, torch_seams
from rankwatch_launcher.agent import Agent
from rankwatch_launcher.ft_state import FtState
from rankwatch_launcher.log import logger
from rankwatch_launcher.node import Node
from rankwatch_launcher.rendezvous import Rendezvous
from rankwatch_launcher.sweeper import Sweeper
from rankwatch_launcher.watch import Options, Watch


@record
def launch(
    options: Options, config: LaunchConfig, entrypoint: str, arguments: Sequence[str], ft_state: FtState | None = None
) -> int:
    """Run the ranks of this node until the job ends; return the exit code.

    0 when all ranks here ended with exit code 0, also after a save-and-stop; else 1. ``ft_state`` is the file of
    learned timeouts, read already.

    Raises:
        ChildFailedError: ranks of this node failed and no restart was left.
    """
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = config.signals_to_handle
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # ours gives the ranks a new store for each attempt
    _handle_signals(config.signals_to_handle)
    metrics.initialize_metrics(MetricsConfig(config.metrics_cfg))
    rendezvous = _rendezvous(config)
    node = Node(options.job_name, config.nproc_per_node, options.policy, ft_state)
    node.facts = {"torch": str(torch.__version__), "python": sys.version.split()[0]}
    try:
        return _attend(options, config, entrypoint, arguments, rendezvous, node)
    finally:
        # However it ended, in the middle of starting too: memory files outlive a process.
        node.folder.remove()


def _attend(
    options: Options,
    config: LaunchConfig,
    entrypoint: str,
    arguments: Sequence[str],
    rendezvous: Rendezvous,
    node: Node,
) -> int:
    sweeper = Sweeper(node.folder.path)
    watch = Watch(options, node, config.rdzv_endpoint)
    if rendezvous.alone:
        watch.begin_alone()
    agent = _agent(config, entrypoint, arguments, node, rendezvous, sweeper, watch)
    if missing := torch_seams.missing_attributes(agent):
        raise RuntimeError(f"torch {torch.__version__} lacks {', '.join(missing)} on its agent")
    close_rendezvous = True
    try:
        result = agent.run()
        events.record(agent.get_event_succeeded(), config.event_log_handler)
        node.report(*agent.epilogue)
        if agent.epilogue[0] is ProcessEventKind.FINISHED:
            node.finished()
        if result is not None and result.failures and agent.epilogue[0] is ProcessEventKind.FAILED:
            raise ChildFailedError(name=_name(entrypoint, arguments), failures=result.failures)
        return 1 if result is not None and result.is_failed() else 0
    except SignalException as ended:
        # A rendezvous that is closed here could not be joined again by a launcher that is started anew.
        close_rendezvous = False
        events.record(agent.get_event_failed(), config.event_log_handler)
        return _ended_by_signal(node, ended.sigval)
    except (RendezvousError, torch_seams.DistError, TimeoutError) as error:
        # Nothing can be agreed on any more, closing the rendezvous included.
        close_rendezvous = False
        events.record(agent.get_event_failed(), config.event_log_handler)
        reason = _store_lost(error, config.rdzv_endpoint)
        logger.error("%s", reason)
        node.report(ProcessEventKind.FAILED, reason)
        return 1
    finally:
        node.close()
        if close_rendezvous:
            watch.part(rendezvous)
        watch.close()
        sweeper.dismiss()
        if close_rendezvous:
            rendezvous.shutdown()


def _name(entrypoint: str, arguments: Sequence[str]) -> str:
    """The script's name for torch's table of failures: the first argument of Python that is no option."""
    if entrypoint != sys.executable:
        return entrypoint
    return next((argument for argument in arguments if not argument.startswith("-")), entrypoint)


def _rendezvous(config: LaunchConfig) -> Rendezvous:
    parameters = RendezvousParameters(
        backend=config.rdzv_backend,
        endpoint=config.rdzv_endpoint,
        run_id=config.run_id,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        local_addr=config.local_addr,
        **config.rdzv_configs,
    )
    return Rendezvous(get_rendezvous_handler(parameters), config.max_nodes)


def _agent(
    config: LaunchConfig,
    entrypoint: str,
    arguments: Sequence[str],
    node: Node,
    rendezvous: Rendezvous,
    sweeper: Sweeper,
    watch: Watch,
) -> Agent:
    spec = WorkerSpec(
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
    assert config.logs_specs is not None
    assert config.shutdown_timeout is not None
    return Agent(
        spec,
        config.logs_specs,
        node=node,
        rendezvous=rendezvous,
        sweeper=sweeper,
        met=watch.met,
        log_line_prefix_template=config.log_line_prefix_template,
        shutdown_timeout=config.shutdown_timeout,
    )


def _store_lost(error: Exception, endpoint: str) -> str:
    detail = f"{type(error).__name__}: {error or error.__cause__ or 'no more is known'}".splitlines()[0]
    if isinstance(error, (torch_seams.DistError, RendezvousConnectionError)):
        return (
            f"the rendezvous store at {endpoint} does not answer: the launcher that holds it has ended or cannot be "
            f"reached, so the ranks here have been ended ({detail})"
        )
    return f"the nodes did not meet: {detail}"


def _ended_by_signal(node: Node, number: signal.Signals) -> int:
    order = node.orders.pending_stop()
    if order is not None:
        reason = order.reason
        logger.info("stopped while the nodes were meeting: %s", reason)
        node.orders.ack(order, AckState.DONE, "no rank ran")
    else:
        reason = f"the launcher on {node.host} got {reasons.signal_name(number)}"
        logger.warning("%s; its ranks have been ended", reason)
    node.report(ProcessEventKind.STOPPED, reason)
    return 1


def _handle_signals(names: str) -> None:
    """From now on these signals end the launcher in order; torch sees to it only once its first ranks are started."""

    def handle(number: int, _frame: FrameType | None) -> None:
        raise SignalException(f"process {os.getpid()} got signal {number}", signal.Signals(number))

    for name in names.split(","):
        if (number := getattr(signal, name.strip(), None)) is not None:
            signal.signal(number, handle)
