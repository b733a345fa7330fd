"""Publishes to Weights & Biases: one run per job, with scores, the worst ranks, incidents and goodput.

:class:`WandbPublisher` keeps the newest snapshot of each job and hands it, on a thread of its own, to W&B's library,
which starts a process (``wandb-core``) to write and upload. The event loop never waits for either. ``wandb`` is
imported on that thread, and only if it is configured.

An error of W&B is logged once and counted, and the job's run is opened again after a while. A run ends with its job,
and is resumed when the job is launched again. If ``wandb-core`` does not end by itself, it is found in ``/proc``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import signal
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Final

from rankwatch_monitor.publish.snapshot import Snapshot
from rankwatch_monitor.publish.wandb import rows as rows
from rankwatch_monitor.publish.wandb.run import JobRun, Where, begin

log = logging.getLogger("rankwatch")

MODES: Final = ("online", "offline", "disabled")
HOW_TO_GET_IT: Final = (
    "nothing can be published to Weights & Biases: wandb is not installed. Get it with "
    "`pip install 'rankwatch[wandb]'`, or omit --wandb-project"
)
WAITING_JOBS: Final = 1000
"""Jobs with a snapshot waiting for the thread."""
OPEN_RUNS: Final = 100
"""Simultaneously open runs; each costs wandb-core some memory and a connection."""
RETRY: Final = 60.0
"""Seconds until the next try after an error."""
_OF_ANOTHER_RUN: Final = (
    *("WANDB_SERVICE", "WANDB_RUN_ID", "WANDB_NAME", "WANDB_NOTES", "WANDB_TAGS", "WANDB_RESUME"),
    *("WANDB_RUN_GROUP", "WANDB_JOB_TYPE", "WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH"),
)
"""Variables that a training script may have set for its own run."""


def installed() -> bool:
    """Whether wandb could be imported; does not import it."""
    return importlib.util.find_spec("wandb") is not None


def prepare(environment: MutableMapping[str, str], where: Where) -> None:
    """Prepare this process's environment for W&B: without settings of the training's run, and non-interactive."""
    for name in _OF_ANOTHER_RUN:
        environment.pop(name, None)
    environment["WANDB_SILENT"] = "true"
    # Else the library reports its own errors over the network even when offline, and delays the end by 10 s.
    environment.setdefault("WANDB_ERROR_REPORTING", "false")
    if where.folder is not None:
        # Tables are staged there until uploaded, by default in the home directory.
        environment.setdefault("WANDB_DATA_DIR", where.folder)


class WandbPublisher:
    """Publishes to W&B. ``errors`` counts failures, ``dropped`` the snapshots that were never written."""

    def __init__(self, where: Where) -> None:
        self.errors = 0
        self.dropped = 0
        self._where = where
        self._since = time.time()
        self._waiting: OrderedDict[str, Snapshot] = OrderedDict()
        self._changed = threading.Condition()
        self._writing = self._closing = False
        self._warned = False
        self._retry_at: dict[str, float] = {}
        self._runs: dict[str, JobRun] = {}
        self._ended: dict[str, None] = {}
        """Jobs that are over and whose run has ended: opened again for a last look, it would be a second folder."""
        self._thread = threading.Thread(target=self._work, name="rankwatch-wandb", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether nothing is waiting or being written."""
        with self._changed:
            return not self._waiting and not self._writing

    def publish(self, snapshot: Snapshot) -> None:
        """Queue a snapshot; the thread writes the newest of each job."""
        with self._changed:
            if snapshot.job_id in self._waiting or len(self._waiting) >= WAITING_JOBS:
                self.dropped += 1
            if snapshot.job_id in self._waiting or len(self._waiting) < WAITING_JOBS:
                self._waiting[snapshot.job_id] = snapshot
            self._changed.notify()

    def close(self, timeout: float) -> None:
        """Write what is queued and end all runs; kills W&B's process after ``timeout`` seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout)
        if self._thread.is_alive():
            log.warning(
                "W&B did not accept everything within %.0f s; the rest is in its files, for `wandb sync`",
                timeout,
            )
            with self._changed:
                self._waiting.clear()
            for pid in _services(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._thread.join(1.0)

    # The thread -------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (snapshot := self._next()) is not None:
            if time.monotonic() < self._retry_at.get(snapshot.job_id, 0.0):
                self.dropped += 1
                continue
            try:
                self._write(snapshot)
                self._retry_at.pop(snapshot.job_id, None)
            except BaseException as error:  # noqa: BLE001 - the thread boundary; wandb also raises SystemExit
                self._failed(snapshot.job_id, error)
        self._teardown()

    def _next(self) -> Snapshot | None:
        with self._changed:
            self._writing = False
            self._changed.wait_for(lambda: self._waiting or self._closing)
            self._writing = bool(self._waiting)
            return self._waiting.popitem(last=False)[1] if self._waiting else None

    def _write(self, snapshot: Snapshot) -> None:
        run = self._runs.get(snapshot.job_id)
        if run is None and snapshot.over and snapshot.job_id in self._ended:
            return
        if run is None:
            if len(self._runs) >= OPEN_RUNS:
                self.dropped += 1
                return
            self._ended.pop(snapshot.job_id, None)
            run = self._runs[snapshot.job_id] = begin(self._where, snapshot, self._since)
        run.write(snapshot)
        if snapshot.over:
            # Resumed if the job is launched again.
            del self._runs[snapshot.job_id]
            if len(self._ended) >= WAITING_JOBS:
                self._ended.clear()
            self._ended[snapshot.job_id] = None
            run.finish(failed=snapshot.state in rows.FAILED)

    def _failed(self, job_id: str, error: BaseException) -> None:
        self.errors += 1
        if len(self._retry_at) >= WAITING_JOBS:
            self._retry_at.clear()
        self._retry_at[job_id] = time.monotonic() + RETRY
        if not self._warned and not self._closing:
            self._warned = True
            message = " ".join(str(error).split()) or type(error).__name__
            log.warning("publishing to W&B failed (%s); retried every %.0f s", message, RETRY)
        if job_id in self._runs or not self._runs:
            self._teardown()  # wandb-core may have died; the next try starts another one

    def _teardown(self) -> None:
        """End all runs at once, and W&B's process with them."""
        self._runs.clear()
        if (wandb := sys.modules.get("wandb")) is not None:
            with contextlib.suppress(BaseException):
                wandb.teardown(exit_code=0)


def _services(parent: int) -> Iterator[int]:
    """Pids of the wandb-core processes of this process; Linux only."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
            if name == "wandb-core" and int(rest.split()[1]) == parent:
                yield int(folder.name)
