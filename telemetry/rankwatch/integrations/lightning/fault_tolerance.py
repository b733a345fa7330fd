"""FaultToleranceCallback: hang detection, learned timeouts, and the finished flag of a Lightning run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import rankwatch
from rankwatch.contract import env, ft_state
from rankwatch.contract.ft_state import LearnedTimeouts
from rankwatch.integrations.lightning import graceful_stop, saved_timeouts, simulated_fault
from rankwatch.integrations.lightning.fit_monitor import FIT, FitMonitor, MonitoredCallback, monitor_of
from rankwatch.integrations.lightning.framework import LightningModule, Trainer, logger_named
from rankwatch.integrations.nvrx import workload
from rankwatch.integrations.nvrx.workload import WorkloadAction, WorkloadControlRequest
from rankwatch.integrations.shared.state_file import FILE_SECONDS, StateFile, as_policy
from rankwatch.integrations.shared.with_timeout import with_timeout

LOGGER: Final = "nemo_logger.FaultToleranceCallback"


class FaultToleranceCallback(MonitoredCallback):
    """Records sections, heartbeats and progress of a Lightning run, from which hangs are detected.

    Active during ``fit``; start the script with ``rankwatch run``. Training also runs without a launcher or monitor.
    Everything but the parameters is initialized in the hook ``setup``.

    Args:
        autoresume: training is a chain of jobs. When it is complete (``max_steps`` or ``max_epochs`` is reached, not
            after an error or a stop request) rank 0 creates the file that the environment variable
            ``FAULT_TOL_FINISHED_FLAG_FILE`` names, and no launcher runs the job again.
        calculate_timeouts: learned limits are written to ``ft_state.json`` at the end of a run that both loaded and
            saved a checkpoint, and replace configured ones from the start of the next run. Within a run a learned limit
            raises a suspicion where the configured one is longer.
        simulated_fault_params: a fault to inject: :class:`.SimulatedFaultParams`, or any mapping or object with its
            fields. It occurs once, in the first attempt of a job.
        exp_dir: folder of ``ft_state.json``, the same for all jobs; default: ``trainer.log_dir/ft_state``.
        logger_name: the logger to write to.
        log: pass ``trainer.callback_metrics`` (loss, learning rate) to :func:`rankwatch.log` every
            ``trainer.log_every_n_steps`` steps, which then waits for the device as Lightning's own loggers do.

    Raises:
        ValueError: the simulated fault is invalid.
    """

    def __init__(
        self,
        autoresume: bool,
        calculate_timeouts: bool,
        simulated_fault_params: Any | None = None,
        exp_dir: str | os.PathLike[str] | None = None,
        logger_name: str | None = LOGGER,
        *,
        log: bool = True,
    ) -> None:
        self.log = log
        self.autoresume = autoresume
        self.calculate_timeouts = calculate_timeouts
        self.simulated_fault_params = simulated_fault.parameters(simulated_fault_params)
        self.exp_dir = exp_dir
        self.logger_name = logger_name
        self._earlier: LearnedTimeouts | None = None
        self._file: StateFile | None = None
        self._fault_began = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin, with the limits of earlier jobs."""
        super().setup(trainer, pl_module, stage)
        if stage != FIT:
            return
        if trainer.global_rank == 0:
            if self.autoresume and not _flag_file():
                self._log.warning(
                    "autoresume=True, but %s is not set: the next job cannot detect that training is complete; "
                    "start the script with `rankwatch run --finished-flag FILE`",
                    env.FINISHED_FLAG,
                )
            if self.calculate_timeouts:
                self._apply_earlier_timeouts(trainer)
        self._begin_fault()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Mark training as complete, if it is, and write the learned limits."""
        monitor = monitor_of(trainer)
        if stage == FIT and monitor.running and trainer.global_rank == 0:
            if self.autoresume and _is_complete(trainer, monitor):
                self._mark_complete()
            self._write_timeouts(trainer, monitor)
        super().teardown(trainer, pl_module, stage)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Write the learned limits also if the script ends by ``sys.exit(0)``."""
        monitor = monitor_of(trainer)
        clean = isinstance(exception, SystemExit) and not exception.code
        if clean and monitor.running and trainer.global_rank == 0:
            self._write_timeouts(trainer, monitor)
        super().on_exception(trainer, pl_module, exception)

    def after_step(self, trainer: Trainer, monitor: FitMonitor) -> None:  # noqa: ARG002 - the hook's signature
        """Pass on what was logged, as often as Lightning does."""
        every = getattr(trainer, "log_every_n_steps", 0)
        if not self.log or not every or trainer.global_step % every:
            return
        if trainer.global_rank not in (0, trainer.world_size - 1):
            return
        metrics = trainer.callback_metrics
        rankwatch.log({name: each.item() for name, each in metrics.items() if each.numel() == 1}, trainer.global_step)

    @property
    def _log(self) -> Any:
        return logger_named(self.logger_name)

    def _begin_fault(self) -> None:
        if self.simulated_fault_params is None or self._fault_began:
            return
        self._fault_began = True
        try:
            self.simulated_fault_params.begin()
        except ValueError as error:  # the fields are valid, so this process does not support it
            self._log.error("no fault is simulated: %s", error)

    def _apply_earlier_timeouts(self, trainer: Trainer) -> None:
        folder = saved_timeouts.folder_of(trainer, self.exp_dir)
        self._file = StateFile(folder / ft_state.FILE_NAME, self._log)
        self._earlier = saved_timeouts.load(folder, self._log)
        changes: dict[str, Any] = {"calculate_timeouts": True}
        if self._earlier is not None:
            changes |= as_policy(self._earlier)
            self._log.info("Learned timeouts of earlier jobs are in force: %s", _format(changes))
        rankwatch.change_policy(changes, calculated=True)

    def _write_timeouts(self, trainer: Trainer, monitor: FitMonitor) -> None:
        if not (self.calculate_timeouts and monitor.loaded and monitor.saved and self._file is not None):
            return
        learned = rankwatch.learned_timeouts()
        if learned is None:
            return
        merged = saved_timeouts.merge(learned, self._earlier, background=graceful_stop.saves_in_background(trainer))
        if self._file.write(ft_state.write(merged, {}, None), seconds=FILE_SECONDS):
            self._log.info(
                "Updated FT timeouts. New values: %s; written to %s", _format(as_policy(merged)), self._file.path
            )

    def _mark_complete(self) -> None:
        rankwatch.mark_complete()
        self._create_flag("training is complete")

    def _create_flag(self, reason: str) -> None:
        flag = _flag_file()
        if not flag:
            return
        try:
            with_timeout(lambda: _touch(Path(flag)), FILE_SECONDS, "creating it")
        except OSError as error:
            self._log.error("%s, but the finished flag %s cannot be created: %s", reason, flag, error)
        else:
            self._log.info("%s: created %s", reason.capitalize(), flag)


class FaultToleranceSectionsCallback(FaultToleranceCallback):
    """NVRx's variant with sections, which :class:`FaultToleranceCallback` always records.

    Args:
        exc_handling_policy: called with an exception that training raised, on the rank that raised it; returns the
            ``WorkloadControlRequest`` to send: exclude this node, shut the workload down (which also creates the
            finished flag), or continue. Its own exceptions are logged.
    """

    def __init__(
        self,
        autoresume: bool,
        calculate_timeouts: bool,
        simulated_fault_params: Any | None = None,
        exp_dir: str | os.PathLike[str] | None = None,
        logger_name: str | None = LOGGER,
        exc_handling_policy: Callable[[BaseException], WorkloadControlRequest] | None = None,
    ) -> None:
        super().__init__(autoresume, calculate_timeouts, simulated_fault_params, exp_dir, logger_name)
        self.exc_handling_policy = exc_handling_policy

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Request what the policy for exceptions decides."""
        if self.exc_handling_policy is not None and monitor_of(trainer).running:
            try:
                request = self.exc_handling_policy(exception)
                workload.send(request)
                if request.action is WorkloadAction.ShutdownWorkload:
                    self._create_flag("the workload shuts down")
            except Exception:  # noqa: BLE001 - the policy is user code; the script's own exception goes on
                self._log.exception("exc_handling_policy failed for %s; nothing is requested", type(exception).__name__)
        super().on_exception(trainer, pl_module, exception)


def _is_complete(trainer: Trainer, monitor: FitMonitor) -> bool:
    """Whether ``fit`` has reached ``max_steps`` or ``max_epochs``; an early stop or ``max_time`` do not count."""
    if monitor.stopped or getattr(trainer, "fast_dev_run", False):
        return False
    steps, epochs = trainer.max_steps, trainer.max_epochs
    return 0 < steps <= trainer.global_step or (epochs is not None and 0 < epochs <= trainer.current_epoch)


def _touch(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()


def _flag_file() -> str:
    return os.environ.get(env.FINISHED_FLAG, "")


def _format(changes: dict[str, Any]) -> str:
    limits = dict(changes.get("section_timeouts") or {})
    limits |= {name.removesuffix("_timeout"): value for name, value in changes.items() if name.endswith("_timeout")}
    return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in limits.items())
