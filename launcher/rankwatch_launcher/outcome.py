"""How a launcher ended: state, exit code, the outcome file and the finished flag.

================  ====  ==========================================================================================
state             code  meaning
================  ====  ==========================================================================================
``finished``      0     all ranks ended with exit code 0
``stopped``       0     stopped by a directive or by a rank, after the ranks saved; 1 when they had to be killed
``preempted``     0     stopped by a signal, after the ranks saved: to be resumed; 1 when they had to be killed
``stopped``       130   interrupted at the terminal (Ctrl-C, SIGINT): the ranks were killed
``failed``        1     no restart was left
``failed``        16    a rank asks to be resumed on other nodes, to tell a faulty device from a correct result
``failed``        17    a rank rejected a result: not to be resumed without a person
``failed``        93    no progress in several attempts, or a permanent fault: do not requeue
================  ====  ==========================================================================================

The finished flag is a file whose existence means that training is complete, so that no launch trains again. A training
script may create it, as NeMo's callback does; else the launcher creates it after ``rankwatch.mark_complete()`` or with
``--complete-on-success``. It belongs next to the checkpoints, where all nodes see it.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rankwatch.contract import env as environment
from rankwatch.contract.files import read_file, replace_file
from rankwatch.contract.messages import read_text
from rankwatch_launcher.log import logger

FINISHED: Final = "finished"
STOPPED: Final = "stopped"
PREEMPTED: Final = "preempted"
FAILED: Final = "failed"

CODE_FAILED: Final = 1
CODE_INTERRUPTED: Final = 128 + signal.SIGINT
CODE_RESUME_ELSEWHERE: Final = environment.EXIT_RESUME_ELSEWHERE
CODE_RESULT_REJECTED: Final = environment.EXIT_RESULT_REJECTED
CODE_DO_NOT_REQUEUE: Final = environment.EXIT_DO_NOT_REQUEUE

OUTCOME_VARIABLE: Final = "RANKWATCH_OUTCOME"
FLAG_VARIABLE: Final = "RANKWATCH_FINISHED_FLAG"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the job ended on one launcher."""

    state: str
    code: int
    reason: str = ""
    job_id: str = ""
    attempt: int = 0
    """The last attempt."""
    iteration: int | None = None
    """The furthest step that any attempt completed, as far as this node knows."""
    restarts: int = 0
    """Counted restarts."""
    cause: str = ""
    """Of a failure: what happened; empty: not stated apart from ``reason``."""
    no_restart: str = ""
    """Of a failure: why no restart followed, a :class:`~rankwatch.contract.enums.NoRestart`; empty: not stated."""
    why_none: str = ""
    """The same as a clause."""
    agreed: bool = False
    """Of a stop: all ranks left after the step that was agreed on, and so have saved. Else they only exited."""
    complete: bool = False
    """A rank called ``rankwatch.mark_complete()``."""
    excluded: tuple[tuple[str, str, str], ...] = ()
    """Excluded nodes: (node, host, reason)."""

    def failure(self) -> dict[str, Any]:
        """What happened, and why no restart followed."""
        return {"cause": self.cause, "no_restart": self.no_restart, "why_none": self.why_none}

    def write(self, path: Path) -> None:
        """Write it to a file atomically.

        Raises:
            OSError: the file cannot be written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> Outcome | None:
        """Read it back; None when the file is missing, another user's, or holds no outcome."""
        try:
            return read_text(cls, read_file(path, own=True))
        except (OSError, ValueError):
            return None


# The finished flag ----------------------------------------------------------------------------------------------------


def finished_flag_path(given: str, env: Mapping[str, str]) -> str:
    """The flag's absolute path from the command line, else from either variable; empty when the job has none."""
    path = given or env.get(FLAG_VARIABLE, "") or env.get(environment.FINISHED_FLAG, "")
    return os.path.abspath(path) if path else ""


def training_complete(flag: str) -> bool:
    """Whether the finished flag exists."""
    return bool(flag) and os.path.exists(flag)


def log_training_complete(flag: str) -> None:
    """Log why nothing is started."""
    logger.info("training is complete (%s exists): nothing is started; remove the file to train again", flag)


def write_finished_flag(outcome: Outcome, flag: str, *, complete_on_success: bool = False) -> bool:
    """Create the finished flag if the outcome is a complete training; return whether it was created.

    An existing flag is left unchanged. A write error is logged and does not change the outcome.
    """
    complete = outcome.complete or (complete_on_success and outcome.state == FINISHED)
    if not flag or not complete or outcome.code != 0 or training_complete(flag):
        return False
    body = {
        "job_id": outcome.job_id,
        "completed_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "iteration": outcome.iteration,
    }
    path = Path(flag)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(body, indent=2) + "\n", sync=True)
    except OSError as error:
        logger.error(
            "training is complete, but the finished flag %s cannot be written: %s; create it by hand, or a retry will "
            "train again",
            flag,
            error.strerror or error,
        )
        return False
    logger.info("training is complete: finished flag %s written, the job will not be launched again", flag)
    return True
