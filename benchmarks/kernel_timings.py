"""P4: what sampled kernel timings add to training, with torch's operators as the source (a machine without a GPU).

    python benchmarks/kernel_timings.py [--pairs N] [--stride N] [--json FILE]

One process trains the small GPT of the examples on the CPU (one thread), in blocks of ``--stride`` steps with kernel
timings on and off in turn, the order of each pair swapped; a real monitor takes the export. They are switched through
the slots, as a launcher does it. Of each block with timings one step is sampled, near its beginning, so that its
recording is read within the block. By default a step is sampled every 10 s or less often, not once in a block: so the
ratio on/off of the blocks is followed by what remains of it at that pace, the share of a sample in 10 s. The limit by
which Rankwatch samples less often when that costs too much is lifted here; with it, no more than 0.3 % remain.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import _service
import _table
from step_overhead import interval, reporting, small_gpt

WINDOW = 10.0
"""Seconds between two samples by default."""
EXPORT = 0.25
"""Seconds between two reports: a stride is doubled until its windows last 1.5 of them, and a block is to have one."""


def main() -> None:
    """Run the benchmark."""
    asked = _table.arguments(__doc__, pairs=(30, "pairs of blocks"), stride=(64, "steps in a block"))
    import rankwatch
    from rankwatch.contract import env
    from rankwatch.profiling import sampler
    from rankwatch.recording import sections
    from rankwatch.recording.recorder import NEVER
    from rankwatch.recording.shared_slots import Slots

    model, (inputs, targets), optimizer = small_gpt()
    sampler.COST_LIMIT = float("inf")  # type: ignore[misc]

    def step() -> None:
        with rankwatch.step():
            with rankwatch.section("forward"):
                loss = model(inputs, targets)
            with rankwatch.section("backward"):
                loss.backward()
            with rankwatch.section("optimizer"):
                optimizer.step()
                optimizer.zero_grad()

    with tempfile.TemporaryDirectory() as name, _service.monitor(Path(name)) as url:
        os.environ.update({"RANKWATCH_JOB_ID": "timings", env.SLOTS_DIR: str(Path(name) / "slots")})
        rankwatch.init(monitor=url, export_interval=EXPORT)
        recorder = sections._recorder
        assert recorder is not None
        slots = Slots.open(Path(name) / "slots" / env.slots_file(0))

        def train_until(condition: Callable[[], object]) -> None:
            while not condition():
                step()

        def block(source: str) -> tuple[float, float]:
            slots.write_settings({"profiling": {"source": source, "stride": asked.stride}})
            train_until(lambda: (recorder.boundary == NEVER) is (source == "off"))
            # A sample is taken at a multiple of the stride: an eighth of the block after its beginning.
            train_until(lambda: recorder.iteration % asked.stride == asked.stride * 7 // 8)
            began, cpu = time.perf_counter(), time.process_time()
            for _ in range(asked.stride):
                step()
            return time.perf_counter() - began, time.process_time() - cpu

        _service.wait_for("the first report", lambda: reporting(f"{url}/api/v1/jobs/timings"))
        block("auto")
        walls, cpus, shares, base = [], [], [], []
        for pair in range(asked.pairs):
            order = ("off", "auto") if pair % 2 else ("auto", "off")
            measured = {source: block(source) for source in order}
            with_it, without = measured["auto"], measured["off"]
            walls.append(with_it[0] / without[0])
            cpus.append(with_it[1] / without[1])
            shares.append((with_it[1] - without[1]) / WINDOW)
            base.append(without[0] / asked.stride)
        lost = dict(recorder.dropped)
        rankwatch.shutdown()
    print(f"a step without timings takes {statistics.median(base) * 1e3:.1f} ms (median); dropped: {lost or 'nothing'}")
    rows = {
        "time of a block, on/off": interval(walls),
        "CPU time of a block, on/off": interval(cpus),
        "CPU time of a sample / 10 s": interval(shares),
    }
    _table.report(rows, "ratio", asked.json)


if __name__ == "__main__":
    main()
