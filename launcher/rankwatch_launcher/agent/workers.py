"""How torch's agent starts the processes of the ranks: from the standby where it can, else as fresh processes.

Each is told of as soon as it runs, so that it is ended with its launcher even if that dies while it starts the others.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from rankwatch_launcher.agent import torch_compat
from rankwatch_launcher.prewarm.bootstrap import FirstLine
from rankwatch_launcher.prewarm.pool import Standby


class RankHandler(SubprocessHandler):
    """torch's handle on one rank's process, which asks the standby first."""

    def __init__(
        self,
        standby: Standby | None,
        started: Callable[[int], None],
        first_line: FirstLine,
        signals: str | None = None,
        **start: Any,
    ) -> None:
        self._standby, self._started, self._first_line, self._signals = standby, started, first_line, signals
        super().__init__(**start)

    def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> subprocess.Popen[bytes]:
        if self._signals is not None:
            env[torch_compat.SIGNALS] = self._signals
        env = self._first_line.environment(env)
        taken = self._taken(args, env)
        process: subprocess.Popen[bytes] = taken if taken is not None else super()._popen(args, env)
        self._started(process.pid)
        return process

    def _taken(self, args: tuple[str, ...], env: dict[str, str]) -> subprocess.Popen[bytes] | None:
        if self._standby is None:
            return None
        # What torch leaves open (None) goes where the launcher's own output goes.
        stdout = 1 if self._stdout is None else self._stdout.fileno()
        stderr = 2 if self._stderr is None else self._stderr.fileno()
        return self._standby.take(self.local_rank_id, args, env, stdout, stderr)


@contextlib.contextmanager
def made_here(
    standby: Standby | None, started: Callable[[int], None], first_line: FirstLine | None = None
) -> Iterator[None]:
    """While this holds, the ranks that torch starts are taken from the standby, and ``started`` hears each one's pid.

    ``first_line`` says what is done in them before the first line of the script.

    torch leaves the launcher's signal handlers alone meanwhile: an exception in the middle would lose what has started.
    """
    signals = os.environ.get(torch_compat.SIGNALS)  # the ranks are told of what the launcher was
    make = functools.partial(RankHandler, standby, started, first_line or FirstLine(), signals)
    with torch_compat.without_signal_handlers(), torch_compat.subprocesses_made_by(make):
        yield
