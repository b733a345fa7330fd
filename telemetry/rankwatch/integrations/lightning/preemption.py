"""PreemptionCallback: a signal becomes a checkpoint and a clean end, on every rank after the same step.

How this works
--------------
==================================  ==================================================================================
under our launcher                  the rank notes the signal in its slots; the launchers agree on a step ahead of every
                                    rank, and ``rankwatch.should_stop()`` says so after it. A signal to the launcher
                                    alone, or an order, comes the same way
one process, no launcher            it stops by itself after the step in which the signal came
several ranks, another launcher     they agree through the store of their process group (``agreement.py``)
==================================  ==================================================================================

Lightning has a handler of SIGTERM too, which issues a collective from within. Ours takes its place while training runs.
"""

# ruff: noqa: ARG002 - the signatures of hooks are Lightning's
from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType
from typing import Any

from rankwatch import launcher_requests
from rankwatch.integrations.lightning.agreement import StoreAgreement, store_of_ranks
from rankwatch.integrations.lightning.framework import LightningModule, Trainer, logger_named
from rankwatch.integrations.lightning.stopping import LOGGER
from rankwatch.integrations.lightning.watching import FIT, Watch, WatchedCallback
from rankwatch.liveness import worker_signals
from rankwatch.recording import sections
from rankwatch.recording.shared_slots import STOP_SIGNALLED


class _Caught:
    """The handler of the signal, from training's start to its end."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.noticed = False
        self._pid = os.getpid()
        self._released = False
        self._before = signal.signal(number, self._handle)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if os.getpid() != self._pid or self._released:
            # A child that inherited the handler, or Lightning has put it back after we had left it.
            self._put_back()
            os.kill(os.getpid(), number)
            return
        self.noticed = True
        recorder = sections.attached()
        if recorder is not None:
            recorder.words[STOP_SIGNALLED] = time.monotonic_ns()

    def release(self) -> None:
        self._released = True
        if threading.current_thread() is threading.main_thread() and signal.getsignal(self.number) == self._handle:
            self._put_back()

    def _put_back(self) -> None:
        signal.signal(self.number, signal.SIG_DFL if self._before is None else self._before)


class PreemptionCallback(WatchedCallback):
    """Saves a checkpoint and ends the run cleanly when a signal comes: at the end of the step, on all ranks alike.

    The checkpoint lies where ``fit(ckpt_path="last")`` finds it. ``trainer.should_stop`` is true after such a ``fit``.

    Args:
        sig: the signal to listen for, SIGTERM unless told otherwise.

    Raises:
        ValueError: there is no such signal, or it cannot be caught.
    """

    def __init__(self, sig: int | None = None) -> None:
        self.sig = _signal(sig)
        self._caught: _Caught | None = None
        self._said = self._shelters = False
        self._agreement: StoreAgreement | None = None
        self._alone = False
        self._runs = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin to watch; shelter the data loaders' workers, which are started before training is."""
        super().setup(trainer, pl_module, stage)
        if stage != FIT:
            return
        if not worker_signals.shelters():  # else rankwatch.init() has seen to it
            self._shelters = True
            worker_signals.shelter_children(self.sig)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the signal; later than Lightning does."""
        self._release(shelter=False)
        self._said = False
        self._runs += 1
        if threading.current_thread() is not threading.main_thread():
            self._log.warning("fit() does not run in the main thread: signal %d cannot be caught", self.sig)
        else:
            self._caught = _Caught(self.sig)
        launched = launcher_requests.heard()
        store = None if launched or trainer.world_size == 1 else store_of_ranks()
        self._agreement = None if store is None else StoreAgreement(store, self._runs, self._log)
        self._alone = not launched and self._agreement is None
        if self._agreement is not None and trainer.global_rank == 0:
            self._log.info(
                "no launcher of Rankwatch runs these ranks: upon signal %d they agree on a step to stop after through "
                "the store of their process group",
                self.sig,
            )
        if self._alone and trainer.world_size > 1:
            self._log.warning("the process group has no store: a rank that gets signal %d stops by itself", self.sig)

    def after_step(self, trainer: Trainer, watch: Watch) -> None:
        """Stop here, if there is no launcher to say after which step."""
        noticed = self._caught is not None and self._caught.noticed
        if noticed and not self._said:
            self._said = True
            self._log.info("Received signal %d, initiating graceful stop", self.sig)
        if watch.stopped:
            return
        agreed = self._agreement is not None and self._agreement.completed(signalled=noticed)
        if agreed or (self._alone and noticed):
            watch.stop(trainer, preempted=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the signal to whoever had it."""
        self._release()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """The same, however training ended."""
        if stage == FIT:
            self._release()
        super().teardown(trainer, pl_module, stage)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """The same."""
        self._release()
        super().on_exception(trainer, pl_module, exception)

    @property
    def _log(self) -> Any:
        return logger_named(LOGGER)

    def _release(self, *, shelter: bool = True) -> None:
        if self._caught is not None:
            self._caught.release()
            self._caught = None
        if shelter and self._shelters:
            self._shelters = False
            worker_signals.shelter_no_more()


def _signal(given: int | None) -> signal.Signals:
    try:
        number = signal.SIGTERM if given is None else signal.Signals(given)
    except ValueError:
        raise ValueError(f"sig must be the number of a signal, for example signal.SIGTERM, not {given!r}") from None
    if number in (signal.SIGKILL, signal.SIGSTOP):
        raise ValueError(f"sig must be a signal that a process can catch; {number.name} is none")
    return number
