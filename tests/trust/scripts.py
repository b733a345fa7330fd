"""Expectations: none of the healthy scripts is disturbed, and the right ranks are named in the sick ones."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent

AT_FAULT: dict[str, set[int]] = {
    "aborts": {1},
    "auto_loader_worker": {2},
    "auto_lock": {1},
    "barrier_on_three": {3},
    "between_steps": {1},
    "checkpoint_writer": {0},
    "exit_hang": {2},
    "export_hang": {0},
    "failing_steps": set(),
    "fifo": {1},
    "fifo_first_checkpoint": {0},
    "first_evaluation": {2},
    "first_step": {1},
    "future": {3},
    "gil": {1},
    "hard_exit": {3},
    "import_hang": {2},
    "infinite_loop": {2},
    "loader_worker_killed": {0},
    "loader_worker_stopped": {3},
    "lock": {1},
    "logging_lock": {2},
    "mismatched_shapes": {1},
    "other_group": {1},
    "poll_for_ever": {1},
    "queue_get": {2},
    "raises": {2},
    "recv_without_send": {0},
    "retry_loop": set(),
    "retry_on_one_rank": {3},
    "sigkill": {2},
    "signal_handler": {1},
    "sigstop": {1},
    "skip_then_barrier": {1},
    "skips_once": {1},
    "socket_recv": {1},
    "storage_away": set(),
    "subprocess_wait": {2},
    "swallowed": {1},
    "sys_exit": {3},
    "thread_join": {0},
    "two_locks": {1, 3},
    "two_stopped": {0, 2},
}
"""Of each sick script, the ranks that a person would name; none where all ranks are in the same trouble."""

HELD = {"failing_steps", "retry_loop", "storage_away"}
"""A restart does not mend these: an incident is published, no action follows by itself."""

_DEADLOCK = ("barrier_on_three", "other_group", "recv_without_send", "skip_then_barrier", "skips_once", "swallowed")
PROVABLE_AFTER: dict[str, float] = {
    **dict.fromkeys(_DEADLOCK, 20.0),  # ranks that all wait for each other: a network may pause for so long
    "fifo_first_checkpoint": 30.0,  # a section's first run may stand still for so long
    **dict.fromkeys(("first_step", "first_evaluation"), 60.0),  # ranks compile and load for so long
    **dict.fromkeys(("exit_hang", "export_hang"), 60.0),  # a job exports and ends for so long
    **dict.fromkeys(("poll_for_ever", "retry_on_one_rank"), 60.0),  # polling is neither work nor standstill: the window
    **dict.fromkeys(("failing_steps", "retry_loop"), 120.0),  # 60 s without a step, and the window
    "infinite_loop": 360.0,  # a computation in one function looks the same for 300 s; then the window
}
"""Seconds from the fault during which the same signs are healthy, by docs/detection.md; 0 for the others."""


@dataclass(frozen=True, slots=True)
class Script:
    """One script; ``at_fault`` is None for a healthy one."""

    path: Path
    at_fault: frozenset[int] | None

    @property
    def name(self) -> str:
        return f"{self.path.parent.name}/{self.path.stem}"

    @property
    def automatic(self) -> bool:
        """It has no line of Rankwatch and is run with ``--auto``."""
        return self.path.stem.startswith("auto_")

    @property
    def held(self) -> bool:
        return self.path.stem in HELD

    @property
    def provable_after(self) -> float:
        return PROVABLE_AFTER.get(self.path.stem, 0.0)

    @property
    def does(self) -> str:
        """Its own first sentence."""
        return (ast.get_docstring(ast.parse(self.path.read_text())) or "").split("\n")[0]


def scripts() -> list[Script]:
    """All of them, by name."""
    healthy = [Script(path, None) for path in sorted((HERE / "healthy").glob("*.py"))]
    sick = [Script(path, frozenset(AT_FAULT[path.stem])) for path in sorted((HERE / "sick").glob("*.py"))]
    return healthy + sick
