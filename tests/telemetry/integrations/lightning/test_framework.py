"""Which of Lightning's packages is taken, in interpreters that lack one of them, or both."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(120)

HIDE = """
import sys, importlib.abc
class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
"""

PREEMPTED = """
import os, signal, warnings
warnings.simplefilter("ignore")
import torch, pytorch_lightning as pl
from rankwatch.integrations.lightning import FaultToleranceCallback, PreemptionCallback

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def training_step(self, batch, batch_idx):
        if batch_idx == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return self.layer(batch).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

trainer = pl.Trainer(accelerator="cpu", devices=1, max_steps=1000, logger=False, enable_progress_bar=False,
    default_root_dir=".", enable_model_summary=False,
    callbacks=[FaultToleranceCallback(False, False), PreemptionCallback()])
trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(100, 2)))
assert isinstance(trainer.callbacks[0], pl.Callback)
assert (trainer.global_step, trainer.should_stop) == (4, True), trainer.global_step
assert os.path.exists(trainer.checkpoint_callback.last_model_path)
"""


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_pytorch_lightning_alone_is_enough(tmp_path: Path) -> None:
    pytest.importorskip("pytorch_lightning", reason="pytorch-lightning is not installed")
    done = run(HIDE.format(names=("lightning",)) + PREEMPTED, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Preemption detected, saving checkpoint and exiting" in done.stderr


def test_without_either_the_error_states_what_to_install(tmp_path: Path) -> None:
    hidden = HIDE.format(names=("lightning", "pytorch_lightning"))
    done = run(hidden + "import rankwatch\nimport rankwatch.integrations.lightning", tmp_path)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert (
        last
        == "ImportError: rankwatch.integrations.lightning needs Lightning: pip install lightning (or pytorch-lightning)"
    )
