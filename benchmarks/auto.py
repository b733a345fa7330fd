"""What ``rankwatch run --auto`` costs a rank's main thread: CPU time of the same loop with and without torch's hooks.

    python benchmarks/auto.py [--width N] [--steps N] [--turns N]

Needs no launcher and no monitor. Processes with and without, in turns, train the same small model; the least of several
blocks is the figure of each, since neighbours on the machine only add. The ratio is for a step of some milliseconds;
what counts is how many microseconds a step costs more, because that does not grow with the model.
"""

from __future__ import annotations

import json
import subprocess
import sys

import _table

CHILD = """
import json, sys, time
import rankwatch
if sys.argv[1] == "auto":
    from rankwatch.integrations.autorun import attach
    attach.begin()
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
width, steps = int(sys.argv[2]), int(sys.argv[3])
model = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(width, width), nn.ReLU())])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(torch.randn(64 * steps, width)), batch_size=64)
def run():
    for (batch,) in loader:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
run()
def timed():
    begun = time.thread_time()
    run()
    return (time.thread_time() - begun) / steps
print(json.dumps(min(timed() for _ in range(5))))
"""


def seconds_a_step(kind: str, width: int, steps: int) -> float:
    """CPU seconds of the main thread for a step, in a process of its own."""
    command = [sys.executable, "-c", CHILD, kind, str(width), str(steps)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(json.loads(printed.splitlines()[-1]))


def main() -> None:
    options = _table.arguments(
        __doc__,
        width=(256, "of the model's eight layers"),
        steps=(300, "steps of a block"),
        turns=(5, "processes each"),
    )
    measured: dict[str, list[float]] = {"plain": [], "auto": []}
    for _ in range(options.turns):
        for kind, seconds in measured.items():
            seconds.append(seconds_a_step(kind, options.width, options.steps))
    plain, auto = (min(measured[kind]) for kind in ("plain", "auto"))
    print(f"plain {plain * 1e6:8.1f} us of CPU time a step")
    print(
        f"auto  {auto * 1e6:8.1f} us of CPU time a step: {(auto - plain) * 1e6:.1f} us more, ratio {auto / plain:.4f}"
    )


if __name__ == "__main__":
    main()
