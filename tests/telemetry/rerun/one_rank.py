"""One rank in one process: what the tests of the machine train."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable
from typing import Any

import torch

from rankwatch.rerun import RerunDataIterator, RerunStateMachine


class Job:
    """A model with dropout and batch norm over random data, in a loop as the documentation shows it."""

    def __init__(self, machine: RerunStateMachine, *, first: int = 0, seed: int = 7) -> None:
        torch.manual_seed(seed)
        self.machine = machine
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(seed)
        batches = [torch.randn(3, 4, generator=generator) for _ in range(40)]
        self.data = RerunDataIterator(iter(batches[2 * first :]))
        self.done = first
        self.losses: list[list[float]] = []
        """The losses of each run of each step."""
        self.wrong: Callable[[torch.Tensor, int], Any] = lambda loss, run: loss

    def step(self, fatal: bool = True) -> tuple[bool, bool, int]:
        """One step of two microbatches; ``wrong`` may change the loss of a run."""
        runs: list[float] = []
        while self.machine.should_run_forward_backward(self.data, self.done):
            self.optimizer.zero_grad()
            loss = torch.zeros(())
            for _ in range(2):
                loss = loss + self.model(next(self.data)).square().mean() * (1 + random.random())
            loss.backward()
            seen = self.wrong(loss.detach(), len(runs))
            self.machine.validate_result(seen, torch.isnan, "the loss is NaN", fatal=fatal)
            runs.append(loss.item())
        self.losses.append(runs)
        what = self.machine.should_checkpoint_and_exit()
        if not what[1]:
            self.optimizer.step()
            self.done += 1
        return what

    def checkpoint(self, state: Any = None) -> bytes:
        state = self.machine.state_dict(self.data) if state is None else state
        buffer = io.BytesIO()
        torch.save({"model": self.model.state_dict(), "step": self.done, "rerun": state}, buffer)
        return buffer.getvalue()


def resumed(checkpoint: bytes, machine: RerunStateMachine) -> Job:
    """Another process, with other random numbers, that goes on from a checkpoint."""
    loaded = torch.load(io.BytesIO(checkpoint), weights_only=True)  # it holds tensors and plain values only
    job = Job(machine, first=loaded["step"], seed=7)
    torch.manual_seed(12345)
    random.seed(999)
    job.model.load_state_dict(loaded["model"])
    machine.load_state_dict(loaded["rerun"])
    return job


def validating(**settings: Any) -> RerunStateMachine:
    return RerunStateMachine(mode="validate_results", **{"device": "board A", "validate_first_step": True, **settings})


def nan_in(*runs: int) -> Callable[[torch.Tensor, int], torch.Tensor]:
    return lambda loss, run: loss * math.nan if run in runs else loss
