"""Rank 2 asks a busy feature store within its step and backs off for 80 s and more."""

import random
import time
import urllib.error
import urllib.request

import torch
import torch.distributed as dist
import toy

import rankwatch


def features(url: str) -> bytes:
    for attempt in range(12):
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            if error.code != 429:
                raise
        time.sleep(min(2.0**attempt, 20) * random.uniform(0.8, 1.2))
    raise TimeoutError(url)


rankwatch.init()
rank = toy.start()
net = toy.model()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
url = "http://" + toy.outside("http") + "/busy/80" if rank == 2 else ""
for step in range(300):
    with rankwatch.step():
        if step == 150 and rank == 2:
            features(url)
        toy.train_step(net, optimizer)
        toy.average_gradients(net)
dist.destroy_process_group()
