"""How a launcher ended: its exit code, and a file that tells the same to whoever started it.

================  ====  ==========================================================================================
state             code  meaning
================  ====  ==========================================================================================
``finished``      0     all ranks ended with exit code 0
``stopped``       0     ended by an order, after the ranks had saved; 1 when they had to be killed
``preempted``     0     ended by a signal, after the ranks had saved: to be resumed; 1 when they had to be killed
``failed``        1     no restart was left
``failed``        16    a rank asks to be resumed elsewhere, to tell a faulty device from a correct result
``failed``        17    a rank found a result that is wrong: not to be run again without a person
``failed``        93    no progress in several attempts, or a fault that no restart mends: do not requeue
================  ====  ==========================================================================================
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rankwatch.contract import env
from rankwatch.contract.files import replace_file

FINISHED: Final = "finished"
STOPPED: Final = "stopped"
PREEMPTED: Final = "preempted"
FAILED: Final = "failed"

CODE_FAILED: Final = 1
CODE_RESUME_ELSEWHERE: Final = env.EXIT_RESUME_ELSEWHERE
CODE_RESULT_REJECTED: Final = env.EXIT_RESULT_REJECTED
CODE_DO_NOT_REQUEUE: Final = env.EXIT_DO_NOT_REQUEUE


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the job on this launcher."""

    state: str
    code: int
    reason: str = ""
    job_id: str = ""
    attempt: int = 0
    """The last attempt."""
    iteration: int | None = None
    """The furthest step that any attempt completed, as far as this node knows."""
    restarts: int = 0
    """Restarts that were counted."""
    complete: bool = False
    """A rank said that there is nothing left to train (``rankwatch.mark_complete()``)."""
    excluded: tuple[tuple[str, str, str], ...] = ()
    """Nodes that were excluded: (node, host, reason)."""

    def write(self, path: Path) -> None:
        """Put it into a file, in one piece.

        Raises:
            OSError: the file cannot be written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> Outcome | None:
        """Read it back; None when there is no such file, or what is in it is no outcome."""
        try:
            body: Any = json.loads(path.read_text())
            known = {name: body[name] for name in cls.__slots__ if name in body}
            excluded = tuple((str(n), str(h), str(r)) for n, h, r in known.pop("excluded", ()))
            return cls(**known, excluded=excluded)
        except (OSError, ValueError, TypeError, KeyError):
            return None
