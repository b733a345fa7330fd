"""The process that runs the checks: one line of JSON in, one line for each result out, in the order of their ends.

It is started ahead, and imports what the checks need while the launcher has other things to do. Without a line it ends:
its launcher has.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from dataclasses import asdict
from typing import Any

from rankwatch.contract.messages import read
from rankwatch.contract.node_checks import CheckReason, CheckResult, CheckState
from rankwatch_launcher.checks.catalogue import CHECKS
from rankwatch_launcher.checks.check import Check, CheckedNode, Found, Passed, Skipped


def result_of(check: Check, found: Found, seconds: float) -> CheckResult:
    """What a check found, as the record that leaves this process."""
    took = round(seconds, 3)
    if isinstance(found, Passed):
        result = CheckResult(check.name, CheckState.PASSED, "", found.figures, took)
    elif isinstance(found, Skipped):
        result = CheckResult(check.name, CheckState.SKIPPED, found.why, found.evidence, took)
    else:
        result = CheckResult(check.name, CheckState.FAILED, found.reason, found.evidence, took)
    return result.bounded()


def checked(check: Check, node: CheckedNode) -> tuple[CheckResult, dict[str, int]]:
    """Run one check; return its result and its counters."""
    began = time.monotonic()
    found: Found
    try:
        found = check.run(node)
    except Exception as error:  # noqa: BLE001 - the thread's boundary: a check that breaks is a result
        found = Skipped(CheckReason.BROKEN, {"error": f"{type(error).__name__}: {error}"})
    counters = {} if isinstance(found, Skipped) else dict(found.counters)
    return result_of(check, found, time.monotonic() - began), counters


def main() -> int:
    """Read what is asked for, run it, print the results."""
    line = sys.stdin.readline()
    if not line:
        return 0
    order: dict[str, Any] = json.loads(line)
    node = read(CheckedNode, order["node"])
    chosen = [check for check in CHECKS if check.name in order["checks"]]
    done: queue.SimpleQueue[tuple[CheckResult, dict[str, int]]] = queue.SimpleQueue()
    for check in chosen:
        threading.Thread(target=lambda each=check: done.put(checked(each, node)), name=check.name, daemon=True).start()
    for _ in chosen:
        result, counters = done.get()
        sys.stdout.write(json.dumps({"result": asdict(result), "counters": counters}) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
