"""What each rank runs in these tests: a real Trainer with our callbacks, steps of about 20 ms, checkpoints every ten.

It prints ``<rank R attempt A: ...>`` at each start and end. ``--callbacks`` holds JSON: parameters by class name.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from torch.utils.data import DataLoader, TensorDataset

from rankwatch.integrations import lightning as ours
from rankwatch.integrations.nvrx.fault_tolerance import WorkloadAction, WorkloadControlRequest

PACE = 0.02  # seconds of a step that stand for the rest of a model

# The same operator with the same shapes on all ranks, as a device that is slow would run it.
LIBRARY = torch.library.Library("rankwatch_test", "DEF")
LIBRARY.define("work(Tensor given, float seconds) -> ()")
LIBRARY.impl("work", lambda _, seconds: time.sleep(seconds), "CPU")


def log(text: str) -> None:
    rank, attempt = os.environ.get("RANK", "0"), os.environ.get("RANKWATCH_ATTEMPT", "1")
    os.write(1, f"<rank {rank} attempt {attempt}: {text}>\n".encode())  # in one piece, whatever the others write


class Model(pl.LightningModule):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
        self.options = options

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.options.on_exception and self.global_rank == 1 and self.global_step == 5:
            raise ArithmeticError("a loss that no restart cures")
        if self.options.slow_rank < 0:
            time.sleep(PACE)
        else:
            torch.ops.rankwatch_test.work(batch[0], 0.012 if self.global_rank == self.options.slow_rank else 0.002)
        loss = self.layer(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        time.sleep(PACE)

    def on_train_start(self) -> None:
        log(f"begins with step {self.trainer.global_step}")
        (self.options.folder / f"started-{self.global_rank}").touch()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def request_by(action: str) -> Callable[[BaseException], WorkloadControlRequest]:
    return lambda error: WorkloadControlRequest(WorkloadAction[action], f"{type(error).__name__}: {error}")


def train(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(400, 8))
    given = json.loads(options.callbacks)
    if options.on_exception:
        given["FaultToleranceSectionsCallback"]["exc_handling_policy"] = request_by(options.on_exception)
    callbacks = [getattr(ours, name)(**parameters) for name, parameters in given.items()]
    keeper = ModelCheckpoint(options.folder / "checkpoints", every_n_train_steps=options.save_every, save_last=True)
    loggers: list[Any] = [CSVLogger(options.folder, name="csv", version=0)]
    if options.wandb:
        from lightning.pytorch.loggers import WandbLogger

        loggers.append(WandbLogger(save_dir=str(options.folder), offline=True))
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", options.devices)),
        strategy="ddp" if int(os.environ.get("WORLD_SIZE", options.devices)) > 1 else "auto",
        max_steps=options.steps,
        max_epochs=-1,
        logger=loggers,
        log_every_n_steps=5,
        val_check_interval=options.validate_every,
        check_val_every_n_epoch=None,
        limit_val_batches=3,
        callbacks=[*callbacks, keeper],
        plugins=[AsyncCheckpointIO()] if options.background else None,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader, evaluation = (DataLoader(data, batch_size=2, num_workers=options.workers) for _ in range(2))
    trainer.fit(Model(options), loader, evaluation, ckpt_path="last")
    log(f"ends with step {trainer.global_step}, should_stop={trainer.should_stop}")
    if options.wandb and trainer.global_rank == 0:
        loggers[-1].experiment.finish()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--callbacks", required=True)
    parser.add_argument("--steps", type=int, default=10**6)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--validate-every", type=int, default=40)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--on-exception", default="", help="rank 1 raises; the WorkloadAction that its policy returns")
    parser.add_argument("--wandb", action="store_true", help="W&B is one of the loggers, offline")
    parser.add_argument("--background", action="store_true", help="checkpoints are written in the background")
    warnings.simplefilter("ignore")
    # Without an interpreter that shuts down: gloo's threads sometimes abort it there.
    code = 0
    try:
        train(parser.parse_args())
    except SystemExit as asked:
        code = asked.code if isinstance(asked.code, int) else 1
    except BaseException:  # noqa: BLE001 - whatever it was, it is shown and becomes the exit code
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
