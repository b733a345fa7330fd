"""Rank 0 waits for a queue whose producer iterates within a progress bar, and waits there for a service for 90 s."""

import queue
import threading
from collections.abc import Iterator
from http.client import HTTPConnection

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

import rankwatch


def answers(address: str) -> Iterator[bytes]:
    for number in range(300):
        connection = HTTPConnection(address)
        connection.request("GET", f"/late/{90 if number == 150 else 0}")
        yield connection.getresponse().read()
        connection.close()


def produce(address: str, samples: queue.Queue[bytes]) -> None:
    for answer in tqdm(answers(address), total=300, mininterval=10):
        samples.put(answer)


rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
samples: queue.Queue[bytes] = queue.Queue(4)
if rank == 0:
    threading.Thread(target=produce, args=(toy.outside("http"), samples), daemon=True).start()
for _ in range(300):
    with rankwatch.step():
        if rank == 0:
            samples.get()
        toy.train_step(net, optimizer)
dist.destroy_process_group()
