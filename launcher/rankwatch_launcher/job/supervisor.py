"""``rankwatch run --job-retries N``: a small process that launches the job, and again when it has failed for good.

How this works
--------------
The supervisor starts the very command line it was given as a child, which :data:`SUPERVISED` in its environment tells
to be the launcher. When the child has ended, :mod:`rankwatch_launcher.job.retry_policy` decides from the file of its
outcome.

=========================================  =========================================================================
what happens                               what the supervisor does
=========================================  =========================================================================
SIGTERM, SIGINT, SIGHUP, SIGQUIT comes     hands it on; the child saves and ends, nothing is launched after it
SIGUSR1, SIGUSR2 comes                     hands it on; nothing is launched after a child that was preempted by it
the child ends, another launch follows     waits a second, after each short launch twice as long, then launches
the child ends, nothing follows            ends with the child's exit code
the supervisor itself is killed            the kernel sends SIGTERM to the child (PR_SET_PDEATHSIG): it saves and ends
=========================================  =========================================================================

The child has a process group of its own, so that a Ctrl-C reaches it once, by way of the supervisor. The supervisor
imports no torch: it sits beside the job for as long as that runs.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
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
from rankwatch_launcher.job import finished, retry_policy
from rankwatch_launcher.job.outcome import PREEMPTED, Outcome
from rankwatch_launcher.log import logger

SUPERVISED: Final = "RANKWATCH_SUPERVISED"
"""Set for the child alone: ``PID:WORD``, the supervisor and what a job without an id is called by in all launches."""
OUTCOME: Final = "RANKWATCH_OUTCOME"
ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""After these nothing is launched any more."""
ASKING: Final = (signal.SIGUSR1, signal.SIGUSR2)
"""These may mean "save and stop", or something of the user's own."""
PR_SET_PDEATHSIG: Final = 1
COMMAND: Final = (sys.executable, "-P", "-m", "rankwatch", "run")


@dataclass(frozen=True, slots=True)
class Plan:
    """What the supervisor has to know of the command line."""

    budget: int
    no_progress: int
    """Launches in a row without progress that are one too many; 0: any number is allowed."""
    flag: str = ""
    """The finished flag."""
    outcome: str = ""
    """Where the user wants the outcome, too."""


@dataclass(frozen=True, slots=True)
class Tie:
    """What a supervised launcher knows of its supervisor."""

    word: str
    """Stands in the job's id when nobody gave one, so that all launches are one job."""


def take_tie(env: MutableMapping[str, str]) -> Tie | None:
    """In the child: have the kernel end this process with its supervisor. None where there is no supervisor.

    The variable is taken out: the ranks must not inherit it.
    """
    pid, mark, word = env.pop(SUPERVISED, "").partition(":")
    if not mark:
        return None
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(pid):  # it died before the kernel knew
        raise SystemExit(128 + signal.SIGTERM)
    return Tie(word)


def supervise(plan: Plan, argv: Sequence[str], env: Mapping[str, str], *, command: Sequence[str] = COMMAND) -> int:
    """Launch ``command`` with ``argv`` until nothing is to be launched any more; return the last exit code."""
    folder = tempfile.mkdtemp(prefix="rankwatch-retries-")
    try:
        path = Path(os.path.abspath(plan.outcome) if plan.outcome else os.path.join(folder, "outcome.json"))
        return Supervisor(plan, [*command, *argv], env, path).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Supervisor:
    """The loop over the launches of one job."""

    def __init__(self, plan: Plan, command: Sequence[str], env: Mapping[str, str], outcome: Path) -> None:
        self._plan = plan
        self._command = list(command)
        self._outcome = outcome
        self._env = {**env, SUPERVISED: f"{os.getpid()}:{uuid4().hex[:8]}", OUTCOME: str(outcome)}
        self._child: subprocess.Popen[bytes] | None = None
        self._early: list[signal.Signals] = []
        """Signals that came while no child was there to take them."""
        self._ending: signal.Signals | None = None
        self._asked = False
        self._wake = -1

    def run(self) -> int:
        """Launch until a verdict says that it was the last time; return the exit code."""
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
                complete = finished.exists(self._plan.flag)
                verdict = retry_policy.after(outcome, code, complete, used, self._plan.budget, progress)
                if not isinstance(verdict, retry_policy.Again):
                    logger.info("the job is not launched again: %s", verdict.reason)
                    return verdict.code
                if self._asked_to_end(outcome):
                    return retry_policy.exit_status(code)
                used += verdict.counted
                wait = retry_policy.pause(wait, time.monotonic() - begun)
                count = f"retry {used} of {self._plan.budget}" if verdict.counted else "no retry is counted"
                logger.warning("launching the job again in %g s (%s): %s", wait, count, verdict.reason)
                self._pause(wait)
                if self._ending is not None:
                    logger.info("the job is not launched again: %s came", self._ending.name)
                    return retry_policy.exit_status(code)

    def _launch(self) -> int:
        """Run the command once; return its exit code, minus the signal that killed it."""
        self._outcome.unlink(missing_ok=True)  # of the last launch: this one may be killed before it writes any
        self._asked = False
        self._child = subprocess.Popen(self._command, env=self._env, process_group=0)
        while self._early:
            self._child.send_signal(self._early.pop(0))
        try:
            return self._child.wait()
        finally:
            self._child = None

    def _asked_to_end(self, outcome: Outcome | None) -> bool:
        if self._ending is not None:
            logger.info("the job is not launched again: %s came", self._ending.name)
            return True
        if self._asked and outcome is not None and outcome.state == PREEMPTED:
            logger.info("the job is not launched again here: %s", outcome.reason or "it was preempted")
            return True
        return False

    def _take(self, number: int, _frame: FrameType | None) -> None:
        """A signal handler: nothing here may block."""
        taken = signal.Signals(number)
        if taken in ENDING:
            self._ending = taken
        else:
            self._asked = True
        if self._child is None:
            self._early.append(taken)
        else:
            self._child.send_signal(taken)

    def _pause(self, seconds: float) -> None:
        """Wait, or until a signal comes."""
        until = time.monotonic() + seconds
        while self._ending is None and (left := until - time.monotonic()) > 0:
            if select.select([self._wake], [], [], left)[0]:
                os.read(self._wake, 512)

    @contextmanager
    def _handling_signals(self) -> Iterator[None]:
        self._wake, write = os.pipe()
        os.set_blocking(write, False)
        before = {number: signal.getsignal(number) for number in (*ENDING, *ASKING)}
        wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # nohup, for example
                signal.signal(number, self._take)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
            signal.set_wakeup_fd(wakeup)
            os.close(self._wake)
            os.close(write)
