"""``rankwatch run --job-retries N``: a small process that launches the job, and relaunches it after failures.

The supervisor starts its own command line as a child, which :data:`SUPERVISED` in its environment makes the launcher.
When the child has ended, :mod:`rankwatch_launcher.retry_policy` decides by its outcome file.

=========================================  =========================================================================
event                                      effect
=========================================  =========================================================================
SIGTERM, SIGINT, SIGHUP, SIGQUIT           forwarded; the child saves and ends, nothing is launched after it
SIGUSR1, SIGUSR2                           forwarded; nothing is launched after a child that was preempted by it
the child ends, another launch follows     waits with exponential backoff, then launches
the child ends, nothing follows            exits with the child's exit code
the supervisor itself is killed            the kernel sends SIGTERM to the child (PR_SET_PDEATHSIG): it saves and ends
=========================================  =========================================================================

The child has its own process group, so that Ctrl-C reaches it once, through the supervisor. The supervisor imports no
torch: it stays small beside the job.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final
from uuid import uuid4

from rankwatch.contract import env as environment
from rankwatch.contract.interpreter import own_python
from rankwatch_launcher import retry_policy
from rankwatch_launcher.log import logger
from rankwatch_launcher.outcome import OUTCOME_VARIABLE, PREEMPTED, Outcome, training_complete

SUPERVISED: Final = "RANKWATCH_SUPERVISED"
"""Set for the child only: ``PID:SUFFIX``, the supervisor's pid and the suffix of a generated job id."""
END_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""After these nothing is launched."""
STOP_SIGNALS: Final = (signal.SIGUSR1, signal.SIGUSR2)
"""These may request a graceful stop, or have a meaning of the user's own."""
PR_SET_PDEATHSIG: Final = 1
COMMAND: Final = (*own_python("-m", "rankwatch"), "run")


@dataclass(frozen=True, slots=True)
class RetryPlan:
    """The supervisor's part of the command line."""

    budget: int
    no_progress: int
    """Limit on launches in a row without progress; 0: unlimited."""
    flag: str = ""
    """The finished flag."""
    outcome: str = ""
    """The user's path for the outcome."""


@dataclass(frozen=True, slots=True)
class Supervision:
    """What a supervised launcher gets from its supervisor."""

    job_suffix: str
    """Part of the generated job id, so that all launches are one job."""


def bind_to_supervisor(env: MutableMapping[str, str]) -> Supervision | None:
    """In the child: make the kernel end this process with its supervisor. None without a supervisor.

    Removes the variable, which the ranks must not inherit.
    """
    pid, mark, suffix = env.pop(SUPERVISED, "").partition(":")
    if not mark:
        return None
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(pid):  # it died before prctl() took effect
        raise SystemExit(128 + signal.SIGTERM)
    return Supervision(suffix)


def supervise(plan: RetryPlan, argv: Sequence[str], env: Mapping[str, str], *, command: Sequence[str] = COMMAND) -> int:
    """Launch ``command`` with ``argv`` until the policy ends the job; return the last exit code."""
    folder = tempfile.mkdtemp(prefix="rankwatch-retries-")
    try:
        path = Path(os.path.abspath(plan.outcome) if plan.outcome else os.path.join(folder, "outcome.json"))
        return Supervisor(plan, [*command, *argv], env, path).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Supervisor:
    """The loop over the launches of one job."""

    def __init__(self, plan: RetryPlan, command: Sequence[str], env: Mapping[str, str], outcome: Path) -> None:
        self._plan = plan
        self._command = list(command)
        self._outcome = outcome
        self._env = {**env, SUPERVISED: f"{os.getpid()}:{uuid4().hex[:8]}", OUTCOME_VARIABLE: str(outcome)}
        self._child: subprocess.Popen[bytes] | None = None
        self._pending: list[signal.Signals] = []
        """Signals received while no child was running."""
        self._end_signal: signal.Signals | None = None
        self._stop_signalled = False
        self._wake = -1

    def run(self) -> int:
        """Launch until a verdict ends the job; return the exit code."""
        used, wait = 0, 0.0
        progress = retry_policy.Progress(limit=self._plan.no_progress)
        with self._handling_signals():
            while True:
                begun = time.monotonic()
                code = self._launch()
                outcome = Outcome.read(self._outcome)
                if outcome is not None and outcome.job_id:
                    self._env[environment.JOB_ID] = outcome.job_id
                progress = progress.then(outcome)
                complete = training_complete(self._plan.flag)
                verdict = retry_policy.after(outcome, code, complete, used, self._plan.budget, progress)
                if not isinstance(verdict, retry_policy.Again):
                    logger.info("the job is not relaunched: %s", verdict.reason)
                    return verdict.code
                if self._stop_requested(outcome):
                    return retry_policy.exit_status(code)
                used += verdict.counted
                wait = retry_policy.backoff(wait, time.monotonic() - begun)
                count = f"retry {used} of {self._plan.budget}" if verdict.counted else "no retry is counted"
                logger.warning("relaunching the job in %g s (%s): %s", wait, count, verdict.reason)
                self._pause(wait)
                if self._end_signal is not None:
                    logger.info("the job is not relaunched: got %s", self._end_signal.name)
                    return retry_policy.exit_status(code)

    def _launch(self) -> int:
        """Run the command once; return its exit code, minus the signal that killed it."""
        self._outcome.unlink(missing_ok=True)  # of the last launch: this one may be killed before it writes its own
        self._stop_signalled = False
        self._child = subprocess.Popen(self._command, env=self._env, process_group=0)
        while self._pending:
            self._child.send_signal(self._pending.pop(0))
        try:
            return self._child.wait()
        finally:
            self._child = None

    def _stop_requested(self, outcome: Outcome | None) -> bool:
        if self._end_signal is not None:
            logger.info("the job is not relaunched: got %s", self._end_signal.name)
            return True
        if self._stop_signalled and outcome is not None and outcome.state == PREEMPTED:
            logger.info("the job is not relaunched here: %s", outcome.reason or "it was preempted")
            return True
        return False

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Signal handler: must not block."""
        received = signal.Signals(number)
        if received in END_SIGNALS:
            self._end_signal = received
        else:
            self._stop_signalled = True
        if self._child is None:
            self._pending.append(received)
        else:
            self._child.send_signal(received)

    def _pause(self, seconds: float) -> None:
        """Sleep, interrupted by a signal."""
        until = time.monotonic() + seconds
        while self._end_signal is None and (left := until - time.monotonic()) > 0:
            if select.select([self._wake], [], [], left)[0]:
                os.read(self._wake, 512)

    @contextmanager
    def _handling_signals(self) -> Iterator[None]:
        self._wake, write = os.pipe()
        os.set_blocking(write, False)
        before = {number: signal.getsignal(number) for number in (*END_SIGNALS, *STOP_SIGNALS)}
        wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # nohup, for example
                signal.signal(number, self._on_signal)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
            signal.set_wakeup_fd(wakeup)
            os.close(self._wake)
            os.close(write)
