"""How torch's agent starts the processes of the ranks: from the standby where it can, else as fresh processes."""

from __future__ import annotations

import contextlib
import subprocess
from typing import Any

from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from rankwatch_launcher import torch_seams
from rankwatch_launcher.standby import Standby


class StandbyHandler(SubprocessHandler):
    """torch's handle on one rank's process, which asks the standby first."""

    def __init__(self, standby: Standby, **start: Any) -> None:
        self._standby = standby
        super().__init__(**start)

    def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> subprocess.Popen[bytes]:
        # What torch leaves open (None) goes where the launcher's own output goes.
        stdout = 1 if self._stdout is None else self._stdout.fileno()
        stderr = 2 if self._stderr is None else self._stderr.fileno()
        taken = self._standby.take(self.local_rank_id, args, env, stdout, stderr)
        if taken is not None:
            return taken
        process: subprocess.Popen[bytes] = super()._popen(args, env)
        return process


def taken_from(standby: Standby | None) -> contextlib.AbstractContextManager[None]:
    """While this holds, the ranks that torch starts are taken from the standby."""
    if standby is None:
        return contextlib.nullcontext()
    return torch_seams.subprocesses_made_by(lambda **start: StandbyHandler(standby, **start))
