"""Trains a small GPT-2 with the Trainer of transformers: rankwatch run --nproc-per-node 2 train_hugging_face.py."""

import torch
from torch.utils.data import TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from rankwatch.integrations.transformers import RankwatchCallback

FOLDER = "hugging-face"

tokens = torch.randint(0, 512, (4096, 32), generator=torch.Generator().manual_seed(0))
trainer = Trainer(
    model=GPT2LMHeadModel(
        GPT2Config(vocab_size=512, n_positions=32, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    ),
    args=TrainingArguments(
        output_dir=FOLDER,
        max_steps=300,
        save_steps=50,
        logging_steps=100,
        use_cpu=not torch.cuda.is_available(),
        ddp_find_unused_parameters=False,
        disable_tqdm=True,
        report_to=[],
    ),
    train_dataset=TensorDataset(tokens),
    data_collator=lambda rows: {"input_ids": (batch := torch.stack([row[0] for row in rows])), "labels": batch},
    callbacks=[RankwatchCallback()],
)
try:
    last = get_last_checkpoint(FOLDER)
except FileNotFoundError:  # the first start
    last = None
trainer.train(resume_from_checkpoint=last)
