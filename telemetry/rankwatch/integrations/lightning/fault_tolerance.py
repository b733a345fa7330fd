"""FaultToleranceCallback: a run whose hangs are found, whose limits are learned, and that says when it is done."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import rankwatch
from rankwatch.contract import env, ft_state
from rankwatch.contract.ft_state import LearnedTimeouts
from rankwatch.integrations.lightning import kept_timeouts, simulated, stopping
from rankwatch.integrations.lightning.framework import LightningModule, Trainer, logger_named
from rankwatch.integrations.lightning.watching import FIT, Watch, WatchedCallback, watch_of
from rankwatch.integrations.shared.state_file import FILE_SECONDS, StateFile, as_policy
from rankwatch.integrations.shared.with_timeout import aside

LOGGER: Final = "nemo_logger.FaultToleranceCallback"


class FaultToleranceCallback(WatchedCallback):
    """Shows a Lightning run to Rankwatch: sections, heartbeats and progress, from which hangs are found.

    Active during ``fit``; start the script with ``rankwatch run``. Without a launcher or a monitor, training runs just
    the same. Everything but the parameters is set up in the hook ``setup``.

    Args:
        autoresume: training consists of several jobs, one after the other. When training is complete (``max_steps`` or
            ``max_epochs`` is reached, not by an error nor by an order to stop) rank 0 creates the file that the
            environment variable ``FAULT_TOL_FINISHED_FLAG_FILE`` names, and no launcher runs the job again.
        calculate_timeouts: learned limits also replace configured ones. They are kept in ``ft_state.json`` at the end
            of a run that both loaded and saved a checkpoint, and are in force from the start of the next one.
        simulated_fault_params: a fault on purpose: :class:`.SimulatedFaultParams`, or any mapping or object with its
            fields. It strikes once, in the first attempt of a job only.
        exp_dir: folder of ``ft_state.json``, the same for all jobs; by default ``trainer.log_dir/ft_state``.
        logger_name: the logger to write to.

    Raises:
        ValueError: the simulated fault makes no sense.
    """

    def __init__(
        self,
        autoresume: bool,
        calculate_timeouts: bool,
        simulated_fault_params: Any | None = None,
        exp_dir: str | os.PathLike[str] | None = None,
        logger_name: str | None = LOGGER,
    ) -> None:
        self.autoresume = autoresume
        self.calculate_timeouts = calculate_timeouts
        self.simulated_fault_params = simulated.parameters(simulated_fault_params)
        self.exp_dir = exp_dir
        self.logger_name = logger_name
        self._earlier: LearnedTimeouts | None = None
        self._file: StateFile | None = None
        self._fault_began = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin to watch, with the limits of earlier jobs."""
        super().setup(trainer, pl_module, stage)
        if stage != FIT:
            return
        if trainer.global_rank == 0:
            if self.autoresume and not _flag_file():
                self._log.warning(
                    "autoresume=True, but %s is not set: a chain of jobs cannot see that training is complete; "
                    "start the script with `rankwatch run --finished-flag FILE`",
                    env.FINISHED_FLAG,
                )
            if self.calculate_timeouts:
                self._take_earlier_timeouts(trainer)
        self._begin_fault()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Say that training is complete, if it is, and keep what was learned."""
        watch = watch_of(trainer)
        if stage == FIT and watch.running and trainer.global_rank == 0:
            if self.autoresume and _is_complete(trainer, watch):
                self._mark_complete()
            self._keep_timeouts(trainer, watch)
        super().teardown(trainer, pl_module, stage)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """A script that leaves by ``sys.exit(0)`` has learned something too."""
        watch = watch_of(trainer)
        clean = isinstance(exception, SystemExit) and not exception.code
        if clean and watch.running and trainer.global_rank == 0:
            self._keep_timeouts(trainer, watch)
        super().on_exception(trainer, pl_module, exception)

    @property
    def _log(self) -> Any:
        return logger_named(self.logger_name)

    def _begin_fault(self) -> None:
        if self.simulated_fault_params is None or self._fault_began:
            return
        self._fault_began = True
        try:
            self.simulated_fault_params.begin()
        except ValueError as error:  # its fields were checked, so it is this process that cannot do it
            self._log.error("no fault is simulated: %s", error)

    def _take_earlier_timeouts(self, trainer: Trainer) -> None:
        folder = kept_timeouts.folder_of(trainer, self.exp_dir)
        self._file = StateFile(folder / ft_state.FILE_NAME, self._log)
        self._earlier = kept_timeouts.earlier(folder, self._log)
        changes: dict[str, Any] = {"calculate_timeouts": True}
        if self._earlier is not None:
            changes |= as_policy(self._earlier)
            self._log.info("Learned timeouts of earlier jobs are in force: %s", _shown(changes))
        rankwatch.change_policy(changes)

    def _keep_timeouts(self, trainer: Trainer, watch: Watch) -> None:
        if not (self.calculate_timeouts and watch.loaded and watch.saved and self._file is not None):
            return
        learned = rankwatch.learned_timeouts()
        if learned is None:
            return
        kept = kept_timeouts.merged(learned, self._earlier, background=stopping.saves_in_background(trainer))
        if self._file.write(ft_state.write(kept, {}, None), seconds=FILE_SECONDS):
            self._log.info("Updated timeouts: %s; kept in %s", _shown(as_policy(kept)), self._file.path)

    def _mark_complete(self) -> None:
        rankwatch.mark_complete()
        flag = _flag_file()
        if not flag:
            return
        try:
            aside(lambda: _touch(Path(flag)), FILE_SECONDS, "creating it")
        except OSError as error:
            self._log.error("training is complete, but the finished flag %s cannot be created: %s", flag, error)
        else:
            self._log.info("Training is complete: created %s", flag)


class FaultToleranceSectionsCallback(FaultToleranceCallback):
    """The same under the name of NVRx's variant with sections, which ours always has.

    ``exc_handling_policy`` is accepted and does nothing: no callback of Rankwatch raises into training.
    """

    def __init__(
        self,
        autoresume: bool,
        calculate_timeouts: bool,
        simulated_fault_params: Any | None = None,
        exp_dir: str | os.PathLike[str] | None = None,
        logger_name: str | None = LOGGER,
        exc_handling_policy: Any = None,  # noqa: ARG002
    ) -> None:
        super().__init__(autoresume, calculate_timeouts, simulated_fault_params, exp_dir, logger_name)


def _is_complete(trainer: Trainer, watch: Watch) -> bool:
    """Whether ``fit`` has come to what it was asked for. Neither an early stop nor ``max_time`` count."""
    if watch.stopped or getattr(trainer, "fast_dev_run", False):
        return False
    steps, epochs = trainer.max_steps, trainer.max_epochs
    return 0 < steps <= trainer.global_step or (epochs is not None and 0 < epochs <= trainer.current_epoch)


def _touch(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()


def _flag_file() -> str:
    return os.environ.get(env.FINISHED_FLAG, "")


def _shown(changes: dict[str, Any]) -> str:
    limits = dict(changes.get("section_timeouts") or {})
    limits |= {name.removesuffix("_timeout"): value for name, value in changes.items() if name.endswith("_timeout")}
    return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in limits.items())
