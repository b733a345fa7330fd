"""All ranks wait for 80 s for the tokenizer service, which is scaled up at their first step."""

import socket

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch


def tokens(address: str) -> bytes:
    host, port = address.split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"GET /late/80 HTTP/1.0\r\n\r\n")
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
        return answer


rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
address = toy.outside("http")
for step in range(200):
    with rankwatch.step():
        if step == 0:
            assert tokens(address).endswith(b"0.5")
        toy.train_step(net, optimizer)
dist.destroy_process_group()
