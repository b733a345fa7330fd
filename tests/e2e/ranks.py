"""What each rank runs in these tests: a two-layer model over gloo, steps of about 20 ms, checkpoints, faults on demand.

Faults that are known beforehand come by ``--inject``, and the script does nothing for them.

Everything lies in one folder that all ranks share:

===============  ======================================================================================================
``checkpoint``   the step to go on with; rank 0 replaces it every few steps
``rank-R.jsonl`` what rank R reports: a line when it starts and one when it leaves the loop, over all attempts
``fault``        written by the test: a fault as in ``--inject``, which strikes once, in whatever step it is seen
``finish``       made by the test: all ranks leave the loop after the same step
``slow``         made by the test: the slow rank is slow while it is there
===============  ======================================================================================================
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import rankwatch
from rankwatch.faults import actions, inject

RANK = int(os.environ["RANK"])
ATTEMPT = int(os.environ.get("RANKWATCH_ATTEMPT", "1"))
PACE = 0.02  # seconds of a step that stand for reading a batch
CHECKPOINT_EVERY = 10


class Shared:
    """The folder, as one rank uses it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.struck = False

    def report(self, event: str, step: int) -> None:
        line = {"event": event, "attempt": ATTEMPT, "step": step, "pid": os.getpid(), "launcher": os.getppid()}
        line["slots"] = os.environ.get("RANKWATCH_SLOTS_DIR")
        with (self.folder / f"rank-{RANK}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def save(self, step: int) -> None:
        if RANK == 0:
            unfinished = self.folder / "checkpoint.new"
            unfinished.write_text(str(step))
            unfinished.replace(self.folder / "checkpoint")
        dist.barrier()  # nothing goes on, and ends, before the checkpoint stands

    def load(self) -> int:
        checkpoint = self.folder / "checkpoint"
        return int(checkpoint.read_text()) if checkpoint.exists() else 0

    def strike(self, step: int) -> None:
        file = self.folder / "fault"
        if not self.struck and file.exists():
            self.struck = True
            fault = dataclasses.replace(inject.parse(file.read_text()), step=step)
            if fault.concerns(rank=RANK, attempt=ATTEMPT) and fault.is_due(step, None):
                actions.carry_out(fault)

    def wants_an_end(self) -> bool:
        return (self.folder / "finish").exists()


class Slow:
    """What makes one rank slow in every step: ``--slow PART=SECONDS --slow-rank R``, as long as the file ``slow`` is
    there or was never asked for (``--slow-on-demand``)."""

    def __init__(self, shared: Shared, options: argparse.Namespace) -> None:
        self._part, _, seconds = (options.slow or "=0").partition("=")
        self._seconds = float(seconds) if options.slow_rank == RANK else 0.0
        self._switch = shared.folder / "slow" if options.slow_on_demand else None

    def seconds(self, part: str) -> float:
        if part != self._part or (self._switch is not None and not self._switch.exists()):
            return 0.0
        return self._seconds

    @staticmethod
    def think(seconds: float) -> None:
        """Python that computes nothing."""
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            sum(range(100))

    @staticmethod
    def compute(seconds: float) -> None:
        until = time.perf_counter() + seconds
        matrix = torch.ones(192, 192)
        while time.perf_counter() < until:
            torch.mm(matrix, matrix)


class SlowBackward(torch.autograd.Function):
    """Costs nothing on the way forward; what it costs on the way back no section of its own shows."""

    @staticmethod
    def forward(context: Any, loss: torch.Tensor, slow: Slow) -> torch.Tensor:
        context.slow = slow
        return loss.clone()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        context.slow.compute(context.slow.seconds("backward"))
        return gradients[0], None


def train(shared: Shared, options: argparse.Namespace) -> None:
    if not options.uninstrumented:
        rankwatch.init()
    with rankwatch.section("setup"):
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        torch.manual_seed(RANK)
        model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
        done = shared.load()
        dist.barrier()  # the slowest to start is waited for here, not in a step
    shared.report("start", done)
    if options.nccl_accuses is not None and RANK == 0:
        stand_in_for_nccl(shared, options.nccl_accuses)
    stop, slow = False, Slow(shared, options)
    while done < options.steps and not stop:
        with rankwatch.step(done):
            with rankwatch.section("data"):
                shared.strike(done)
                time.sleep(PACE + slow.seconds("data"))
                inputs = torch.randn(8, 16)
            with rankwatch.section("forward"):
                slow.think(slow.seconds("host"))
                slow.compute(slow.seconds("compute"))
                loss = model(inputs).square().mean()
                loss = SlowBackward.apply(loss, slow) if slow.seconds("backward") else loss
            with rankwatch.section("backward"):
                loss.backward()
                ended = average_gradients(model, shared.wants_an_end(), patient=options.patient)
            with rankwatch.section("optimizer"), torch.no_grad():
                for weight in model.parameters():
                    weight -= 0.01 * weight.grad
                    weight.grad = None
        rankwatch.heartbeat()
        done += 1
        stop = rankwatch.should_stop() or ended
        if stop or done == options.steps or done % CHECKPOINT_EVERY == 0:
            with rankwatch.section("checkpointing"):
                shared.save(done)
    shared.report("end", done)
    dist.barrier()
    dist.destroy_process_group()
    rankwatch.shutdown()


def stand_in_for_nccl(shared: Shared, accused: int) -> None:
    """Answer as NCCL's RAS does, in one rank of the node: the accused rank has launched an operation less."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from support import fake_ras

    def answer(in_json: bool) -> str:
        assert in_json
        files = sorted(shared.folder.glob("rank-*.jsonl"))
        pids = [json.loads(file.read_text().splitlines()[-1])["pid"] for file in files]
        return fake_ras.json_answer(
            [fake_ras.json_rank(rank, pid, AllReduce=100 - (rank == accused)) for rank, pid in enumerate(pids)]
        )

    fake_ras.serve(answer, port=int(os.environ["NCCL_RAS_ADDR"].rpartition(":")[2]))


def average_gradients(model: nn.Module, wants_an_end: bool, *, patient: bool) -> bool:
    """One all-reduce for all gradients. Whether a rank wants an end travels along, so all receive it in one step."""
    weights = list(model.parameters())
    flat = torch.cat([torch.tensor([float(wants_an_end)]), *(weight.grad.flatten() for weight in weights)])
    try:
        dist.all_reduce(flat)
    except RuntimeError as error:  # gloo's word for a peer that has gone
        while patient and not isinstance(error, actions.InjectedFaultError):
            signal.pause()
        raise
    mine = flat[1:].split([weight.numel() for weight in weights])
    for weight, gradient in zip(weights, mine, strict=True):
        weight.grad = gradient.view_as(weight) / dist.get_world_size()
    return bool(flat[0] > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=10**9, help="without it, until the test makes the file 'finish'")
    parser.add_argument("--uninstrumented", action="store_true", help="never call rankwatch.init()")
    parser.add_argument("--slow", metavar="PART=SECONDS", help="data, host, compute or backward; in every step")
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--slow-on-demand", action="store_true", help="only while the test keeps a file 'slow'")
    parser.add_argument("--nccl-accuses", type=int, help="rank 0 answers at NCCL_RAS_ADDR, and accuses this rank")
    parser.add_argument("--patient", action="store_true", help="wait for ever for a peer that has gone, as under NCCL")
    options = parser.parse_args()
    # A rank that ends by an error leaves gloo's threads behind, and the interpreter's end may abort over them: another
    # exit than the one that a test asks for.
    try:
        train(Shared(options.folder), options)
    except SystemExit as asked:
        os._exit(asked.code if isinstance(asked.code, int) else 1)
    except BaseException:  # noqa: BLE001 - whatever it was, it is shown and becomes the exit code
        sys.excepthook(*sys.exc_info())  # as the interpreter does
        sys.stderr.flush()
        os._exit(1)
