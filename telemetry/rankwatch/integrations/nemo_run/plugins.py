"""Plugins for NeMo-Run: FaultTolerancePlugin and PreemptionPlugin, for scripts and recipes, on any executor.

A plugin's ``setup`` changes the task and the executor of a job:

=====================  =================================================================================================
``executor.launcher``  becomes :class:`RankwatchLauncher`, which prefixes the task's command with ``rankwatch run``
``executor.signal``    (Slurm) is the signal before the time limit
``executor.setup_lines``  (Slurm) makes ``rankwatch slurm batch`` run the launchers (``commands.py``)
a ``run.Script``       gets overrides on its command line, made by ``script_args_converter_fn``
a ``run.Partial``      gets callbacks in ``task.trainer.callbacks``
=====================  =================================================================================================

Both plugins may be used, in either order.
"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from rankwatch.contract.interpreter import own_python
from rankwatch.integrations.nemo_run import commands
from rankwatch.integrations.nemo_run.commands import HEAD_NODE, batch_lines, run_arguments, signal_option, whole_number

try:
    import nemo_run as run  # type: ignore[import-not-found, unused-ignore]
except ImportError as error:
    raise ImportError(
        "rankwatch.integrations.nemo_run needs NeMo-Run: pip install 'nemo-run==0.11.1' 'leptonai<0.40' "
        f"({error}); ranks and launchers need neither"
    ) from error

logger: Final = logging.getLogger("rankwatch")
JOB_FOLDER: Final = "/nemo_run"
"""NeMo-Run's job folder on the cluster: its path in a container, or a placeholder for the real one."""


@dataclass
class FaultTolerancePluginScriptArgs:
    """The argument of FaultTolerancePlugin's converter."""

    enable_ft_package: bool
    calc_ft_timeouts: bool


@dataclass
class PreemptionPluginScriptArgs:
    """The argument of PreemptionPlugin's converter."""

    enable_exit_handler: bool
    enable_exit_handler_for_data_loader: bool


@dataclass(kw_only=True)
class RankwatchLauncher(run.SlurmTemplate):  # type: ignore[misc]
    """Starts the task by ``rankwatch run``, one launcher per node. Created by the plugins.

    It is a ``SlurmTemplate`` because under Slurm only these launchers may rewrite a command.
    """

    template_inline: str | None = "{{ command }}"
    program: list[str] = field(default_factory=lambda: ["rankwatch"])
    nodes: int = 1
    ranks_per_node: int = 1
    rdzv_backend: str = "c10d"
    rdzv_endpoint: str = ""
    """Rendezvous endpoint of several nodes; empty: from the environment (``PET_RDZV_ENDPOINT``)."""
    rdzv_id: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    shell: bool = True
    """Whether a shell parses the command line."""

    def transform(self, cmd: list[str]) -> run.Script:
        """Return the command that starts the launcher of one node.

        Raises:
            ValueError: Nsight Systems is enabled.
        """
        if self.nsys_profile:
            raise ValueError("nsys cannot profile a job of these plugins: remove NsysPlugin or these plugins")
        rendezvous = ["--standalone"]
        if self.nodes > 1:
            rendezvous = ["--rdzv-backend", self.rdzv_backend]
            rendezvous += ["--rdzv-endpoint", self.rdzv_endpoint] if self.rdzv_endpoint else []
            rendezvous += ["--rdzv-id", self.rdzv_id] if self.rdzv_id else []
        words = run_arguments(
            self.program, self.nodes, self.ranks_per_node, rendezvous, self.options, cmd, shell=self.shell
        )
        return run.Script(entrypoint=words[0], path=words[1], args=words[2:])


@dataclass(kw_only=True)
class FaultTolerancePlugin(run.Plugin):  # type: ignore[misc]
    """Detects hangs and crashes, restarts the ranks, and launches the job again if that fails.

    Args:
        enable_ft_package: detect hangs; False: only restart after crashes.
        calc_ft_timeouts: learned limits replace the configured ones.
        num_in_job_restarts: restarts within the job.
        num_job_retries_on_failure: further launches of the job after failures.
        initial_rank_heartbeat_timeout: limit for the first heartbeat, in seconds; None: no limit.
        rank_heartbeat_timeout: limit between two heartbeats, in seconds; None: no limit.
        script_args_converter_fn: returns the arguments added to a ``run.Script``; default: Megatron-Bridge's.
        launcher_options: further flags of ``rankwatch run`` by name; True for a switch.
        program: command of ``rankwatch``; None: ``rankwatch``, or this Python's under ``run.LocalExecutor``.

    Raises:
        ValueError: (from ``setup``) an argument is invalid, or the executor's launcher is incompatible.
    """

    enable_ft_package: bool = True
    calc_ft_timeouts: bool = True
    num_in_job_restarts: int = 3
    num_job_retries_on_failure: int = 2
    initial_rank_heartbeat_timeout: float | None = 1800
    rank_heartbeat_timeout: float | None = 300
    script_args_converter_fn: Callable[[FaultTolerancePluginScriptArgs], list[str]] | None = None
    launcher_options: dict[str, Any] = field(default_factory=dict)
    program: list[str] | None = None

    def setup(self, task: run.Partial | run.Script, executor: run.Executor) -> None:
        """Change the task and the executor of one job."""
        retries = whole_number("num_job_retries_on_failure", self.num_job_retries_on_failure)
        options: dict[str, Any] = {
            "--max-restarts": str(whole_number("num_in_job_restarts", self.num_in_job_restarts)),
            "--initial-heartbeat-timeout": commands.seconds(
                "initial_rank_heartbeat_timeout", self.initial_rank_heartbeat_timeout
            ),
            "--heartbeat-timeout": commands.seconds("rank_heartbeat_timeout", self.rank_heartbeat_timeout),
            "--calculate-timeouts" if self.calc_ft_timeouts else "--no-learn-timeouts": True,
        }
        if not self.enable_ft_package:
            options["--no-detection"] = True
        if wrong := [name for name in self.launcher_options if not name.startswith("--")]:
            raise ValueError(f"launcher_options are flags of 'rankwatch run', such as --monitor; {wrong[0]!r} is not")
        launcher = _launcher(executor, self.program, required=True)
        assert launcher is not None
        launcher.options.pop("--observe-only", None)
        launcher.options.update(options | _retries(executor, launcher, retries) | self.launcher_options)
        if isinstance(task, run.Script):
            convert = self.script_args_converter_fn or _fault_tolerance_overrides
            given = FaultTolerancePluginScriptArgs(self.enable_ft_package, self.calc_ft_timeouts)
            _add_arguments(task, convert(given), type(self).__name__)
        elif self.enable_ft_package:
            log = getattr(task, "log", None)
            callback = run.Config(
                _lightning("FaultToleranceCallback"),
                autoresume=True,
                calculate_timeouts=self.calc_ft_timeouts,
                exp_dir=getattr(log, "log_dir", None),
            )
            _add_callbacks(task, [callback], type(self).__name__)


@dataclass(kw_only=True)
class PreemptionPlugin(run.Plugin):  # type: ignore[misc]
    """Makes the job save and stop before its time limit, or when its launcher receives SIGTERM.

    Args:
        preempt_time: seconds before the time limit at which Slurm sends SIGTERM.
        enable_exit_handler: add the converter's arguments to a ``run.Script``.
        enable_exit_handler_for_data_loader: passed to the converter.
        script_args_converter_fn: returns these arguments; default: Megatron-Bridge's.
        callbacks: configurations of callbacks added to a ``run.Partial``; None: Rankwatch's PreemptionCallback.
        use_launcher: start the ranks by ``rankwatch run``; False: keep the executor's launcher.
        program: command of ``rankwatch``; None: ``rankwatch``, or this Python's under ``run.LocalExecutor``.

    Raises:
        ValueError: (from ``setup``) an argument is invalid.
    """

    preempt_time: int = 60
    enable_exit_handler: bool = True
    enable_exit_handler_for_data_loader: bool = False
    script_args_converter_fn: Callable[[PreemptionPluginScriptArgs], list[str]] | None = None
    callbacks: list[Any] | None = None
    use_launcher: bool = True
    program: list[str] | None = None

    def setup(self, task: run.Partial | run.Script, executor: run.Executor) -> None:
        """Change the task and the executor of one job."""
        before = whole_number("preempt_time", self.preempt_time, 1)
        launcher = _launcher(executor, self.program, required=False) if self.use_launcher else None
        if launcher is not None:
            launcher.options["--stop-grace"] = commands.grace(before)
        if isinstance(executor, run.SlurmExecutor):
            executor.signal = signal_option(before, batch=launcher is not None and _has_batch(executor))
            logger.info("%s: SIGTERM %d s before the job's time limit", type(self).__name__, before)
        if not isinstance(task, run.Script):
            callbacks = [run.Config(_lightning("PreemptionCallback"))] if self.callbacks is None else self.callbacks
            _add_callbacks(task, callbacks, type(self).__name__)
        elif self.enable_exit_handler:
            convert = self.script_args_converter_fn or _preemption_overrides
            given = PreemptionPluginScriptArgs(self.enable_exit_handler, self.enable_exit_handler_for_data_loader)
            _add_arguments(task, convert(given), type(self).__name__)


def straggler_det_callback(
    straggler_report_time_interval: float = 300.0,
    stop_if_detected_straggler: bool = True,
    gpu_relative_perf_threshold: float = 0.7,
    gpu_individual_perf_threshold: float = 0.7,
) -> run.Config:
    """Return the configuration of a StragglerDetectionCallback, to append to ``recipe.trainer.callbacks``.

    NeMo-Run serializes recipes, so they contain configurations; for an existing Trainer use the function of the same
    name in :mod:`rankwatch.integrations.lightning`.
    """
    return run.Config(
        _lightning("StragglerDetectionCallback"),
        report_time_interval=straggler_report_time_interval,
        gpu_relative_perf_threshold=gpu_relative_perf_threshold,
        gpu_individual_perf_threshold=gpu_individual_perf_threshold,
        stop_if_detected=stop_if_detected_straggler,
    )


# The executor --------------------------------------------------------------------------------------------------------


def _launcher(executor: run.Executor, program: Sequence[str] | None, *, required: bool) -> RankwatchLauncher | None:
    """Make the executor start the job by ``rankwatch run``; None if its present launcher is kept.

    ``required``: an incompatible launcher is an error.
    """
    before = executor.get_launcher()
    if isinstance(before, RankwatchLauncher):
        if program and not (isinstance(executor, run.SlurmExecutor) and _has_batch(executor)):
            before.program = list(program)
        return before
    if before.nsys_profile:
        raise ValueError("nsys cannot profile a job of these plugins: remove NsysPlugin or these plugins")
    if isinstance(before, run.SlurmTemplate) or (isinstance(before, run.FaultTolerance) and not required):
        if required:
            raise ValueError(
                f"FaultTolerancePlugin starts the job by 'rankwatch run', which {type(before).__name__} does not "
                "support: remove executor.launcher, or set it to torchrun"
            )
        logger.warning(
            "PreemptionPlugin keeps the launcher %s: ranks must agree on a stop themselves",
            type(before).__name__,
        )
        return None
    here = isinstance(executor, run.LocalExecutor)
    slurm = isinstance(executor, run.SlurmExecutor)
    if slurm:
        if executor.run_as_group or executor.heterogeneous:
            raise ValueError(
                "several tasks in one Slurm job cannot be restarted or resumed separately: add each task on its own, "
                "exp.add(task, executor=..., plugins=[...])"
            )
        executor.torchrun_nproc_per_node, executor.ntasks_per_node = executor.nproc_per_node(), 1
    port = getattr(before, "rdzv_port", 29500)
    number = getattr(before, "rdzv_id", None)
    launcher = RankwatchLauncher(
        program=list(program) if program else own_python("-m", "rankwatch") if here else ["rankwatch"],
        nodes=executor.nnodes(),
        ranks_per_node=executor.nproc_per_node(),
        rdzv_backend=getattr(before, "rdzv_backend", "c10d"),
        rdzv_endpoint=_rendezvous_endpoint(executor, port),
        rdzv_id=str(number) if number else "$SLURM_JOB_ID" if slurm else "",
        options={"--max-restarts": "0", "--observe-only": True, "--tee": "3"},
        shell=not here,
    )
    if not slurm:
        # Other executors than Slurm's declare by this method whether a launcher may rewrite the command.
        executor.supports_launcher_transform = lambda: True
    executor.launcher = launcher
    return launcher


def _rendezvous_endpoint(executor: run.Executor, port: int) -> str:
    """Return the rendezvous endpoint of several nodes; empty if the environment sets it."""
    if executor.nnodes() == 1:
        return ""
    if not isinstance(executor, run.LocalExecutor):
        return f"{HEAD_NODE}:{port}" if executor.macro_values() is not None else ""
    address, given = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not (address and given):
        raise ValueError(
            "run.LocalExecutor starts one of several nodes: set MASTER_ADDR and MASTER_PORT to those of the first node"
        )
    return f"{address}:{given}"


def _retries(executor: run.Executor, launcher: RankwatchLauncher, retries: int) -> dict[str, Any]:
    """Configure further launches after failures; return the flags of ``rankwatch run`` for them."""
    executor.retries = retries
    if isinstance(executor, run.LocalExecutor):
        flag = {"--finished-flag": f"{executor.job_dir}/finished_flag"} if executor.job_dir else {}
        return flag | {"--job-retries": str(retries)}
    if not isinstance(executor, run.SlurmExecutor):
        return {}
    flag_name = f"{executor.job_name}_finished_flag"
    folder = JOB_FOLDER
    if executor.container_image is not None:
        folder = str(Path(executor.tunnel.job_dir) / Path(executor.job_dir).name)
    if not _has_batch(executor):
        lines = batch_lines(launcher.program, retries, f"{folder}/rankwatch", f"{folder}/{flag_name}")
        executor.setup_lines = f"{executor.setup_lines}\n{lines}" if executor.setup_lines else lines
    if executor.signal and executor.signal.startswith("TERM@"):
        executor.signal = f"B:{executor.signal}"
    return {
        "--finished-flag": f"{JOB_FOLDER}/{flag_name}",
        "--outcome": f"{JOB_FOLDER}/rankwatch/outcome-{{node}}.json",
        "--ft-state": JOB_FOLDER,
    }


def _has_batch(executor: run.SlurmExecutor) -> bool:
    return " slurm batch " in (executor.setup_lines or "")


# The task ------------------------------------------------------------------------------------------------------------


def _fault_tolerance_overrides(args: FaultTolerancePluginScriptArgs) -> list[str]:
    return [
        f"ft.enable_ft_package={str(args.enable_ft_package).lower()}",
        f"ft.calc_ft_timeouts={str(args.calc_ft_timeouts).lower()}",
    ]


def _preemption_overrides(args: PreemptionPluginScriptArgs) -> list[str]:
    return [
        f"train.exit_signal_handler={args.enable_exit_handler}",
        f"train.exit_signal_handler_for_dataloader={args.enable_exit_handler_for_data_loader}",
    ]


def _add_arguments(task: run.Script, arguments: Sequence[str], plugin: str) -> None:
    if task.inline and arguments:
        logger.warning("%s: an inline script takes no arguments; %s is ignored", plugin, " ".join(arguments))
        return
    task.args.extend(arguments)
    logger.info("%s adds script arguments: %s", plugin, " ".join(arguments) or "none")


def _add_callbacks(task: run.Partial, callbacks: Sequence[Any], plugin: str) -> None:
    trainer = getattr(task, "trainer", None)
    if trainer is None:
        logger.warning("%s: the task has no trainer, so no callbacks are added", plugin)
        return
    present = list(getattr(trainer, "callbacks", None) or [])
    present += [copy.deepcopy(callback) for callback in callbacks if callback not in present]
    trainer.callbacks = present


def _lightning(name: str) -> Any:
    return getattr(import_module("rankwatch.integrations.lightning"), name)
