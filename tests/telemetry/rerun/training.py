"""What each rank of these tests runs: a model with dropout over gloo, its loss validated, one checkpoint for all ranks.

A device is a name here. ``--bad-device`` computes NaN from a step on, as a broken one would; ``--bad-data`` makes every
device do so; ``--inject`` hands an error to the machine's own injector.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import rankwatch
from rankwatch.rerun import RerunDataIterator, RerunErrorInjector, RerunStateMachine

RANK = int(os.environ["RANK"])


def microbatches(first: int) -> Any:
    """Two a step, another two on each rank; from a step on."""
    for number in range(2 * first, 1000):
        yield torch.randn(4, 6, generator=torch.Generator().manual_seed(1000 * RANK + number))


class Reported:
    """What this rank reports to the test: a line for each event."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._file = options.folder / f"rank-{RANK}.jsonl"

    def __call__(self, event: str, step: int, **more: Any) -> None:
        attempt = int(os.environ.get("RANKWATCH_ATTEMPT", "1"))
        line = {"event": event, "attempt": attempt, "step": step, "pid": os.getpid(), "launcher": os.getppid(), **more}
        with self._file.open("a") as file:
            file.write(json.dumps({**line, "slots": os.environ.get("RANKWATCH_SLOTS_DIR")}) + "\n")


def train(options: argparse.Namespace) -> None:
    if options.watched:
        rankwatch.init()
    torch.set_num_threads(1)
    size = int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        "gloo", f"file://{options.store}" if options.store else "env://", rank=RANK, world_size=size
    )
    device = options.device or f"launcher {os.getppid()}"
    injectors = [RerunErrorInjector.parse(each) for each in options.inject]
    injector = next((each for each in injectors if each.at is not None and each.at[0] == RANK), None)
    machine = RerunStateMachine(mode=options.mode, error_injector=injector, device=device)
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    done, checkpoint, reported = 0, options.folder / "checkpoint.pt", Reported(options)
    if checkpoint.exists():
        loaded = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(loaded["model"])
        done = loaded["step"]
        machine.load_state_dict(loaded.get("rerun"))
    reported("start", done)
    data = RerunDataIterator(microbatches(done))

    def save() -> None:
        state = machine.gather_state_dict(data)
        if RANK == 0:
            unfinished = checkpoint.with_suffix(".new")
            torch.save({"model": model.state_dict(), "step": done, "rerun": state}, unfinished)
            unfinished.replace(checkpoint)
        dist.barrier()

    while done < options.steps:
        with rankwatch.step(done):
            losses = []
            while machine.should_run_forward_backward(data, done):
                optimizer.zero_grad()
                for _ in range(2):
                    loss = model(next(data)).square().mean()
                    loss.backward()
                    broken = RANK == 1 and ((device == options.bad_device and done >= 4) or done == options.bad_data)
                    machine.validate_loss(loss.detach() * math.nan if broken else loss.detach())
                    losses.append(loss.item())
            reported("ran", done, losses=losses)
            should_checkpoint, should_exit, exit_code = machine.should_checkpoint_and_exit()
            if should_checkpoint:
                save()
            if should_exit:
                reported("exit", done, code=exit_code)
                time.sleep(options.linger if RANK == 1 else 0)
                sys.exit(exit_code)
            for weight in model.parameters():
                dist.all_reduce(weight.grad)
            optimizer.step()
        done += 1
        if done == 2:
            save()
    reported("end", done)
    dist.barrier()
    rankwatch.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--store", help="a file to meet by; without it, by the launcher's variables")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--mode", default="validate_results")
    parser.add_argument("--inject", action="append", default=[], help="an error of each rank at most")
    parser.add_argument("--device", help="the launcher unless given: two of them on a host stand for two devices")
    parser.add_argument("--bad-device")
    parser.add_argument("--bad-data", type=int)
    parser.add_argument("--linger", type=float, default=0, help="seconds that rank 1 takes longer than rank 0 to end")
    parser.add_argument("--watched", action="store_true")
    options = parser.parse_args()
    code = 0
    try:
        train(options)
    except SystemExit as asked:
        code = int(asked.code or 0)
    except BaseException:  # noqa: BLE001 - whatever it was, it is shown and becomes the exit code
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # gloo's threads may abort the interpreter's end, which would be another exit code
