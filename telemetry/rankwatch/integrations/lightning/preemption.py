"""PreemptionCallback: upon a signal, saves a checkpoint and ends the run on every rank after the same step.

==================================  ==================================================================================
under ``rankwatch run``             the rank records the signal in its slots; the launchers agree on a step ahead of all
                                    ranks, after which ``rankwatch.should_stop()`` is true. A signal to the launcher or
                                    a directive of the monitor have the same effect
one process, no launcher            it stops after the step in which the signal arrived
several ranks, another launcher     they agree through the store of their process group (``stop_agreement.py``)
==================================  ==================================================================================

Lightning's own handler of SIGTERM issues a collective; this one replaces it during training.
"""

# ruff: noqa: ARG002 - the signatures of hooks are Lightning's
from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

import rankwatch
from rankwatch import launcher_requests
from rankwatch.integrations.lightning.fit_monitor import FIT, FitMonitor, MonitoredCallback
from rankwatch.integrations.lightning.framework import LightningModule, Trainer, logger_named
from rankwatch.integrations.lightning.graceful_stop import LOGGER
from rankwatch.integrations.lightning.stop_agreement import StoreAgreement, store_of_ranks
from rankwatch.liveness import worker_signals


class _SignalHandler:
    """The handler of the signal during training."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.received = False
        self._pid = os.getpid()
        self._released = False
        self._previous = signal.signal(number, self._handle)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if os.getpid() != self._pid or self._released:
            # A forked child inherited the handler, or Lightning restored it after its release.
            self._restore()
            os.kill(os.getpid(), number)
            return
        self.received = True
        rankwatch.request_stop()

    def release(self) -> None:
        self._released = True
        if threading.current_thread() is threading.main_thread() and signal.getsignal(self.number) == self._handle:
            self._restore()

    def _restore(self) -> None:
        signal.signal(self.number, signal.SIG_DFL if self._previous is None else self._previous)


class PreemptionCallback(MonitoredCallback):
    """Saves a checkpoint and ends the run cleanly upon a signal, on all ranks after the same step.

    ``fit(ckpt_path="last")`` resumes from the checkpoint. ``trainer.should_stop`` is true after such a ``fit``.

    Args:
        sig: the signal; default: SIGTERM.

    Raises:
        ValueError: the signal does not exist or cannot be caught.
    """

    def __init__(self, sig: int | None = None) -> None:
        self.sig = _signal(sig)
        self._handler: _SignalHandler | None = None
        self._logged = self._shelters = False
        self._agreement: StoreAgreement | None = None
        self._alone = False
        self._runs = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin; shield the data loaders' workers, which are started before training, from the signal."""
        super().setup(trainer, pl_module, stage)
        if stage != FIT:
            return
        if not worker_signals.shelters():  # else rankwatch.init() has done it
            self._shelters = True
            worker_signals.shelter_children(self.sig)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Install the handler, after Lightning's own."""
        self._release(shelter=False)
        self._logged = False
        self._runs += 1
        if threading.current_thread() is not threading.main_thread():
            self._log.warning("fit() does not run in the main thread: signal %d cannot be caught", self.sig)
        else:
            self._handler = _SignalHandler(self.sig)
        launched = launcher_requests.connected()
        store = None if launched or trainer.world_size == 1 else store_of_ranks()
        self._agreement = None if store is None else StoreAgreement(store, self._runs, self._log)
        self._alone = not launched and self._agreement is None
        if self._agreement is not None and trainer.global_rank == 0:
            self._log.info(
                "these ranks do not run under `rankwatch run`: upon signal %d they agree on a step to stop after "
                "through the store of their process group",
                self.sig,
            )
        if self._alone and trainer.world_size > 1:
            self._log.warning("the process group has no store: a rank that receives signal %d stops alone", self.sig)

    def after_step(self, trainer: Trainer, monitor: FitMonitor) -> None:
        """Stop here if this is the agreed step, without a launcher."""
        received = self._handler is not None and self._handler.received
        if received and not self._logged:
            self._logged = True
            self._log.info("Received signal %d, initiating graceful stop", self.sig)
        if monitor.stopped:
            return
        agreed = self._agreement is not None and self._agreement.completed(signalled=received)
        if agreed or (self._alone and received):
            monitor.stop(trainer, preempted=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the previous handler."""
        self._release()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Restore the previous handler, however training ended."""
        if stage == FIT:
            self._release()
        super().teardown(trainer, pl_module, stage)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Restore the previous handler."""
        self._release()
        super().on_exception(trainer, pl_module, exception)

    @property
    def _log(self) -> Any:
        return logger_named(LOGGER)

    def _release(self, *, shelter: bool = True) -> None:
        if self._handler is not None:
            self._handler.release()
            self._handler = None
        if shelter and self._shelters:
            self._shelters = False
            worker_signals.shelter_no_more()


def _signal(given: int | None) -> signal.Signals:
    try:
        number = signal.SIGTERM if given is None else signal.Signals(given)
    except ValueError:
        raise ValueError(f"sig must be the number of a signal, for example signal.SIGTERM, not {given!r}") from None
    if number in (signal.SIGKILL, signal.SIGSTOP):
        raise ValueError(f"sig must be a signal that a process can catch; {number.name} is not")
    return number
