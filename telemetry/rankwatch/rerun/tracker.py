"""The file of rejected results, one line each, and the steps to skip that follow from it.

The format is that of Megatron's ``--result-rejected-tracker-filename``, so that either can read the other's file.
"""

from __future__ import annotations

import logging
import os
import re
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from typing import Final

from rankwatch.rerun.device import Device
from rankwatch.rerun.verdicts import RerunValidationStatus

LINE: Final = re.compile(r"^ts=.* node=\S* device=.* jobID=(.*) rank=(\d+) iteration=(\d+) status=(.+?) result=")
REPEATED: Final = {
    RerunValidationStatus.RERUN_DISABLED.value,
    RerunValidationStatus.FIRST_RERUN_REPRODUCIBLE.value,
    RerunValidationStatus.SECOND_RERUN_REPRODUCIBLE.value,
}
"""Statuses that count towards skipping: the rejection was not caused by a transient device error."""

_log = logging.getLogger("rankwatch")


class RejectionTracker:
    """Appends to the file of rejected results.

    Raises:
        ValueError: the file cannot be appended to.
    """

    def __init__(self, filename: str | os.PathLike[str]) -> None:
        self.path = Path(filename)
        try:
            self.path.open("a").close()
        except OSError as error:
            raise ValueError(f"rejected results cannot be appended to {self.path}: {error.strerror or error}") from None

    def append(
        self, status: RerunValidationStatus, rank: int, step: int, device: Device, result: str, message: str
    ) -> None:
        """Append a line; an I/O error is logged."""
        job = os.environ.get("SLURM_JOB_ID") or os.environ.get("RANKWATCH_JOB_ID") or "N/A"
        now = datetime.now().astimezone().isoformat(sep=" ", timespec="milliseconds")
        line = (
            f"ts={now} node={device.host} device={device.name} jobID={job} rank={rank} iteration={step} "
            f"status={status.value} result={result} message='{' '.join(message.split())}'\n"
        )
        try:
            with self.path.open("a") as file:
                file.write(line)
        except OSError as error:
            _log.warning("a rejected result cannot be appended to %s: %s", self.path, error)


def steps_to_skip(filename: str | os.PathLike[str]) -> list[int]:
    """Return the steps at which the same rank's result was rejected more than once, for the training loop to skip.

    Steps that several ranks of one job rejected are excluded: their data are not the cause. If the file cannot be read,
    the error is logged and no step is returned.
    """
    seen: dict[tuple[int, int], int] = defaultdict(int)
    ranks: dict[tuple[str, int], set[int]] = defaultdict(set)
    try:
        for line in Path(filename).read_text(errors="replace").splitlines():
            if (found := LINE.match(line)) is None:
                continue
            job, rank, step = found[1], int(found[2]), int(found[3])
            if found[4].rpartition(".")[2].lower() in REPEATED:
                seen[rank, step] += 1
                ranks[job, step].add(rank)
    except OSError as error:
        _log.warning("no step is skipped: %s cannot be read: %s", filename, error)
        return []
    common = {step for (_, step), found_ranks in ranks.items() if len(found_ranks) > 1}
    steps = sorted({step for (_, step), count in seen.items() if count > 1} - common)
    _log.info("steps to skip, by %s: %s", filename, steps or "none")
    return steps
