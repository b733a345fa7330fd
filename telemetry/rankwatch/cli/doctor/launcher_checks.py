"""The launcher's own checks of this node, as it runs them before each attempt (manual: node-checks).

They run in the launcher's process for them, which this package does not import.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rankwatch.cli.doctor.finding import Finding, fault, ok, warning
from rankwatch.contract.interpreter import own_python
from rankwatch.contract.messages import read
from rankwatch.contract.node_checks import CheckName, CheckResult, CheckState, clause
from rankwatch.contract.text import decoded

SECONDS: Final = 60.0
NAMES: Final = tuple(name for name in CheckName if name not in (CheckName.PAIRS, CheckName.GPU_MEMORY))
"""Without the one that ends processes of an earlier attempt."""
VARIABLES: Final = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA")
MEND: Final = "'rankwatch run' would keep this node out until that is mended, or run it with --no-node-check"


def checks(monitor: str, variables: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Run them with what the launcher's variables name (``RANKWATCH_CHECK_PATH``, ``RANKWATCH_CHECK_COMMAND``)."""
    node: dict[str, Any] = {
        "monitor": monitor,
        "paths": [path for path in variables.get("RANKWATCH_CHECK_PATH", "").split(os.pathsep) if path],
        "command": variables.get("RANKWATCH_CHECK_COMMAND", ""),
        "variables": {name: variables[name] for name in VARIABLES if variables.get(name)},
    }
    try:
        done = subprocess.run(
            own_python("-m", "rankwatch_launcher.checks.child"),
            input=json.dumps({"node": node, "checks": NAMES}) + "\n",
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        out, late = done.stdout, False
    except subprocess.TimeoutExpired as error:
        out, late = (error.stdout or b"").decode(errors="replace"), True
    except OSError as error:
        yield warning("node checks", f"they cannot be run: {error}", "install the launcher here: pip install rankwatch")
        return
    results = {}
    for line in out.splitlines():
        found = read(CheckResult, decoded(line)["result"])
        results[found.name] = found
    for name in NAMES:
        if (result := results.get(name)) is not None:
            yield _finding(result)
        elif late:
            yield fault(f"node: {name}", f"no answer within {SECONDS:g} s: a driver or a file server hangs", MEND)
    if not results and not late:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1][:200]
        yield warning("node checks", f"they did not run: {last}", "install the launcher here: pip install rankwatch")


def _finding(result: CheckResult) -> Finding:
    name, words = f"node: {result.name}", clause(result)
    if result.state is CheckState.FAILED:
        return fault(name, words, MEND)
    if result.state is CheckState.SKIPPED:
        return ok(name, f"skipped: {words}")
    figures = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in result.evidence.items())
    return ok(name, figures or "passed")
