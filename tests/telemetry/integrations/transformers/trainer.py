"""A real Trainer on each rank: a tiny random model, checkpoints, evaluations; with our callback or without.

Goes on from the last checkpoint in ``--folder``, if there is one.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

RANK = int(os.environ.get("RANK", "0"))


class Tokens(Dataset):
    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 32, (8,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class Pace(TrainerCallback):
    def on_step_end(self, *_: Any, **__: Any) -> None:
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--no-callback", action="store_true")
    options = parser.parse_args()
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    arguments = TrainingArguments(
        output_dir=str(options.folder / "checkpoints"),
        max_steps=options.steps,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=10,
        save_strategy="steps",
        save_steps=10,
        save_total_limit=2,
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    callbacks: list[TrainerCallback] = [Pace()]
    if not options.no_callback:
        from rankwatch.integrations.transformers import RankwatchCallback

        callbacks.append(RankwatchCallback())
    trainer = Trainer(
        model=model, args=arguments, train_dataset=Tokens(64), eval_dataset=Tokens(8), callbacks=callbacks
    )
    last = get_last_checkpoint(arguments.output_dir) if Path(arguments.output_dir).is_dir() else None
    print(f"<rank {RANK} begins with {last and Path(last).name}>", flush=True)
    trainer.train(resume_from_checkpoint=last)
    print(f"<rank {RANK} ends with step {trainer.state.global_step}>", flush=True)
    if RANK == 0:
        (options.folder / "ended").write_text(str(trainer.state.global_step))
    torch.distributed.barrier()
    import rankwatch

    rankwatch.shutdown()
    os._exit(0)  # gloo's threads sometimes abort an interpreter that shuts down


if __name__ == "__main__":
    main()
