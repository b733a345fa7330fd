"""Expectations: none of the healthy scripts is disturbed, and the right ranks are named in the sick ones."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

HERE = Path(__file__).parent


class Kind(StrEnum):
    """What has to become of a script."""

    HEALTHY = "healthy"
    """It ends with code 0, not restarted once."""
    PERMANENT = "permanent"
    """Waiting is useless: confirmed and restarted at once."""
    BY_ITSELF = "by itself"
    """Waiting may help: announced at once, restarted after its patience, once; the restart mends it."""
    HELD = "held"
    """A restart does not help: announced, no action follows by itself."""
    DETERMINISTIC = "deterministic"
    """Every attempt ends at the same step: given up after two restarts at most, with exit code 93."""


AT_FAULT: dict[str, set[int]] = {
    "aborts": {1},
    "asyncio_never_answers": {1},
    "auto_loader_worker": {2},
    "auto_lock": {1},
    "auto_reward_never_answers": {1},
    "back_off_never_ends": {0},
    "barrier_on_three": {3},
    "between_steps": {1},
    "checkpoint_writer": {0},
    "crash_at_same_step": {1},
    "crash_without_checkpoint": {2},
    "debugger_for_ever": {0},
    "download_stalls": {2},
    "exit_hang": {2},
    "export_hang": {0},
    "failing_steps": set(),
    "fifo": {1},
    "fifo_first_checkpoint": {0},
    "first_evaluation": {2},
    "first_step": {1},
    "flock_never_released": {2},
    "future": {3},
    "gil": {1},
    "groups_in_another_order": {1},
    "hard_exit": {3},
    "import_hang": {2},
    "infinite_loop": {2},
    "loader_waits_for_ever": {2},
    "loader_worker_killed": {0},
    "loader_worker_stopped": {3},
    "lock": {1},
    "lock_file_stale": {3},
    "lock_in_backward": {1},
    "lock_taken_before_fork": {3},
    "logging_lock": {2},
    "mismatched_shapes": {1},
    "other_group": {1},
    "pipe_without_data": {1},
    "poll_for_ever": {1},
    "producer_waits_for_ever": {3},
    "queue_get": {2},
    "raises": {2},
    "recv_without_send": {0},
    "remote_job_never_ends": {0},
    "retry_loop": set(),
    "retry_on_one_rank": {3},
    "reward_never_answers": {0},
    "same_lock_at_same_step": {2},
    "save_never_ends": {0},
    "semaphore_leaked": {1},
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
    "validation_never_ends": {0},
}
"""Of each sick script, the ranks that a person would name; none where all ranks are in the same trouble."""

_BY_ITSELF = (
    "asyncio_never_answers",
    "auto_reward_never_answers",
    "back_off_never_ends",
    "download_stalls",
    "fifo",
    "fifo_first_checkpoint",
    "flock_never_released",
    "import_hang",
    "loader_waits_for_ever",
    "lock_file_stale",
    "other_group",
    "pipe_without_data",
    "poll_for_ever",
    "producer_waits_for_ever",
    "recv_without_send",
    "remote_job_never_ends",
    "retry_on_one_rank",
    "reward_never_answers",
    "save_never_ends",
    "socket_recv",
    "subprocess_wait",
    "validation_never_ends",
)
KINDS: dict[str, Kind] = {
    **dict.fromkeys(_BY_ITSELF, Kind.BY_ITSELF),
    **dict.fromkeys(("debugger_for_ever", "failing_steps", "retry_loop", "storage_away"), Kind.HELD),
    **dict.fromkeys(("crash_at_same_step", "crash_without_checkpoint", "same_lock_at_same_step"), Kind.DETERMINISTIC),
}
"""Of the sick scripts that are not permanent."""

CONFIRMATION_WINDOW = 15.0
"""Seconds, given to the sick scripts that wait for or outlast their patience, which is minutes where nothing is set."""

REPEATS = {
    "auto_remote_job",
    "auto_validation_on_device",
    "device_validation",
    "evaluations_in_section",
    "judges_on_all",
    "remote_job",
    "sleeps_between_steps",
}
"""Healthy scripts that wait for so long twice at one place: the second time raises no suspicion."""

_DEADLOCK = (
    "barrier_on_three",
    "groups_in_another_order",
    "skip_then_barrier",
    "skips_once",
    "swallowed",
)
PROVABLE_AFTER: dict[str, float] = {
    **dict.fromkeys(_DEADLOCK, 10.0),  # ranks that all wait for each other
    **dict.fromkeys(("first_step", "first_evaluation"), 60.0),  # ranks compile and load for so long
    **dict.fromkeys(("exit_hang", "export_hang"), 60.0),  # a job exports and ends for so long
    **dict.fromkeys(("failing_steps", "retry_loop"), 60.0),  # so long without a step
    **dict.fromkeys(("back_off_never_ends", "retry_on_one_rank"), 300.0),  # work looks like retries for so long
    "infinite_loop": 480.0,  # a computation in one function looks the same for 300 s; then the window
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
    def kind(self) -> Kind:
        return Kind.HEALTHY if self.at_fault is None else KINDS.get(self.path.stem, Kind.PERMANENT)

    @property
    def flags(self) -> tuple[str, ...]:
        """The options of ``rankwatch run`` for it: none for what has to be judged with nothing configured."""
        window = ("--confirmation-window", f"{CONFIRMATION_WINDOW:g}")
        patient = self.kind in (Kind.BY_ITSELF, Kind.HELD)
        first = ("--first-time-timeout", "20") if self.path.stem == "fifo_first_checkpoint" else ()
        return (*(("--auto",) if self.automatic else ()), *(window if patient else ()), *first)

    @property
    def repeats(self) -> bool:
        return self.path.stem in REPEATS

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
