"""Runs the checks in a child process, each within its own time limit.

A driver or a file server that hangs blocks a thread where no signal reaches it, and a process with such a thread does
not even exit. So it is a child that hangs: what has not answered in time has failed, and the child is left behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

from rankwatch.contract.interpreter import own_python
from rankwatch.contract.messages import read
from rankwatch.contract.node_checks import CheckName, CheckReason, CheckResult, CheckState
from rankwatch.contract.text import decoded
from rankwatch_launcher.checks.catalogue import CHECKS

LIMITS: Final[Mapping[CheckName, float]] = {check.name: check.limit for check in CHECKS}
"""Seconds that each check may take."""
START_SECONDS: Final = 10.0
"""What the child may take to start on a busy machine, on top of the limits."""


class CheckRun:
    """One run of the checks, from its child's start to the last result. Started ahead, it waits for :meth:`begin`."""

    def __init__(self, limits: Mapping[CheckName, float] = LIMITS) -> None:
        self.counters: dict[str, int] = {}
        """What the checks counted, once all have answered."""
        self._limits = limits
        self._results: dict[str, CheckResult] = {}
        self._lock = threading.Lock()
        self._began: float | None = None
        self._ended = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._error = ""
        try:
            self._process = subprocess.Popen(
                own_python("-m", "rankwatch_launcher.checks.child"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # it is killed with the command that it runs; Ctrl-C is the launcher's
            )
        except OSError as error:  # no process or no file left: the ranks will meet the same
            self._error = f"its process cannot be started: {error.strerror or error}"

    def begin(self, node: Mapping[str, object], names: Sequence[CheckName] = tuple(LIMITS)) -> None:
        """Run these checks of a node, a :class:`~rankwatch_launcher.checks.check.CheckedNode` as a dictionary."""
        self._began = time.monotonic()
        self._limits = {name: limit for name, limit in self._limits.items() if name in names}
        if self._process is None:
            self._ended.set()
            return
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has died: its results will be missing
            self._process.stdin.write(json.dumps({"node": node, "checks": list(names)}).encode() + b"\n")
            self._process.stdin.close()
        threading.Thread(target=self._read, name="rankwatch-checks", daemon=True).start()

    def poll(self) -> tuple[CheckResult, ...] | None:
        """All results, of which those that are overdue have failed; None: the run is under way."""
        assert self._began is not None
        took = time.monotonic() - self._began
        ended = self._ended.is_set()
        with self._lock:
            known = dict(self._results)
        for name, limit in self._limits.items():
            if name in known:
                continue
            if ended:
                code = self._process.poll() if self._process is not None else None
                error = {"error": self._error or f"its process ended with code {code}"}
                known[name] = CheckResult(name, CheckState.SKIPPED, CheckReason.BROKEN, error)
            elif took > limit + START_SECONDS:
                found = {"limit": f"{limit + START_SECONDS:g}"}
                known[name] = CheckResult(name, CheckState.FAILED, CheckReason.TIMED_OUT, found, round(took, 3))
            else:
                return None
        self.close()
        return tuple(known[name] for name in self._limits)

    def wait(self) -> tuple[CheckResult, ...]:
        """All results, when they are there."""
        while (found := self.poll()) is None:
            self._ended.wait(0.02)
        return found

    def close(self) -> None:
        """End the child; one that is blocked in a driver ends when that answers, and nobody waits for it."""
        if self._process is None:
            return
        if self._process.poll() != 0:  # else nothing of it is left, and another process may have its number
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
        for pipe in (self._process.stdin, self._process.stdout if self._began is None else None):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2)

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as lines, contextlib.suppress(OSError, ValueError):
            for line in lines:
                answer = decoded(line)
                result = read(CheckResult, answer["result"]).bounded()
                with self._lock:
                    self._results[result.name] = result
                    self.counters |= {str(name): int(count) for name, count in answer["counters"].items()}
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._ended.set()
