"""Rank 0 evaluates for 40 s in pure Python: tokens, n-grams, counts."""

import time
from collections import Counter

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch


def score(seconds: float) -> int:
    """Count n-grams of generated text."""
    end, counts, text = time.monotonic() + seconds, Counter(), "the quick brown fox jumps over the lazy dog " * 50
    while time.monotonic() < end:
        words = text.split()
        counts.update(zip(words, words[1:], words[2:], strict=False))
    return len(counts)


rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(400):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if step == 200 and rank == 0:
        print("distinct", score(40))
dist.destroy_process_group()
