"""P19: memory and processes that Rankwatch adds to a rank and to a node, beside torchrun in the same run.

    python benchmarks/memory.py [--ranks N] [--runs N] [--seconds S] [--nvrx PATH/bin/ft_launcher] [--json FILE]

The same toy training over gloo (``_recovery_ranks.py``) runs under each launcher in turn. After ``--seconds`` of
training, so that a first report and a first profiled step have been, ``/proc/*/smaps_rollup`` of every process that
the launcher started is read. Figures are MB (2**20 bytes), medians over runs and over processes of a kind:

rss      resident memory, whoever shares it
pss      the same, shared pages divided among those that share them
private  what would be free if the process ended

``rank`` is a process that trains, ``launcher`` the one that was started by hand, ``monitor`` Rankwatch's own monitor
(one for a job, not one for a node), ``parked`` an interpreter that is prewarmed for a restart (by default while memory
is plenty; ``--no-standby`` has none), ``beside`` everything else that the launcher started. The lines that begin with
``+`` are differences to torchrun in the same environment: of a rank, and of what a node has beyond its ranks, without
the monitor. ft_launcher forks its rank monitors, so that its own pages count as shared: look at all three figures.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import _recovery_run
import _service
import _table
from _recovery_run import Arm

from rankwatch_launcher.prewarm import child

RANK, LAUNCHER, PARKED, MONITOR, BESIDE = "rank", "launcher", "parked", "monitor", "beside"
TORCHRUN = "torchrun, own store"
"""What the others are compared with; its own store, since plain restarts of gloo fail too often."""
THEIR_TORCHRUN = "torchrun beside it"
"""torchrun in the environment of ft_launcher, where other packages (numpy, for one) make another torch process."""
START_SECONDS = 120.0
KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Footprint:
    """One process and its memory in MB."""

    role: str
    command: str
    rss: float
    pss: float
    private: float


def arms(ft_launcher: str) -> list[Arm]:
    """torchrun; Rankwatch by default, without prewarmed interpreters, and without kernel timings as well; when named,
    ft_launcher and the torchrun beside it."""
    known = {arm.name: arm for arm in _recovery_run.arms(ft_launcher)}
    base, cold = known[TORCHRUN], known[_recovery_run.COLD]
    default = Arm("rankwatch", [word for word in cold.command if word != "--no-standby"], cold.instrument)
    lean = Arm(f"{cold.name}, no kernels", cold.command, cold.instrument, {"RANKWATCH_KERNEL_TIMINGS": "off"})
    ours = [default, cold, lean]
    if not ft_launcher:
        return [base, *ours]
    python = str(Path(ft_launcher).with_name("python"))
    theirs = Arm(THEIR_TORCHRUN, [python, *base.command[1:]], environment=base.environment)
    return [base, *ours, theirs, known["ft_launcher"]]


def footprints(arm: Arm, ranks: int, folder: Path, seconds: float) -> list[Footprint]:
    """Every process of a job of an arm that has trained for so long.

    Raises:
        TimeoutError: its ranks do not come to train.
    """
    with _recovery_run.job(arm, ranks, folder) as job:

        def warm() -> bool | None:
            reported = [file.read_text() for file in folder.glob("rank-*.jsonl")]
            return sum('"warm"' in text for text in reported) == ranks or None

        _service.wait_for(f"{ranks} ranks of {arm.name} to train", warm, START_SECONDS)
        time.sleep(seconds)
        return list(_read(_recovery_run.marked(job.mark), job.launcher.pid))


def _read(processes: dict[int, str], launcher: int) -> Iterable[Footprint]:
    for pid, command in processes.items():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            yield Footprint(_role(pid, command, launcher), command, *memory_of(pid))


def _role(pid: int, command: str, launcher: int) -> str:
    if pid == launcher:
        return LAUNCHER
    environment = b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    if f"\0{child.VARIABLE}=".encode() in environment:  # nothing is restarted here, so it has not become a rank
        return PARKED
    if b"\0RANK=" in environment:
        return RANK
    return MONITOR if "rankwatch_monitor" in command else BESIDE


def memory_of(pid: int) -> tuple[float, float, float]:
    """Resident, proportional and private memory of a process in MB.

    Raises:
        OSError: there is no such process.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kib = {name: float(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}
    private = kib["Private_Clean"] + kib["Private_Dirty"]
    rss, pss, own = (value * KIB / MIB for value in (kib["Rss"], kib["Pss"], private))
    return rss, pss, own


def rows(seen: dict[str, list[list[Footprint]]]) -> dict[str, dict[str, float]]:
    """The table: each launcher's processes by their role, and what it adds to torchrun."""
    found: dict[str, dict[str, float]] = {}
    for name, runs in seen.items():
        for role in (RANK, LAUNCHER, PARKED, BESIDE, MONITOR):
            each = [process for run in runs for process in run if process.role == role]
            if each:
                count = median([sum(process.role == role for process in run) for run in runs])
                found[f"{name}: {role}"] = {"processes": count, **_medians(each)}
    for name, runs in seen.items():
        if name not in (TORCHRUN, THEIR_TORCHRUN):
            compared = seen[THEIR_TORCHRUN if name == "ft_launcher" else TORCHRUN]
            found[f"+ {name}: a rank"] = _added(runs, compared, (RANK,))
            found[f"+ {name}: a node"] = _added(runs, compared, (LAUNCHER, PARKED, BESIDE))
    return found


def _medians(processes: list[Footprint]) -> dict[str, float]:
    return {what: median([getattr(each, what) for each in processes]) for what in ("rss", "pss", "private")}


def _added(runs: list[list[Footprint]], base: list[list[Footprint]], roles: tuple[str, ...]) -> dict[str, float]:
    """What a rank or, beyond its ranks, a node has more than under the launcher that is compared with."""

    def one(run: list[Footprint], what: str) -> float:
        values = [getattr(each, what) for each in run if each.role in roles]
        return median(values) if roles == (RANK,) else sum(values)

    def count(run: list[Footprint]) -> int:
        return 0 if roles == (RANK,) else sum(each.role in roles for each in run)

    added = {
        what: median([one(run, what) for run in runs]) - median([one(run, what) for run in base])
        for what in ("rss", "pss", "private")
    }
    return {"processes": median(map(count, runs)) - median(map(count, base)), **added}


def measure(chosen: list[Arm], ranks: int, runs: int, seconds: float, folder: Path) -> dict[str, list[list[Footprint]]]:
    """Run every launcher once in each round."""
    seen: dict[str, list[list[Footprint]]] = {arm.name: [] for arm in chosen}
    for number in range(runs):
        for place, arm in enumerate(chosen):
            print(f"memory {number + 1}/{runs}: {arm.name}", file=sys.stderr, flush=True)
            seen[arm.name].append(footprints(arm, ranks, folder / f"{number}-{place}", seconds))
    return seen


def main() -> None:
    """Run the benchmark."""
    asked = _table.arguments(
        __doc__,
        ranks=(4, "ranks of the job"),
        runs=(3, "rounds"),
        seconds=(20.0, "seconds of training before memory is read"),
        nvrx=("", "path of ft_launcher of nvidia-resiliency-ext"),
    )
    if not os.access("/proc/self/smaps_rollup", os.R_OK):
        sys.exit("this kernel has no /proc/*/smaps_rollup (Linux 4.14 and newer have it): memory cannot be read")
    chosen = arms(asked.nvrx)
    with tempfile.TemporaryDirectory(prefix="memory-") as name:
        seen = measure(chosen, asked.ranks, asked.runs, asked.seconds, Path(name))
    _table.report(rows(seen), "MB", asked.json)


if __name__ == "__main__":
    main()
