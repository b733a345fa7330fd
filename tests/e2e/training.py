"""One training job of real ranks: started by real launchers, followed over REST, ended whatever happens."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from support.forked import ForkedPopen
from support.forked_ranks import launcher_code, run_command
from support.monitor_process import Api
from support.processes import MARK, end_marked, marked, without
from support.waiting import wait_for

T = TypeVar("T")

SCRIPT = Path(__file__).with_name("ranks.py")
HOST = socket.gethostname()
FAULT, STEPS, RESUMED = 35, 90, 30
"""The step that a fault strikes in, how many there are, and the one to go on with (a checkpoint every 10 steps)."""
STEP_LIMIT = 4
"""Seconds a step may take; it takes 0.02 s, on a busy machine a few tenths."""
PATIENCE = 100.0
"""Seconds that anything may take; a start of the ranks takes 3 s on an idle machine."""
TORCHRUN = launcher_code("from torch.distributed.run import main; main()")
FOREIGN = ("RANKWATCH_", "OTEL_", "TORCHELASTIC_", "PET_", "SLURM_", "RANK", "WORLD_SIZE", "MASTER_", "XDG_")


class Launcher:
    """One ``rankwatch run``, or whatever else started ranks, in a session of its own."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self.log = process, log

    def printed(self) -> str:
        """All that it and its ranks wrote."""
        return self.log.read_text(errors="replace")

    def wait(self) -> int:
        """Its exit code, which must come."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the launcher did not end within {PATIENCE:g} s:\n{self.printed()[-6000:]}") from None


class Training:
    """A job, its folder (see ``ranks.py``) and what the monitor returns."""

    def __init__(self, folder: Path, job: str) -> None:
        self.folder, self.job = folder, job
        self.state = folder / "state"
        # Data loaders put sockets there, whose paths may have 107 characters; those of pytest's folders are long.
        self.temporary = Path(tempfile.mkdtemp(prefix="rw"))
        self.launchers: list[Launcher] = []
        self.api: Api | None = None
        self._mark = uuid4().hex
        self._foreign = False

    # Starting and ending ----------------------------------------------------------------------------------------------

    def follow(self, url: str, token: str | None = None) -> None:
        """From now on this monitor is the one to be asked."""
        if self.api is not None:
            self.api.close()
        self.api = Api(url, token)

    def run(
        self,
        *flags: str,
        ranks: int = 2,
        script: Sequence[str] = (),
        monitor: str | None = None,
        inject: str = "",
        forked: bool = True,
        **variables: str,
    ) -> Launcher:
        """Start ``rankwatch run``.

        Args:
            flags: of ``rankwatch run``.
            ranks: processes of this launcher.
            script: arguments of ``ranks.py``.
            monitor: named with ``--monitor``; the one that is followed unless given, none when empty.
            inject: a fault, as with ``--inject``.
            forked: whether ranks begin with torch imported; else they start as slowly as anywhere.
            variables: further environment variables.
        """
        if monitor is None:
            assert self.api is not None, "name the monitor"
            monitor = str(self.api.base_url)
        named = ("--monitor", monitor) if monitor else ()
        faults = ("--inject", inject) if inject else ()
        command = [
            *(run_command() if forked else ("-m", "rankwatch", "run")),
            "--nproc-per-node",
            str(ranks),
            *named,
            "--job-id",
            self.job,
        ]
        return self.start([*command, *faults, *flags, *self.script(*script)], **variables)

    def script(self, *arguments: str) -> list[str]:
        """``ranks.py`` and its arguments, for a launcher's command line."""
        return [str(SCRIPT), "--folder", str(self.folder), *arguments]

    def torchrun(self, *flags: str, **variables: str) -> Launcher:
        """Start plain torchrun, whose ranks outlive it when it is killed."""
        self._foreign = True
        return self.start(["-c", TORCHRUN, *flags, *self.script()], **variables)

    def start(self, command: Sequence[str], **variables: str) -> Launcher:
        """Start any launcher, by the arguments of Python.

        Where a limit is configured, a learned one of a section inside the step does not raise the suspicion before.
        """
        if "--section-timeout" in command and "--learned-minimum" not in command:
            place = list(command).index("--section-timeout")
            command = [*command[:place], "--learned-minimum", "10", *command[place:]]
        log = self.folder / f"launcher-{len(self.launchers)}.log"
        inherited = without(FOREIGN)
        own = {MARK: self._mark, "TMPDIR": str(self.temporary), "XDG_STATE_HOME": str(self.state)}
        with log.open("wb") as output:
            process = ForkedPopen(
                [sys.executable, *command],
                env=inherited | own | {"OMP_NUM_THREADS": "1"} | variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.launchers.append(Launcher(process, log))
        return self.launchers[-1]

    def strike(self, fault: str) -> None:
        """Have a fault happen in the step that runs."""
        unfinished = self.folder / "fault.new"
        unfinished.write_text(f"step=0,{fault}")
        unfinished.replace(self.folder / "fault")

    def finish(self) -> list[int]:
        """Have all ranks leave their loop after the same step; return the exit codes of the launchers."""
        (self.folder / "finish").touch()
        return [launcher.wait() for launcher in self.launchers]

    def close(self) -> None:
        """End the launchers. All must be gone with them: processes, slots, and files if they ended by themselves."""
        if self.api is not None:
            self.api.close()
        ended = all(launcher.process.poll() is not None for launcher in self.launchers)
        for launcher in self.launchers:
            launcher.process.kill()  # its ranks and its slots go with it, however it ends
            launcher.process.wait()
        if self._foreign and not ended:
            end_marked(self._mark)
        try:
            wait_for(lambda: not marked(self._mark), "nothing survives the launchers")
        finally:
            left = marked(self._mark)
            end_marked(self._mark)
            assert not left, f"ended by the test only: {left}"
        slots = {line["slots"] for lines in self.reported().values() for line in lines if line["slots"]}
        assert [path for path in slots if Path(path).parent.exists()] == [], "slots were left behind"
        kept = f"rankwatch.{os.getuid()}"  # the user's own folder: locks of ports
        ours = [path for path in self.temporary.glob("*rankwatch*") if path.name != kept]
        shutil.rmtree(self.temporary, ignore_errors=True)
        assert not ended or ours == []

    def processes(self) -> dict[int, str]:
        """All that lives of it: pid and command line."""
        return marked(self._mark)

    # What is seen -----------------------------------------------------------------------------------------------------

    def until(self, saying: str, condition: Callable[[], T]) -> T:
        """The first true value of a condition; fails with the launchers' last words, at once when all have ended."""

        def look() -> T:
            ended = all(launcher.process.poll() is not None for launcher in self.launchers)  # the last look comes after
            found = condition()
            assert found or not ended, f"all launchers have ended, and not yet: {saying}"
            return found

        try:
            return wait_for(look, saying, PATIENCE)
        except AssertionError as error:
            words = "\n".join(f"{launcher.log}:\n{launcher.printed()[-4000:]}" for launcher in self.launchers)
            raise AssertionError(f"{error}\n{words}") from None

    def summary(self) -> dict[str, Any]:
        """The job as the monitor shows it; empty while it does not know of it, or takes it over: ask again, it says."""
        assert self.api is not None
        answer = self.api.get(f"/api/v1/jobs/{self.job}")
        if answer.status_code in (404, 429):
            return {}
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def until_running(self, ranks: int, attempt: int = 1) -> dict[str, Any]:
        """Wait until all ranks of an attempt have reported and completed steps."""

        def running() -> dict[str, Any]:
            seen = self.summary()
            here = seen and seen["attempt"] == attempt and seen["ranks_reporting"] == ranks
            return seen if here and seen["state"] == "running" and seen["iteration"] is not None else {}

        return self.until(f"{ranks} ranks train in attempt {attempt}", running)

    def incidents(self) -> list[dict[str, Any]]:
        """All incidents, the newest first."""
        return self.api.incidents(self.job) if self.api is not None and self.summary() else []

    def incident(self, number: int = 1, *, closed: bool = True) -> dict[str, Any]:
        """An incident with its stacks, 1 being the first; waits for it to be over. There must not be more of them."""

        def last() -> dict[str, Any]:
            found = self.incidents()
            assert len(found) <= number, f"{len(found)} incidents: {[i['reason'] for i in found]}"
            there = len(found) == number and (found[0]["closed_at"] is not None or not closed)
            return found[0] if there else {}

        seen = wait_for(last, f"incident {number} of {self.job} is {'over' if closed else 'open'}", PATIENCE)
        assert self.api is not None
        return self.api.read(f"/jobs/{self.job}/incidents/{seen['id']}")

    def order(self, action: str, reason: str) -> str:
        """Post a person's order; return the incident's id."""
        assert self.api is not None
        answer = self.api.post(f"/api/v1/jobs/{self.job}/actions", json={"action": action, "reason": reason})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["incident_id"])

    def reported(self) -> dict[int, list[dict[str, Any]]]:
        """What each rank reported: its complete lines."""
        found = {}
        for file in sorted(self.folder.glob("rank-*.jsonl")):
            lines = file.read_text().splitlines(keepends=True)
            found[int(file.stem.removeprefix("rank-"))] = [json.loads(line) for line in lines if line.endswith("\n")]
        return found

    def steps(self, event: str) -> dict[int, list[tuple[int, int]]]:
        """By rank: (attempt, step) of each line of this kind, ``start`` or ``end``."""
        return {
            rank: [(line["attempt"], line["step"]) for line in lines if line["event"] == event]
            for rank, lines in self.reported().items()
        }

    def resumed(self, attempt: int) -> int:
        """The step that all ranks began an attempt with."""
        began = {step for lines in self.steps("start").values() for number, step in lines if number == attempt}
        assert len(began) == 1, f"the ranks began attempt {attempt} with steps {began}"
        return began.pop()

    def checkpoint(self) -> int:
        """The step to go on with; 0 before the first checkpoint."""
        file = self.folder / "checkpoint"
        return int(file.read_text()) if file.exists() else 0
