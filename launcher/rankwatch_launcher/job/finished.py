"""The finished flag: a file whose existence says that training is complete, so that nobody runs the job again.

A training script may make it, as NeMo's callback does; else the launcher makes it when a rank has called
``rankwatch.mark_complete()`` or when ``--complete-on-success`` was given. It belongs beside the checkpoints, where all
nodes see it. Ends of chained jobs are mostly no completion: a job that was stopped for a time limit leaves no flag.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rankwatch.contract import env as environment
from rankwatch.contract.files import replace_file
from rankwatch_launcher.cli.options import Options
from rankwatch_launcher.job.outcome import FINISHED, Outcome
from rankwatch_launcher.log import logger

OWN_VARIABLE: Final = "RANKWATCH_FINISHED_FLAG"


def flag_file(given: str, env: Mapping[str, str]) -> str:
    """The flag's absolute path: what was given by flag, else by either variable; empty when the job has none."""
    path = given or env.get(OWN_VARIABLE, "") or env.get(environment.FINISHED_FLAG, "")
    return os.path.abspath(path) if path else ""


def exists(path: str) -> bool:
    """Whether training is complete."""
    return bool(path) and os.path.exists(path)


def refuse(path: str) -> None:
    """Say why nothing is started."""
    logger.info("training is complete (%s exists); remove it to train again", path)


def note(outcome: Outcome, options: Options) -> bool:
    """Make the flag if this launcher has seen the job complete; return whether it was made here.

    One that exists is left as it is. A flag that cannot be written is said, and changes nothing in how the job ended.
    """
    complete = outcome.complete or (options.complete_on_success and outcome.state == FINISHED)
    if not options.finished_flag or not complete or outcome.code != 0 or exists(options.finished_flag):
        return False
    try:
        _write(Path(options.finished_flag), outcome)
    except OSError as error:
        logger.error(
            "training is complete, but %s cannot be written: %s; make it by hand, or a retry will train again",
            options.finished_flag,
            error.strerror or error,
        )
        return False
    logger.info("training is complete: %s was written, and the job will not be run again", options.finished_flag)
    return True


def _write(path: Path, outcome: Outcome) -> None:
    body = {
        "job_id": outcome.job_id,
        "completed_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "iteration": outcome.iteration,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(body, indent=2) + "\n", sync=True)
