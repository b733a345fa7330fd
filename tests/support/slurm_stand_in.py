"""A program in the place of ``rankwatch run`` under Slurm: ends as a test states, and leaves a launcher's outcome.

Its first argument is ``run``, and a test names it ``rankwatch``: it must be found as launchers are. What it does in its
n-th launch stands in ``plan.json``, item n, where the job runs: the fields of an Outcome, and ``until``, what it
waits for first. ``asked``: that one of the launchers gets SIGTERM. ``frozen``: a node that answers no more. A rank
beside it, which SIGTERM would end, must be unharmed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from rankwatch_launcher.outcome import Outcome

RANK = "import sys; print('rank up', flush=True); sys.stdin.read()"


def log(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def main() -> int:
    node = os.environ["SLURMD_NODENAME"]
    file = Path(os.environ["RANKWATCH_OUTCOME"].replace("{node}", node))
    number = len((file.parent / "launches.jsonl").read_text().splitlines())
    plan = json.loads(Path("plan.json").read_text())
    planned = plan[min(number, len(plan) - 1)]
    agreed = Path(f"agreed-{number}")
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: asked.set())
    rank = subprocess.Popen([sys.executable, "-c", RANK], stdin=subprocess.PIPE)
    log(f"launch {number + 1} on {node}, job {os.environ['RANKWATCH_JOB_ID']}")
    if planned.pop("frozen", "") == node:
        Path(f"frozen-{node}").touch()  # what it printed may not have left the step's daemon
        for pid in (os.getppid(), os.getpid()):  # the step's daemon too
            os.kill(pid, signal.SIGSTOP)
    if planned.pop("until", "") == "asked":
        while not asked.wait(0.05) and not agreed.exists():
            pass
        if asked.is_set():
            log(f"{node} was asked to stop")
            agreed.touch()
    rank.communicate()
    log(f"{node}: rank ended with {rank.returncode}")
    Outcome(job_id=os.environ["RANKWATCH_JOB_ID"], **planned).write(file)
    return int(planned["code"])


if __name__ == "__main__":
    sys.exit(main())
