"""What a Slurm job's batch script keeps from launch to launch, over requeues and chained jobs: one folder.

``launches.jsonl`` has one line a launch, for people too. ``outcome-NODE.json`` is what each launcher leaves when it
ends; they are read once and removed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from rankwatch_launcher.job.outcome import CODE_FAILED, FAILED, PREEMPTED, Outcome
from rankwatch_launcher.job.retry_policy import Again, Done, GiveUp, Progress

LAUNCHES: Final = "launches.jsonl"
NODE: Final = "{node}"
"""Stands for the node's name in the name of an outcome file, so that no launcher overwrites another's."""


@dataclass(frozen=True, slots=True)
class Past:
    """What the earlier launches come to."""

    launches: int
    used: int
    """Retries that were counted."""
    progress: Progress


class Launches:
    """The folder of one job; all nodes must see it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    def prepare(self) -> None:
        """Make the folder, and remove outcomes that an earlier launch left.

        Raises:
            OSError: it cannot be made or written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / LAUNCHES).open("a"):
            pass
        self._take_outcomes()

    def outcome_pattern(self) -> str:
        """What the launchers are given as ``--outcome``."""
        return str(self.folder / f"outcome-{NODE}.json")

    def past(self, limit: int) -> Past:
        """Read what was kept; ``limit`` is how many launches in a row may get no further."""
        launches, used, progress = 0, 0, Progress(limit)
        for line in (self.folder / LAUNCHES).read_text(errors="replace").splitlines():
            try:
                kept: Any = json.loads(line)
                outcome = Outcome(**kept["outcome"]) if kept["outcome"] else None
                counted = bool(kept["counted"])
            except (ValueError, KeyError, TypeError):
                continue  # cut off when the disk was full, or written by a person
            launches, used, progress = launches + 1, used + counted, progress.then(outcome)
        return Past(launches, used, progress)

    def keep(
        self, outcome: Outcome | None, code: int, verdict: Done | Again | GiveUp, place: Mapping[str, str]
    ) -> None:
        """Add a launch that has ended; ``place`` holds facts of it for people.

        Raises:
            OSError: it cannot be written.
        """
        line = {
            **place,
            "code": code,
            "outcome": asdict(outcome) if outcome is not None else None,
            "verdict": type(verdict).__name__,
            "counted": isinstance(verdict, Again) and verdict.counted,
            "reason": verdict.reason,
        }
        with (self.folder / LAUNCHES).open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())  # what follows next is that Slurm kills this process

    def outcome(self, here: str) -> Outcome | None:
        """What the launchers left, told as one; None: nothing. ``here`` is the node of the batch script."""
        found = self._take_outcomes()
        if not found:
            return None
        name = f"outcome-{here}.json"
        told = found.get(name) or found[min(found)]
        steps = [outcome.iteration for outcome in found.values() if outcome.iteration is not None]
        excluded = dict.fromkeys(item for outcome in found.values() for item in outcome.excluded)
        return replace(
            told,
            iteration=max(steps, default=None),
            complete=any(outcome.complete for outcome in found.values()),
            excluded=tuple(excluded),
        )

    def _take_outcomes(self) -> dict[str, Outcome]:
        found = {}
        for file in sorted(self.folder.glob("outcome-*.json")):
            outcome = Outcome.read(file)
            file.unlink(missing_ok=True)
            if outcome is not None:
                found[file.name] = outcome
        return found


def judged(outcome: Outcome | None, code: int, asked: str) -> Outcome | None:
    """The outcome in the light of what the batch script knows: its command's exit code and whether it asked to stop.

    ``asked`` is why the launchers were asked to stop, empty when they were not. A launcher that was ended with SIGTERM
    because another one died calls itself preempted; only the command's exit code tells that from preemption, and an
    uncounted launch for each such death would go on for ever.
    """
    if asked and outcome is None:
        return Outcome(PREEMPTED, code, f"{asked}; the launchers left no word of how far they came")
    if outcome is not None and outcome.state == PREEMPTED and code and not asked:
        reason = f"the command ended with exit code {code}, and launchers were ended with it that nobody had asked to"
        return replace(outcome, state=FAILED, code=code if 0 < code < 128 else CODE_FAILED, reason=reason)
    return outcome
