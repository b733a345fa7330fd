"""Models and trainers of ``test_fit_monitor.py``, whose tests import this as they run: Lightning takes seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

import rankwatch
from rankwatch.integrations.lightning import FaultToleranceCallback, PreemptionCallback, StragglerDetectionCallback
from rankwatch.integrations.lightning.fit_monitor import monitor_of as monitor_of
from rankwatch.integrations.lightning.simulated_fault import SimulatedFaultParams as SimulatedFaultParams
from rankwatch.recording import sections, shared_slots


def opened() -> set[str]:
    recorder = sections.attached()
    reading = shared_slots.read(recorder.slots) if recorder is not None else None
    return set(reading.open_sections) if reading is not None else set()


def completed() -> int:
    """Steps that were completed."""
    recorder = sections.attached()
    assert recorder is not None
    return recorder.iteration


class Model(pl.LightningModule):
    """Notes what is open in each batch, and before it how many steps are complete."""

    def __init__(self, act: Callable[[int], Any] = lambda _: None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.act = act
        self.trained: list[tuple[int, set[str]]] = []
        self.evaluated: list[tuple[int, set[str]]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.trained.append((completed() if rankwatch.is_initialized() else -1, opened()))
        self.act(batch_idx)
        return self.layer(batch).sum()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.evaluated.append((completed() if rankwatch.is_initialized() else -1, opened()))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class ByHand(Model):
    """Steps its optimizer itself, past Lightning, so that the global step stays at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        super().training_step(batch, batch_idx).backward()
        self.optimizers(use_pl_optimizer=False).step()


class Logging(Model):
    """Logs a value that changes and one that does not, as tensors on the model's device."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss)
        self.log("share", torch.tensor(0.25, device=self.device))
        return loss


class Kept(pl.loggers.logger.Logger):
    """Keeps what Lightning logs."""

    name, version = "kept", "0"

    def __init__(self) -> None:
        self.values: list[tuple[str, float]] = []

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.values += [(name, value) for name, value in metrics.items() if name != "epoch"]

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        pass


def trainer(folder: Path, *callbacks: Any, **more: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    given = {"accelerator": "cpu", "devices": 1, "max_epochs": 1, "enable_checkpointing": False, **quiet, **more}
    return pl.Trainer(default_root_dir=folder, callbacks=list(callbacks), **given)


def data(batches: int = 10) -> Any:
    return torch.utils.data.DataLoader(torch.randn(batches, 2))


def all_three() -> list[Any]:
    return [FaultToleranceCallback(True, True), StragglerDetectionCallback(), PreemptionCallback()]
