"""What stands between this launcher and a place in an attempt: the checks of its node, run before each.

A node that fails is checked again and again until it passes. Each run's child is started ahead, so that a restart waits
for the checks alone.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from rankwatch.contract.env import of_ranks
from rankwatch.contract.node_checks import CheckResult, failed, sentence, unfit
from rankwatch_launcher.checks.check import CheckedNode
from rankwatch_launcher.checks.runner import CheckRun
from rankwatch_launcher.log import logger

AGAIN_SECONDS: Final = 10.0
"""Seconds after which a node that failed is checked again."""
HANDED_ON_SECONDS: Final = 60.0
"""Limit of the command that is told about a node that failed."""
READ_VARIABLES: Final = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA")


@dataclass(frozen=True, slots=True)
class Named:
    """The node, as a command or a person knows it."""

    node: str
    host: str
    job: str = ""


class NodeGate:
    """The checks of this launcher's node. Called from one thread."""

    def __init__(
        self,
        checked: Callable[[], CheckedNode],
        report: Callable[[tuple[CheckResult, ...]], None],
        *,
        named: Callable[[], Named],
        on_bad_node: str = "",
    ) -> None:
        """``checked``: what to check now; ``report`` takes the results of each run."""
        self._checked, self._report, self._named, self._on_bad_node = checked, report, named, on_bad_node
        self._ahead: CheckRun | None = CheckRun()
        self._running: CheckRun | None = None
        self._failures: tuple[CheckResult, ...] | None = None
        self._told: frozenset[tuple[str, str]] = frozenset()
        """Checks and reasons that were logged and handed on, until the node passes."""
        self._counters: dict[str, int] = {}
        self._at = 0.0
        self._again_at = 0.0
        self._standing: tuple[CheckResult, ...] = ()
        """What was measured with other nodes, and holds for this launch."""

    def keep_out(self, failure: CheckResult) -> None:
        """The node takes no part in this launch: it is at fault in what was measured together with others."""
        self._standing = (*self._standing, failure)

    def begin(self) -> None:
        """Check the node for the next attempt; what was found before does not count any more."""
        self._failures = None
        self._start()

    def poll(self) -> tuple[CheckResult, ...] | None:
        """The checks that fail, without their times; None: the first run since :meth:`begin` is under way."""
        if self._running is not None and (results := self._running.poll()) is not None:
            # What a check could not count this time is compared with the time before.
            self._counters |= self._running.counters
            self._running, self._at = None, time.monotonic()
            self._again_at = self._at + AGAIN_SECONDS
            results += self._standing
            self._report(results)
            self._take(tuple(replace(each, seconds=0.0) for each in failed(results)))
        elif self._running is None and self._failures and time.monotonic() > self._again_at:
            self._start()
        return self._failures

    def close(self) -> None:
        """End what runs."""
        for run in (self._running, self._ahead):
            if run is not None:
                run.close()
        self._running = self._ahead = None

    def _start(self) -> None:
        if self._running is not None:
            self._running.close()
        run, self._ahead = self._ahead or CheckRun(), None
        node = replace(self._checked(), last=self._counters, last_age=time.monotonic() - self._at if self._at else 0.0)
        run.begin(asdict(node))
        self._running = run

    def _take(self, failures: tuple[CheckResult, ...]) -> None:
        before, self._failures = self._failures, failures
        self._ahead = self._ahead or CheckRun()
        if not failures:
            if self._told:
                logger.info("this node passes its checks now")
            self._told = frozenset()
            return
        new = [each for each in failures if (each.name, each.reason) not in self._told]
        if new or before is None:
            logger.warning("this node takes no part in the job: %s; it is checked again every 10 s", unfit(failures))
        self._told |= {(each.name, each.reason) for each in new}
        if self._on_bad_node:
            for each in new:
                hand_on(self._on_bad_node, self._named(), each.name, each.reason, sentence(each))


def hand_on(command: str, named: Named, check: str, code: str, reason: str) -> threading.Thread:
    """Run the user's command for a bad node, on a thread of its own, within its limit."""
    variables = {
        "RANKWATCH_BAD_NODE": named.host,
        "RANKWATCH_BAD_LAUNCHER": named.node,
        "RANKWATCH_BAD_CHECK": check,
        "RANKWATCH_BAD_CODE": code,
        "RANKWATCH_BAD_REASON": reason,
        "RANKWATCH_JOB_ID": named.job,
    }

    def run() -> None:
        why = _run_command(command, {**of_ranks(os.environ), **variables})
        if why:
            logger.warning("the command of --on-bad-node failed: %s", why)

    thread = threading.Thread(target=run, name="rankwatch-bad-node", daemon=True)
    thread.start()
    return thread


def _run_command(command: str, variables: Mapping[str, str]) -> str:
    """Why it failed; empty: it did not."""
    process = subprocess.Popen(
        command, shell=True, stdin=subprocess.DEVNULL, env=dict(variables), start_new_session=True
    )
    try:
        code = process.wait(HANDED_ON_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, 9)
        process.wait()
        return f"it did not end within {HANDED_ON_SECONDS:g} s"
    return f"exit code {code}" if code else ""


def paths_of(given: Sequence[str], known_files: Sequence[str]) -> tuple[str, ...]:
    """The folders to write to: the given ones, else those of files that are kept beside the checkpoints."""
    if given:
        return tuple(given)
    folders = (os.path.dirname(os.path.abspath(file)) for file in known_files if file)
    return tuple(dict.fromkeys(folder for folder in folders if os.path.isdir(folder)))


def variables_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Those variables of the ranks that a check reads."""
    return {name: environment[name] for name in READ_VARIABLES if environment.get(name)}
