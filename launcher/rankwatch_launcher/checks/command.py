"""A command of the user's own (``--check-command``): its exit code decides, its last line is the reason."""

from __future__ import annotations

import os
import subprocess
from typing import Final

from rankwatch.contract.env import of_ranks
from rankwatch.contract.exits import signal_name
from rankwatch.contract.node_checks import CheckName, CheckReason
from rankwatch_launcher.checks.check import Check, CheckedNode, Failed, Found, Passed, Skipped

LIMIT: Final = 60.0
MAX_OUTPUT: Final = 1 << 16
"""Bytes of the end of its output that are read."""


def run(node: CheckedNode) -> Found:
    """Run it by the shell, as the ranks' user with the ranks' environment."""
    if not node.command:
        return Skipped(CheckReason.NOT_ASKED)
    with subprocess.Popen(
        node.command,
        shell=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=of_ranks(os.environ),
    ) as process:
        assert process.stdout is not None
        output = b""
        while block := os.read(process.stdout.fileno(), MAX_OUTPUT):
            output = (output + block)[-MAX_OUTPUT:]
        code = process.wait()
    lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    last = f": {lines[-1]}" if lines else ""
    if code == 0:
        return Passed({"last": lines[-1]} if lines else {})
    ended = f"exit code {code}" if code > 0 else signal_name(-code)
    return Failed(CheckReason.EXIT_CODE, {"command": node.command, "code": ended, "last": last})


CHECK: Final = Check(CheckName.COMMAND, run, limit=LIMIT)
