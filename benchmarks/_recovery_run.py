"""One job under one launcher for the side by side of recovery: started, struck again and again, ended with all it left.

Each arm is a launcher as its users start it. The ranks (``_recovery_ranks.py``) report what they did and when by the
kernel's clock, so nothing of a launcher is believed; of Rankwatch's evidence the monitor is asked.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import _service
import _table  # noqa: F401 - adds tests/ to the path

from rankwatch_launcher import procfs
from support import processes

SCRIPT = Path(__file__).with_name("_recovery_ranks.py")
LIMIT = 3.0
"""Seconds that a step may take where a launcher has a limit for it; a step takes 0.02 s."""
PATIENCE = 45.0
"""Seconds after which a job is not coming back; the slowest restart seen took 9."""
START_SECONDS = 180.0
"""How long a job may take to come to train, which is no part of any figure."""
MARK = "RECOVERY_BENCHMARK"
"""The variable by which all that a run started is found, beside that of a test of the benchmark. A parked interpreter
has no variable of Rankwatch before it becomes a rank, so this is none."""
marked = functools.partial(processes.marked, variable=MARK)
end_marked = functools.partial(processes.end_marked, variable=MARK)
TUNED = "ft_launcher, 0.5 s"
COLD, PREWARMED = "rankwatch --no-standby", "rankwatch --standby"
FOREIGN = ("RANKWATCH_", "OTEL_", "TORCHELASTIC_", "PET_", "SLURM_", "RANK", "WORLD_SIZE", "MASTER_", "XDG_", "FT_")


@dataclass(frozen=True)
class Arm:
    """One launcher: its command up to the script, what the ranks report to it, and its environment."""

    name: str
    command: Sequence[str]
    instrument: str = "nothing"
    environment: dict[str, str] = field(default_factory=dict)
    parks: bool = False
    """It keeps interpreters ready, and is struck only when they are."""
    limited: bool = True
    """It finds a hang."""


@dataclass(frozen=True)
class Recovery:
    """One fault and what came of it, in seconds from the kill or from the deadline of the hung step."""

    to_process: float
    """Until the last of the new ranks had begun: what the launcher takes."""
    to_step: float
    """Until all ranks had completed a step again."""
    failed: int = 0
    """Attempts in between that came to nothing."""
    warm: bool = False
    """All new ranks ran in interpreters that were there before."""
    evidence: bool | None = None
    """Stacks of all ranks that could give one were kept before the restart; None where nothing keeps any."""
    timeline: dict[str, float | None] = field(default_factory=dict)
    """What the monitor reports of its own phases, since the deadline or the exit."""


class LostError(Exception):
    """The job did not come back within :data:`PATIENCE`."""


class Job:
    """A job that runs under an arm."""

    def __init__(self, arm: Arm, ranks: int, folder: Path, launcher: subprocess.Popen[bytes], mark: str) -> None:
        self.arm, self.ranks, self.folder, self.launcher, self.mark = arm, ranks, folder, launcher, mark
        self._struck = 0

    def recover_from(self, kind: str) -> Recovery:
        """Strike the last rank once the job runs well; wait until it does again.

        Raises:
            LostError: it does not.
        """
        rank = self.ranks - 1
        before = _service.wait_for(f"{self.ranks} ranks to train", lambda: self._all("warm"), START_SECONDS)
        if self.arm.parks:
            _service.wait_for("parked interpreters", self._parked, START_SECONDS)
        self._struck += 1
        order = self.folder / f"strike-{self._struck}"
        unfinished = order.with_suffix(".new")
        unfinished.write_text(f"{rank} {kind}")
        unfinished.replace(order)
        struck = self.folder / f"struck-{self._struck}"
        _service.wait_for("the fault", lambda: struck.exists() or None)
        since = float(struck.read_text()) + (LIMIT if kind == "hang" else 0.0)
        after = self._until("a first step", lambda: self._all("first", after=before))
        began = [self._line(rank, "script", after) for rank in range(self.ranks)]
        starts = [line["born"] if line["born"] > since - 0.02 else line["at"] for line in began]
        steps = [self._line(rank, "first", after)["at"] for rank in range(self.ranks)]
        evidence, timeline = self._evidence(kind, rank) if self.arm.instrument == "rankwatch" else (None, {})
        return Recovery(
            to_process=max(starts) - since,
            to_step=max(steps) - since,
            failed=after - before - 1,
            warm=all(line["born"] < since - 0.02 for line in began),
            evidence=evidence,
            timeline=timeline,
        )

    def _until(self, what: str, look: Any) -> int:
        try:
            found: int = _service.wait_for(what, look, PATIENCE)
        except TimeoutError:
            raise LostError(what) from None
        return found

    def _lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for rank in range(self.ranks):
            file = self.folder / f"rank-{rank}.jsonl"
            if file.exists():
                for line in file.read_text().splitlines(keepends=True):
                    if line.endswith("\n"):
                        yield rank, json.loads(line)

    def _all(self, event: str, after: int = -1) -> int | None:
        """The newest attempt, if it is later than ``after`` and all of its ranks have reported an event.

        Raises:
            LostError: the launcher has ended.
        """
        if self.launcher.poll() is not None:
            raise LostError(f"the launcher ended with code {self.launcher.returncode}")
        reported: dict[int, set[int]] = {}
        newest = -1
        for rank, line in self._lines():
            newest = max(newest, line["restart"])
            if line["event"] == event:
                reported.setdefault(line["restart"], set()).add(rank)
        return newest if newest > after and len(reported.get(newest, ())) == self.ranks else None

    def _line(self, rank: int, event: str, attempt: int) -> dict[str, Any]:
        return next(line for r, line in self._lines() if (r, line["event"], line["restart"]) == (rank, event, attempt))

    def _parked(self) -> bool | None:
        """Whether an interpreter for each rank waits beside them, torch imported, at rest for a second."""
        used = {self.launcher.pid, *(line["pid"] for _, line in self._lines())}
        parked = [pid for pid, command in marked(self.mark).items() if SCRIPT.name in command and pid not in used]
        if len(parked) < self.ranks or not all(procfs.maps_library(pid, "libtorch_python") for pid in parked):
            return None
        worked = [_cpu_ticks(pid) for pid in parked]
        time.sleep(1.0)
        return True if worked == [_cpu_ticks(pid) for pid in parked] else None

    def _evidence(self, kind: str, struck: int) -> tuple[bool, dict[str, float | None]]:
        """Whether the stacks of this fault are kept, and were before the restart; and the incident's timeline."""
        reported = next(line for _, line in self._lines() if line["event"] == "script")
        job = f"{reported['RANKWATCH_MONITOR']}/api/v1/jobs/{reported['RANKWATCH_JOB_ID']}"

        def closed() -> dict[str, Any] | None:
            incidents = (_service.get(f"{job}/incidents") or {"incidents": []})["incidents"]
            done = len(incidents) >= self._struck and incidents[0]["closed_at"] is not None
            return _service.get(f"{job}/incidents/{incidents[0]['id']}") if done else None

        incident = _service.wait_for("the incident's end", closed)
        times = incident["timeline"]
        seen = {rank for group in incident["stack_groups"] for rank in group["ranks"]}
        wanted = set(range(self.ranks)) - ({struck} if kind == "kill" else set())
        there = seen >= wanted and times["captured"] is not None and times["captured"] <= times["restarted"]
        start = times["since"] + (LIMIT if kind == "hang" else 0.0)
        return there, {name: None if at is None else round(at - start, 4) for name, at in times.items()}


@contextlib.contextmanager
def launched(
    arm: Arm, ranks: int, folder: Path, script: Path, *flags: str
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A launcher that runs a script, and the mark of all it starts; nothing of it is left at the end."""
    folder.mkdir()
    temporary, mark = folder / "tmp", uuid4().hex
    temporary.mkdir()
    command = [*arm.command, "--standalone", "--nproc-per-node", str(ranks), *flags, str(script)]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    own = {MARK: mark, "TMPDIR": str(temporary), "XDG_STATE_HOME": str(folder / "state"), "OMP_NUM_THREADS": "1"}
    own[_service.TOKEN_VARIABLE] = _service.TOKEN
    with (folder / "log").open("wb") as log:
        launcher = subprocess.Popen(
            [*command, "--folder", str(folder), "--instrument", arm.instrument],
            env=inherited | own | arm.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=functools.partial(_service.end_with, os.getpid()),
        )
    shared: set[Path] = set()
    try:
        yield launcher, mark
        # The ranks leave by themselves, so that the launcher can too.
        shared = _shared_memory(mark)
        (folder / "finish").touch()
        with contextlib.suppress(subprocess.TimeoutExpired):
            launcher.wait(20)
    finally:
        shared |= _shared_memory(mark)
        if launcher.poll() is None:
            launcher.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(10)
        launcher.kill()
        launcher.wait()
        # What cleans up after a launcher that was killed gets a moment to do so.
        with contextlib.suppress(TimeoutError):
            _service.wait_for("nothing to be left", lambda: not marked(mark) or None, 3.0)
        end_marked(mark)
        for file in shared:
            file.unlink(missing_ok=True)


@contextlib.contextmanager
def job(arm: Arm, ranks: int, folder: Path) -> Iterator[Job]:
    """A job of an arm, from its start to the end of everything that it started."""
    with launched(arm, ranks, folder, SCRIPT, "--max-restarts", "20") as (launcher, mark):
        yield Job(arm, ranks, folder, launcher, mark)


def _shared_memory(mark: str) -> set[Path]:
    """Files of shared memory that a run has open. ft_launcher leaves semaphores behind when it is killed."""
    found = set()
    for pid in marked(mark):
        with contextlib.suppress(OSError):
            found |= {
                word for word in Path(f"/proc/{pid}/maps").read_text().split() if word.startswith("/dev/shm/sem.")
            }
    return {Path(name) for name in found}


def _cpu_ticks(pid: int) -> int:
    return procfs.ticks(procfs.stat_fields(procfs.text(procfs.PROC / str(pid) / "stat")))


@functools.cache
def _help() -> str:
    command = [sys.executable, "-m", "rankwatch", "run", "--help-all"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def arms(ft_launcher: str) -> list[Arm]:
    """The launchers that are there: torchrun twice, Rankwatch with and without a standby, ft_launcher when named."""
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    ours = [sys.executable, "-m", "rankwatch", "run", "--section-timeout", f"step={LIMIT}"]
    found = [
        Arm("torchrun", torchrun, limited=False),
        Arm("torchrun, own store", torchrun, environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}, limited=False),
    ]
    if ft_launcher:
        theirs = [ft_launcher, "--ft-rank-section-timeouts", f"step:{LIMIT}"]
        found.append(Arm("ft_launcher", theirs, "nvrx"))
        found.append(Arm(TUNED, [*theirs, "--ft-workload-check-interval", "0.5"], "nvrx"))
    found.append(Arm(COLD, [*ours, "--no-standby"], "rankwatch"))
    if "--standby" in _help():
        found.append(Arm(PREWARMED, [*ours, "--standby"], "rankwatch", parks=True))
    return found
