"""Evaluations and checkpoints of real frameworks, in scripts that know nothing of Rankwatch."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from telemetry.integrations.autorun.test_autorun import run

READ = """
from rankwatch.recording import sections, shared_slots
recorder = sections._recorder
within = {}
def inside(word):
    words = recorder.words
    places = range(shared_slots.OPEN, shared_slots.OPEN + 2 * shared_slots.OPEN_COUNT, 2)
    within.setdefault(word, sorted(recorder.slots.name(words[place]) for place in places if words[place]))
def printed():
    import collections, json
    names = [recorder.slots.name(number) for number, *_ in recorder.finished]
    inside("end")
    print(json.dumps({"within": within, "sections": dict(collections.Counter(names)),
                      "iteration": recorder.words[shared_slots.ITERATION], "failed": recorder.dropped.get("auto", 0)}))
"""
LIGHTNING = """
import lightning.pytorch as pl, torch
from lightning.pytorch.callbacks import ModelCheckpoint
class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def training_step(self, batch, _):
        return self.layer(batch).sum()
    def validation_step(self, batch, _):
        self.layer(batch)
    def on_validation_epoch_end(self):
        inside("metrics")
    def on_save_checkpoint(self, _):
        inside("save")
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
data = torch.utils.data.DataLoader(torch.ones(4, 2))
trainer = pl.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, num_sanity_val_steps=0,
                     enable_model_summary=False, callbacks=[ModelCheckpoint("saved")])
trainer.fit(Model(), data, data)
"""
TRANSFORMERS = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return {"input_ids": torch.ones(8, dtype=torch.long), "labels": torch.ones(8, dtype=torch.long)}
class Look(TrainerCallback):
    def on_evaluate(self, *_, **__):
        inside("metrics")
class Saves(Trainer):
    def save_model(self, *args, **kwargs):
        inside("save")
        super().save_model(*args, **kwargs)
arguments = TrainingArguments("saved", max_steps=8, per_device_train_batch_size=1, eval_strategy="steps", eval_steps=4,
                              save_strategy="steps", save_steps=4, logging_strategy="no", report_to=[],
                              disable_tqdm=True, use_cpu=True)
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=1))
Saves(model, arguments, train_dataset=Tokens(), eval_dataset=Tokens(), callbacks=[Look()]).train()
"""
ACCELERATE = """
import accelerate, torch
accelerator = accelerate.Accelerator(cpu=True)
model = torch.nn.Linear(2, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
accelerator.register_save_state_pre_hook(lambda *_: inside("save"))
for step in range(8):
    accelerator.backward(model(torch.ones(1, 2)).sum())
    optimizer.step()
    if step % 4 == 3:
        accelerator.save_state("saved")
inside("metrics")
"""


@pytest.mark.parametrize(
    ("framework", "script", "metrics", "save"),
    [
        ("lightning", LIGHTNING, ["evaluation"], "checkpointing"),
        ("transformers", TRANSFORMERS, ["evaluation"], "checkpointing"),
        ("accelerate", ACCELERATE, [], "checkpointing"),
    ],
    ids=["lightning", "transformers", "accelerate"],
)
def test_an_evaluation_and_a_checkpoint_of_a_framework_are_one_section_each(
    framework: str, script: str, metrics: list[str], save: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    monkeypatch.chdir(tmp_path)
    seen = json.loads(run("-c", READ + script + "printed()", warnings="ignore").splitlines()[-1])
    assert seen["within"]["metrics"] == metrics, "also while no batch is evaluated"
    assert save in seen["within"]["save"], "also before anything is written"
    assert seen["within"]["end"] == []
    assert (seen["iteration"], seen["failed"]) == (8, 0)
    assert seen["sections"]["checkpointing"] == 2
    assert seen["sections"].get("evaluation", 0) == (2 if metrics else 0)
