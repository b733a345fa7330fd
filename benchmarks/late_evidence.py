"""How long the stacks of thousands of launchers keep the monitor's loop when their incident is over already.

One job of emulated ranks, eight on a node, is captured; the incident closes, and then every launcher sends its stacks,
each with positions in three process groups. Each message is applied on the loop's own thread with a real SQLite
database. ``message`` is the time of one, ``all`` that of all with the ticks between, ``stored`` until they are stored.

Run: python benchmarks/late_evidence.py [--ranks 16384] [--json FILE]     Goal (20.1): n launchers cost O(n)
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Final

from _load_stacks import STUCK, WAITING, collectives
from _table import arguments, report, spread

from rankwatch.contract.enums import Action, ProcessEventKind
from rankwatch.contract.messages import Evidence, NodeRegistration, ProcessEvent, RankStack
from rankwatch_monitor.core.events import Order
from rankwatch_monitor.core.incident.state_machine import Closed, transition
from rankwatch_monitor.service.monitor import Monitor
from rankwatch_monitor.store.repository import Repository

RANKS_A_NODE: Final = 8
MESSAGES_A_TICK: Final = 40
"""What arrives within a tenth of a second."""


def main() -> None:
    """Measure and print."""
    asked = arguments(__doc__ or "", ranks=(16_384, "ranks of the job"))
    nodes = asked.ranks // RANKS_A_NODE
    with tempfile.TemporaryDirectory() as folder:
        monitor = Monitor(repository=Repository(str(Path(folder) / "rankwatch.db")))
        job = monitor.register("job", "job")
        for node in range(nodes):
            monitor.submit("job", NodeRegistration(f"node-{node}", f"host-{node}", 1, RANKS_A_NODE, "job"))
            started = ProcessEvent(
                f"node-{node}", ProcessEventKind.STARTED, 1, rank=node * RANKS_A_NODE, world_size=asked.ranks
            )
            monitor.submit("job", started)
        monitor.submit("job", Order(Action.CAPTURE, "a look"))
        incident, now = job.incidents[-1], monitor.clock.now()
        transition(incident, Closed(now, "over"), now)
        sent = [evidence(node, incident.id) for node in range(nodes)]
        took, begun = [], time.perf_counter()
        for number, message in enumerate(sent):
            before = time.perf_counter()
            monitor.submit("job", message)
            took.append(time.perf_counter() - before)
            if number % MESSAGES_A_TICK == 0:
                monitor.tick()
        applied = time.perf_counter() - begun
        monitor.close()
        stored = time.perf_counter() - begun
    rows = {"message": took, "all": [applied], "stored": [stored]}
    report({name: spread(seconds) for name, seconds in rows.items()}, f"seconds, {nodes} launchers", asked.json)


def evidence(node: int, incident: str) -> Evidence:
    """The stacks of one node; rank 17 is the one that is stuck."""
    ranks = range(node * RANKS_A_NODE, (node + 1) * RANKS_A_NODE)
    stacks = tuple(
        RankStack(
            rank,
            4000 + rank,
            "py-spy",
            STUCK if rank == 17 else WAITING,
            collectives=tuple(collectives(rank, behind=rank == 17)),
        )
        for rank in ranks
    )
    return Evidence(f"node-{node}", 1, incident, stacks)


if __name__ == "__main__":
    main()
