"""How long ``rankwatch diagnose --from`` takes to read and judge the reports of a thousand nodes of one job.

    python benchmarks/diagnose_merge.py [--nodes 1000] [--ranks 8] [--json FILE]

One rank holds a lock that nobody gives back, all others wait in a collective; stacks are 30 frames deep, as with a
framework. The command is run as a user does, with one file of all reports.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

import _table

from monitor.diagnose.scenes import locked, report, stands
from rankwatch.contract.diagnosis import SeenRank
from rankwatch.contract.messages import Frame

DEEP = tuple(Frame(f"function_{i}", f"/x/lib/python3.12/site-packages/framework/module_{i}.py", i) for i in range(30))


def deep(rank: SeenRank) -> SeenRank:
    return replace(rank, stack=replace(rank.stack, frames=(*rank.stack.frames, *DEEP)))


def main() -> None:
    given = _table.arguments(__doc__ or "", nodes=(1000, "nodes"), ranks=(8, "ranks of each"))
    world = given.nodes * given.ranks
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "reports"
        with path.open("w") as file:
            for node in range(given.nodes):
                first = node * given.ranks
                made = [
                    deep((locked if first + i == world // 3 else stands)(first + i, world=world))
                    for i in range(given.ranks)
                ]
                file.write(json.dumps(asdict(report(*made, host=f"n{node}"))) + "\n")
        began = time.monotonic()
        command = [sys.executable, "-P", "-m", "rankwatch", "diagnose", "--from", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - began
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        size = path.stat().st_size
    cpu = used.ru_utime + used.ru_stime
    print("\n".join(done.stdout.splitlines()[:3]))
    took = f"{seconds:.2f} s, {cpu:.2f} s of CPU"
    print(f"{given.nodes} reports of {given.ranks} ranks ({size / 1e6:.0f} MB): {took}; {_table.machine()}")
    _table.write(given.json, nodes=given.nodes, seconds=seconds, cpu=cpu)


if __name__ == "__main__":
    main()
