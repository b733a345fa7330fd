"""The hooks of Megatron's training loop: ``from rankwatch.integrations import megatron as fault_tolerance``.

=============  =======================================================================================================
section        is open
=============  =======================================================================================================
setup          from :func:`setup` to the first training or evaluation step
warmup         the first training iteration of the process and the first one of each evaluation, which compile
step           every other iteration; training steps are numbered by ``global_state.train_state.step``
checkpointing  every save, including the finalization of asynchronous ones
=============  =======================================================================================================

The functions take Bridge's ``ConfigContainer`` and ``GlobalState``, or any object with the same attributes, which holds
their state; without a ``global_state`` this module holds it. Before :func:`setup` they do nothing.

With ``calc_ft_timeouts`` the limits that the monitor has learned are applied after each checkpoint and at the end, and
written to ``ft_state.json`` beside the checkpoints; the next run begins with them.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import rankwatch
from rankwatch.contract.ft_state import FILE_NAME
from rankwatch.contract.semconv import CHECKPOINTING_SECTION, SETUP_SECTION, STEP_SECTION
from rankwatch.faults import inject
from rankwatch.integrations.megatron.config import policy_of
from rankwatch.integrations.megatron.state import FaultToleranceState, timeout_update
from rankwatch.integrations.nvrx.fault_tolerance import RankMonitorClient
from rankwatch.integrations.shared.report_log import ReportLog
from rankwatch.integrations.shared.state_file import FILE_SECONDS, StateFile
from rankwatch.integrations.shared.with_timeout import with_timeout
from rankwatch.recording.sections import Step, section

NUM_WARMUP_ITERS: Final = 1
"""Iterations outside of ``step``: of training once per process, of evaluation each time. Configurable in Megatron-LM
(``--ft-num-warmup-iters``)."""
WARMUP_SECTION: Final = "warmup"

_log = logging.getLogger("rankwatch")


@dataclass
class _ModuleState:
    """Replaces the global state if the caller has none."""

    rank_monitor_client: RankMonitorClient | None = None
    fault_tolerance_state: FaultToleranceState | None = None


_module_state = _ModuleState()
_reports: ReportLog | None = None
_file: StateFile | None = None


class _WarmupStep(Step):
    """A training step that is recorded as ``warmup`` but counts as an iteration."""

    __slots__ = ()

    def __init__(self, iteration: int | None) -> None:
        super().__init__(iteration)
        self._name = WARMUP_SECTION


def setup(
    config: Any = None,
    global_state: Any = None,
    *,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    async_save: bool | None = None,
    calc_ft_timeouts: bool | None = None,
) -> None:
    """Begin: opens the section ``setup``, and calls :func:`rankwatch.init` unless the script has.

    Defaults are taken from ``config.checkpoint.save``, ``config.checkpoint.async_save`` and
    ``config.ft.calc_ft_timeouts``. ``config.nvrx_straggler``, if enabled, becomes the job's policy.

    Raises:
        ValueError: no checkpoint folder is configured, or the straggler settings are invalid.
    """
    checkpoint, ft = getattr(config, "checkpoint", None), getattr(config, "ft", None)
    folder = checkpoint_dir or getattr(checkpoint, "save", None)
    if not folder:
        raise ValueError(
            "the checkpoint folder must be set (config.checkpoint.save or checkpoint_dir=):"
            f" calculated timeouts are written there, to {FILE_NAME}"
        )
    straggler = getattr(config, "nvrx_straggler", None)
    if straggler is not None and callable(getattr(straggler, "finalize", None)):
        straggler.finalize()
    policy = policy_of(straggler) if straggler is not None and straggler.enabled else None
    holder = _holder(global_state)
    before = holder.rank_monitor_client
    if before is not None and before.is_initialized:
        before.shutdown_workload_monitoring()
    state = _fresh_state(holder)
    state.ft_state_path = os.path.join(folder, FILE_NAME)
    state.is_async_chkpt_enabled = bool(getattr(checkpoint, "async_save", False) if async_save is None else async_save)
    wanted = getattr(ft, "calc_ft_timeouts", False) if calc_ft_timeouts is None else calc_ft_timeouts
    state.is_calculating_timeouts = bool(wanted)
    client = RankMonitorClient()
    client.init_workload_monitoring()
    holder.rank_monitor_client = client
    if client.is_rank_0:
        _make_folder(Path(folder))
    if (earlier := _state_file(state.ft_state_path).read()) is not None:
        client.load_state_dict(earlier)
        _log_on_rank_0(
            client, "timeouts of an earlier run were loaded from %s: %s", state.ft_state_path, client.section_timeouts
        )
    if policy is not None and client.is_rank_0:
        _report_stragglers(straggler, policy)
    client.start_section(SETUP_SECTION)
    state.is_setup_section_open = True


def on_training_step_start(global_state: Any = None, *, iteration: int | None = None) -> None:
    """Call before each training step. ``iteration`` from 0; default: ``global_state.train_state.step``."""
    client, state = _running(global_state)
    if client is None or state is None:
        return
    _end_setup(client, state)
    number = _iteration(global_state) if iteration is None else iteration
    if state.seen_tr_iters_cnt >= NUM_WARMUP_ITERS:
        client.sections.open(STEP_SECTION, rankwatch.step(number))
    else:
        client.sections.open(WARMUP_SECTION, _WarmupStep(number))
    state.curr_eval_iter_idx = 0  # training continues, so the evaluation has ended


def on_training_step_end(global_state: Any = None) -> None:
    """Call after each training step."""
    client, state = _running(global_state)
    if client is None or state is None:
        return
    client.sections.close(STEP_SECTION if state.seen_tr_iters_cnt >= NUM_WARMUP_ITERS else WARMUP_SECTION)
    state.seen_tr_iters_cnt += 1


def on_eval_step_start(global_state: Any = None) -> None:
    """Call before each evaluation step, which does not count as a training iteration."""
    client, state = _running(global_state)
    if client is None or state is None:
        return
    _end_setup(client, state)
    name = STEP_SECTION if state.curr_eval_iter_idx >= NUM_WARMUP_ITERS else WARMUP_SECTION
    client.sections.open(name, section(name))


def on_eval_step_end(global_state: Any = None) -> None:
    """Call after each evaluation step."""
    client, state = _running(global_state)
    if client is None or state is None:
        return
    client.sections.close(STEP_SECTION if state.curr_eval_iter_idx >= NUM_WARMUP_ITERS else WARMUP_SECTION)
    state.curr_eval_iter_idx += 1


def on_checkpointing_start(global_state: Any = None) -> None:
    """Call before saving a checkpoint or finalizing a save."""
    client, _ = _running(global_state)
    if client is not None:
        client.start_section(CHECKPOINTING_SECTION)


def on_checkpointing_end(is_async_finalization: bool, global_state: Any = None) -> None:
    """Call after a save, which updates timeouts, or after the finalization of an asynchronous save."""
    client, state = _running(global_state)
    if client is None or state is None:
        return
    client.end_section(CHECKPOINTING_SECTION)
    if not is_async_finalization:  # finalization is called before each iteration, usually without effect
        state.seen_checkpoints_cnt += 1
        _update_timeouts(client, state, at_end=False)


def on_checkpoint_loaded(is_local_chkpt: bool, global_state: Any = None) -> None:
    """Call after a checkpoint was loaded; one from memory does not count for the timeout of ``setup``."""
    _, state = _running(global_state)
    if state is not None:
        state.is_persistent_chkpt_loaded = not is_local_chkpt


def shutdown(global_state: Any = None) -> None:
    """End: updates timeouts and closes the client; ends the Rankwatch session unless it is used elsewhere."""
    client, state = _running(global_state)
    if client is not None and state is not None:
        _update_timeouts(client, state, at_end=True)
        client.shutdown_workload_monitoring()
    if _reports is not None:
        _reports.stop()
    _holder(global_state).rank_monitor_client = None


def maybe_setup_simulated_fault(
    config: Any = None,
    *,
    simulate_fault: bool | None = None,
    simulated_fault_type: str | None = None,
    simulated_fault_rank: int | None = None,
    simulated_fault_base_delay: float | None = None,
) -> None:
    """Inject a hang or crash of one rank after a delay, if configured; call it on all ranks.

    Defaults are taken from ``config`` (Bridge's ``FaultToleranceConfig``). The fault occurs in the first attempt of a
    job only.

    Raises:
        ValueError: the type is not one of ``rank_hung``, ``rank_killed`` and ``random``.
    """
    if not _first(simulate_fault, getattr(config, "simulate_fault", None), False):
        return
    kind = _first(simulated_fault_type, getattr(config, "simulated_fault_type", None), "random")
    if kind not in ("rank_hung", "rank_killed", "random"):
        raise ValueError(f"simulated_fault_type must be rank_hung, rank_killed or random, not {kind!r}")
    rank = _first(simulated_fault_rank, getattr(config, "simulated_fault_rank", None), "random")
    delay = _first(simulated_fault_base_delay, getattr(config, "simulated_fault_base_delay", None), 0)
    inject.simulate(kind, rank=rank, delay=float(delay))


def _update_timeouts(client: RankMonitorClient, state: FaultToleranceState, *, at_end: bool) -> None:
    if not state.is_calculating_timeouts:
        return
    update = timeout_update(state, at_end=at_end)
    for reason in update.skipped:
        _log_on_rank_0(client, "%s", reason)
    if not update.sections and not update.out_of_section:
        return
    complete = client.calculate_and_set_section_timeouts(update.sections, update.out_of_section)
    if client.is_rank_0 and state.ft_state_path is not None:
        _state_file(state.ft_state_path).write(client.state_dict(), seconds=FILE_SECONDS if at_end else 0.0)
    if complete:  # otherwise the client has logged what is missing
        _log_on_rank_0(client, "timeouts were updated for %s: %s", ", ".join(update.sections), client.section_timeouts)


def _report_stragglers(config: Any, policy: dict[str, Any]) -> None:
    global _reports
    rankwatch.change_policy(policy)
    if _reports is not None:
        _reports.stop()
    interval, shown = policy["report_interval"], policy["num_gpu_perf_scores_to_print"]
    _reports = ReportLog(interval, shown, logging.getLogger(config.logger_name))
    _reports.start()


def _state_file(path: str) -> StateFile:
    """Return the file of this run: a single object, so that its writes stay in order."""
    global _file
    if _file is None or _file.path != Path(path):
        _file = StateFile(Path(path), _log)
    return _file


def _end_setup(client: RankMonitorClient, state: FaultToleranceState) -> None:
    if state.is_setup_section_open:
        client.end_section(SETUP_SECTION)
        state.is_setup_section_open = False


def _holder(global_state: Any) -> Any:
    return _module_state if global_state is None or not hasattr(global_state, "rank_monitor_client") else global_state


def _fresh_state(holder: Any) -> FaultToleranceState:
    """Return the state of this run, reset; an object of Bridge keeps its own state object."""
    there = getattr(holder, "fault_tolerance_state", None)
    if there is None or isinstance(there, FaultToleranceState):
        holder.fault_tolerance_state = made = FaultToleranceState()
        return made
    FaultToleranceState().copy_to(there)
    found: FaultToleranceState = there
    return found


def _running(global_state: Any) -> tuple[RankMonitorClient | None, FaultToleranceState | None]:
    holder = _holder(global_state)
    return holder.rank_monitor_client, getattr(holder, "fault_tolerance_state", None)


def _iteration(global_state: Any) -> int | None:
    return getattr(getattr(global_state, "train_state", None), "step", None)


def _log_on_rank_0(client: RankMonitorClient, message: str, *arguments: object) -> None:
    if client.is_rank_0:
        _log.info(message, *arguments)


def _make_folder(folder: Path) -> None:
    try:
        with_timeout(lambda: folder.mkdir(parents=True, exist_ok=True), FILE_SECONDS, "creating it")
    except OSError as error:
        _log.warning("the checkpoint folder cannot be created, so timeouts cannot be written to it: %s", error)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)
