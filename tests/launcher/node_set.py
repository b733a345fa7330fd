"""Several launchers of one job, whose ranks import no torch and so start fast."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from launcher.conftest import FakeMonitor, Launcher, wait_for
from support.ports import free_port

Start = Callable[..., Launcher]

RANK = """
import os, signal, sys, time
from pathlib import Path
import rankwatch
RANK, ATTEMPT, NODE = int(os.environ["RANK"]), int(os.environ["RANKWATCH_ATTEMPT"]), os.environ["NAME"]
FOLDER = Path(__file__).parent

def say(text):
    print(f"<{NODE} rank {RANK} of {os.environ['WORLD_SIZE']} attempt {ATTEMPT}: {text}>", flush=True)

rankwatch.init()
say("begins")
begin = int((FOLDER / "checkpoint").read_text()) if (FOLDER / "checkpoint").exists() else 0
for step in range(begin, 3000):
    with rankwatch.step(step):
        time.sleep(0.01)
    if step == begin + 5:
        say("trains")
    FAULT
    if rankwatch.should_stop():
        say(f"saves after step {step}")
        break
    if (FOLDER / "finish").exists():
        break
"""


class Nodes:
    """The launchers of one job, by name, and the folder that they share."""

    def __init__(self, start: Start, folder: Path, monitor: FakeMonitor, nnodes: str, *, by_file: bool = False) -> None:
        self._start, self.folder, self._monitor = start, folder, monitor
        self._common = ["--nnodes", nnodes, "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "nodes"]
        self._common += ["--rdzv-endpoint", str(folder / "store") if by_file else f"127.0.0.1:{free_port()}"]
        self._common += ["--rdzv-conf", "store_type=file"] if by_file else []
        self._common += ["--node-timeout", "5"]
        self.launchers: dict[str, Launcher] = {}

    def script(self, fault: str = "pass") -> None:
        (self.folder / "train.py").write_text(RANK.replace("FAULT", fault))

    def start(self, *names: str, script: Sequence[str] = (), **env: str) -> None:
        for name in names:
            flags = ["--monitor", self._monitor.url, "--outcome", str(self.folder / f"{name}.json")]
            command = script or [str(self.folder / "train.py")]
            self.launchers[name] = self._start(*self._common, *flags, *command, env={"NAME": name, **env})

    def node(self, name: str) -> str:
        """The name that the launcher itself has, as it registered."""
        registered = {body["launcher_pid"]: str(body["node"]) for body in self._monitor.of("nodes")}
        return registered[self.launchers[name].process.pid]

    def printed(self, what: str, *names: str) -> list[str]:
        """Lines with ``what`` in them that the launchers of these names, or all, and their ranks wrote."""
        text = "\n".join(self.launchers[name].output for name in names or self.launchers)
        return re.findall(rf"^.*{what}.*$", text, re.MULTILINE)

    def until(self, what: str, *names: str, count: int = 1) -> list[str]:
        def seen() -> list[str]:
            found = self.printed(what, *names)
            return found if len(found) >= count else []

        try:
            return wait_for(seen, 90.0)
        except AssertionError:
            raise AssertionError(f"not said {count} times: {what}\n" + "\n".join(self.printed(""))[-6000:]) from None

    def finish(self) -> None:
        (self.folder / "finish").touch()

    def outcome(self, name: str) -> dict[str, object]:
        found: dict[str, object] = json.loads((self.folder / f"{name}.json").read_text())
        return found
