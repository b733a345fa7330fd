"""Trains a small model with Lightning: rankwatch run --nproc-per-node 2 train_lightning.py."""

import os

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from rankwatch.integrations.lightning import FaultToleranceCallback, PreemptionCallback, StragglerDetectionCallback


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:  # noqa: ARG002
        return (self.layer(batch[0]) - batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


trainer = pl.Trainer(
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    strategy="ddp",
    max_steps=600,
    callbacks=[
        FaultToleranceCallback(autoresume=True, calculate_timeouts=True, exp_dir="lightning"),
        StragglerDetectionCallback(),
        PreemptionCallback(),
        ModelCheckpoint("lightning", every_n_train_steps=50, save_last=True),
    ],
    logger=False,
    enable_progress_bar=False,
)
data = DataLoader(TensorDataset(torch.randn(6400, 64)), batch_size=32, num_workers=0)
trainer.fit(Model(), data, ckpt_path="last")
