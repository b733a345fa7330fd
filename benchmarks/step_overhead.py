"""P3: what heartbeats, sections and the 1 s export add to a training step.

    python benchmarks/step_overhead.py [--pairs N] [--block N] [--json FILE]

One process trains the small GPT of the examples on the CPU (one thread), in blocks of steps with Rankwatch on and off
in turn, the order of each pair swapped, each after a rest of the same length; a real monitor takes the export. Each
step has six sections, a heartbeat and ``should_stop()``. The figure is the ratio on/off of a pair's median step times,
and of its CPU time per step: the latter also counts the exporter's thread, and neighbours on the machine disturb it
less. They disturb a third figure least: ``own threads`` is 1 and the part that Rankwatch's threads have in the
process's CPU time while it is on, as the kernel counts it. It leaves out waits for the GIL, and what the training
thread itself does for a section, which rank_hot_path.py measures: six sections, a step and a heartbeat are less than
10 us of each step.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import _service
import _table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

WARM = 5
"""Steps before a block, not counted."""


def main() -> None:
    """Run the benchmark."""
    asked = _table.arguments(__doc__, pairs=(60, "pairs of blocks"), block=(20, "steps in a block"))
    import rankwatch

    model, batch, optimizer = small_gpt()

    def step() -> None:
        with rankwatch.step():
            with rankwatch.section("data"):
                inputs, targets = batch
            with rankwatch.section("forward"):
                loss = model(inputs, targets)
            with rankwatch.section("backward"):
                loss.backward()
            with rankwatch.section("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            with rankwatch.section("logging"):
                pass
            rankwatch.heartbeat()
        rankwatch.should_stop()

    def block() -> tuple[float, float]:
        for _ in range(WARM):
            step()
        times, cpu = [], time.process_time()
        for _ in range(asked.block):
            began = time.perf_counter()
            step()
            times.append(time.perf_counter() - began)
        return statistics.median(times), (time.process_time() - cpu) / asked.block

    own: list[float] = []
    paused = [1.0]

    def off() -> tuple[float, float]:
        # A processor that has rested is slower for a while: both sides rest for as long.
        time.sleep(paused[-1])
        return block()

    with tempfile.TemporaryDirectory() as name, _service.monitor(Path(name)) as url:
        os.environ.update(RANKWATCH_JOB_ID="overhead")

        def on() -> tuple[float, float]:
            began = time.monotonic()
            rankwatch.init(monitor=url)
            # The exporter's imports happen once in a job's life; they are no part of a step.
            try:
                _service.wait_for("the first report", lambda: reporting(f"{url}/api/v1/jobs/overhead"))
            except TimeoutError as error:
                sys.exit(f"{error}; the monitor's last words:\n{(Path(name) / 'monitor.log').read_text()[-2000:]}")
            paused.append(time.monotonic() - began)
            before, all_before = own_cpu(), time.process_time()
            measured = block()
            own.append(1 + (own_cpu() - before) / (time.process_time() - all_before))
            rankwatch.shutdown()
            return measured

        block()
        walls, cpus, base = [], [], []
        for pair in range(asked.pairs):
            if pair % 2:
                with_it, without = on(), off()
            else:
                without, with_it = off(), on()
            walls.append(with_it[0] / without[0])
            cpus.append(with_it[1] / without[1])
            base.append(without[0])
    print(f"a step without Rankwatch takes {statistics.median(base) * 1e3:.1f} ms (median)")
    rows = {"median step time": interval(walls), "CPU time": interval(cpus), "own threads": interval(own)}
    _table.report(rows, "ratio on/off", asked.json)


def small_gpt() -> tuple[Any, Any, Any]:
    """The model of the examples on one thread, a batch of its inputs and targets, and an optimizer."""
    import torch
    import train_gpt

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = train_gpt.Config()
    model = train_gpt.GPT(config)
    batch = train_gpt.Corpus(config).batch("train", 0, 0, torch.device("cpu"))
    return model, batch, torch.optim.AdamW(model.parameters())


def interval(ratios: list[float]) -> dict[str, float]:
    """The median with its 95 % interval: the order statistics 0.98 sqrt(n) places to either side (binomial)."""
    ordered, half = sorted(ratios), 0.98 * len(ratios) ** 0.5
    middle = (len(ordered) - 1) / 2
    low, high = max(0, round(middle - half)), min(len(ordered) - 1, round(middle + half))
    return {"n": len(ratios), "p50": statistics.median(ratios), "low": ordered[low], "high": ordered[high]}


def own_cpu() -> float:
    """Seconds of CPU time that Rankwatch's threads have used; Linux counts them in nanoseconds."""
    own = [each.native_id for each in threading.enumerate() if each.name.startswith("rankwatch-")]
    return sum(int(Path(f"/proc/self/task/{tid}/schedstat").read_text().split()[0]) for tid in own) / 1e9


def reporting(job: str) -> int | None:
    """How many ranks of a job report, or None."""
    return (_service.get(job) or {}).get("ranks_reporting") or None


if __name__ == "__main__":
    main()
