"""Reads the end of a failed rank's log: the file that its output goes to, if it goes to one.

torch redirects a rank's output into a file of its own (``--redirects``, ``--tee``). Otherwise it goes where the
launcher's goes, which is a file under many schedulers (``sbatch --output``, ``nohup``), shared with the other ranks.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from torch.distributed.elastic.multiprocessing import PContext

from rankwatch.contract.files import tail
from rankwatch.contract.intervals import omits_redundant_reports
from rankwatch.contract.messages import KEPT_OUTPUT, LOG_LINES, LOGS_UNSENT, RankLog
from rankwatch_launcher.core.exits import RankExit
from rankwatch_launcher.node.rank_output import as_shown
from rankwatch_launcher.node.session import MAX_FACT

MAX_READ: Final = 16 << 10
"""Bytes read at the end of a file."""
RANKS: Final = 4
"""Failed ranks of a node whose logs are sent; one in a large job."""


def logs_of(
    crashed: Sequence[RankExit], context: PContext | None, host: str, launchers: int = 1
) -> tuple[RankLog, ...]:
    """The logs of the first ranks that crashed.

    Args:
        crashed: the likely cause first.
        context: knows where torch redirected their output.
        launchers: of the job; those of a large job send no log of a rank that only lost its connection to others.
    """
    if context is None:
        return ()
    large = omits_redundant_reports(launchers)
    chosen = (each for each in crashed if not (large and each.consequence))
    streams = (("stderr", context.stderrs, 2), ("stdout", context.stdouts, 1))
    found: dict[tuple[int, str], RankLog] = {}
    for crash in islice(chosen, 1 if large else RANKS):
        for stream, redirected, inherited in streams:
            own = redirected.get(crash.local_rank, "")
            if own != os.devnull and (path := own or file_behind(inherited)):
                lines = last_lines(path)
                both = context.stdouts.get(crash.local_rank) == context.stderrs.get(crash.local_rank)
                log = RankLog(crash.rank, "output" if own and both else stream, host, path, lines, not own)
                found.setdefault((crash.rank, path), log.bounded())
    return tuple(found.values())


def file_behind(descriptor: int) -> str:
    """The regular file that a descriptor of this process writes to; empty: it is a terminal, a pipe or nothing."""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        path = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""
    return path if os.path.exists(path) else ""


def last_lines(path: str) -> tuple[str, ...]:
    """The last lines of a file that are not blank, as a terminal would show them; empty: it cannot be read."""
    lines = map(as_shown, tail(path, MAX_READ).split("\n"))
    return tuple(line for line in lines if line.strip())[-LOG_LINES:]


def log_facts(log_dir: str, run: str = "", *, kept: Path | None = None, sent: bool = True) -> dict[str, str]:
    """Where the output of this launcher's ranks goes, if into a file, and that it stays there, as facts.

    Args:
        log_dir: torch's folder for their logs, if it redirects their output; else empty.
        run: torch's folder for this launch below it; empty: not known.
        kept: the folder in which this launcher keeps it; None: it does not.
        sent: whether the ends of logs are sent.
    """
    paths = {"rank_logs": log_dir, "run_logs": run} if log_dir else {"log": file_behind(2)}
    paths[KEPT_OUTPUT] = str(kept or "")
    place = {name: path for name, path in paths.items() if 0 < len(path) <= MAX_FACT and path.isprintable()}
    return place if sent else place | {LOGS_UNSENT: "true"}
