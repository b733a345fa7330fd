"""What ranks of the GPU kit's jobs run: steps of a small model over NCCL or gloo, and one fault in the first attempt.

    rank.py --device cuda --backend nccl --break-by synchronize

``--break-by`` is one that ``--inject`` does not have. On the CPU each is a stand-in with the same effect.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist

import rankwatch

AT = 30
"""The step of the fault."""
LONG = 86_400 * 1_000_000_000
"""Clock cycles of a kernel that does not end within the kit's time: half a day and more."""


def wait_in_synchronize(cuda: bool) -> None:
    """Wait in ``cudaStreamSynchronize`` for a kernel that does not end."""
    if not cuda:
        time.sleep(3600)
        return
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
    stream.synchronize()


def exhaust_memory(cuda: bool) -> None:
    """Allocate more memory than the device has."""
    if not cuda:
        raise torch.OutOfMemoryError("stand-in for CUDA out of memory")
    kept = []
    while True:
        kept.append(torch.empty(8 << 30, dtype=torch.uint8, device="cuda"))


def access_illegally(cuda: bool) -> None:
    """Write to unmapped memory of the device."""
    if not cuda:
        raise RuntimeError("stand-in for: CUDA error: an illegal memory access was encountered")
    code = 'extern "C" __global__ void beyond(float* start) { start[1ull << 40] = 1; }'
    kernel = torch.cuda._compile_kernel(code, "beyond")  # torch 2.9 and later
    kernel((1, 1, 1), (1, 1, 1), (torch.zeros(16, device="cuda"),))
    torch.cuda.synchronize()


FAULTS = {"synchronize": wait_in_synchronize, "out-of-memory": exhaust_memory, "illegal-access": access_illegally}


def train(asked: argparse.Namespace) -> None:
    """Train to the end; every rank leaves after the same step."""
    cuda = asked.device == "cuda"
    if cuda:
        torch.cuda.set_device(0)  # all ranks of the kit share the one device
    dist.init_process_group(asked.backend)
    first = int(os.environ.get("RANKWATCH_ATTEMPT", "1")) == 1
    model = torch.nn.Linear(256, 256, device=asked.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(32, 256, device=asked.device)
    for number in range(asked.steps):
        with rankwatch.step():
            with rankwatch.section("forward"):
                loss = model(batch).square().mean()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            if first and number == AT and asked.break_by and dist.get_rank() == dist.get_world_size() - 1:
                FAULTS[asked.break_by](cuda)
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.02)
    if cuda:
        torch.cuda.synchronize()
    dist.destroy_process_group()


def within_process(asked: argparse.Namespace) -> None:
    """Train within :class:`rankwatch.inprocess.Wrapper`: the last rank raises once, the process goes on."""
    from rankwatch import inprocess
    from rankwatch.inprocess.health import CudaHealthCheck

    pids = []

    def attempt() -> None:
        pids.append(os.getpid())
        dist.init_process_group(asked.backend)
        value = torch.ones(4, device=asked.device)
        dist.all_reduce(value)
        if inprocess.iteration() == 0 and dist.get_rank() == dist.get_world_size() - 1:
            raise RuntimeError("on purpose")
        dist.all_reduce(value)
        found = f"iteration {inprocess.iteration()}, sum {value.sum().item():g}, {len(set(pids))} process"
        print(f"in-process: {found}", flush=True)

    inprocess.Wrapper(max_restarts=2, health_check=CudaHealthCheck())(attempt)()
    os._exit(0)


def main() -> None:
    """Read the flags and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--backend", default="gloo", choices=["gloo", "nccl"])
    parser.add_argument("--break-by", choices=sorted(FAULTS))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--in-process", action="store_true")
    asked = parser.parse_args()
    if asked.in_process:
        within_process(asked)
        return
    rankwatch.init()
    train(asked)


if __name__ == "__main__":
    main()
