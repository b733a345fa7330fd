"""Finds the ranks that run on this node, whoever started them.

1.  A Python process whose environment states a rank: torch's variables, else those of MPI, PMI or Slurm. A loader
    worker inherits them, so the topmost process of each rank is taken; so does a launcher within a container that was
    given them, which has no local rank while its ranks have, and a script that sets them for each rank it starts.
2.  One with torch that has set these variables itself, in ``os.environ``: they are in its memory (:mod:`.memory`).
3.  Where neither states anything (``mp.spawn``), Python processes with torch that are siblings below a launcher or
    below a Python process with torch, but for the workers of a data loader. Their numbers are in their stacks
    (:mod:`.collect`), else nothing tells them.
4.  Any process that was asked for by its id.

A process can keep who reads its memory waiting, its environment and command line among it: those of each user are read
on threads of their own, and what is not read within its time is named (:attr:`Found.unread`).
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from rankwatch.contract import env
from rankwatch.contract.diagnosis import RankProcess
from rankwatch.contract.files import read_file
from rankwatch.contract.text import decoded, one_line
from rankwatch_launcher import procfs, tcp
from rankwatch_launcher.diagnose import memory
from rankwatch_launcher.stacks.capture import run_all

T = TypeVar("T")

LAUNCHERS: Final = {
    "torchrun": "torchrun", "torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun",
    "torch/distributed/run.py": "torchrun", "rankwatch": "rankwatch run", "accelerate": "accelerate",
    "deepspeed": "deepspeed", "slurmstepd": "srun", "srun": "srun", "mpirun": "mpirun", "mpiexec": "mpirun",
    "orted": "mpirun", "prted": "mpirun", "prterun": "mpirun", "hydra_pmi_proxy": "mpirun", "raylet": "ray",
    "accelerate.commands.launch": "accelerate", "accelerate-launch": "accelerate",
    "deepspeed.launcher.launch": "deepspeed",
}  # fmt: skip
"""Programs that start ranks, by a word of their command line."""
MULTIPROCESSING: Final = "multiprocessing"
"""A Python process that has started several ranks."""
TORCH: Final = "libtorch"
PYTHON: Final = "libpython"
DATA_WORKER: Final = "pt_data_worker"
"""What a worker of torch's data loader calls itself, also one of a training of a single process."""
NODE: Final = os.uname().nodename
COLLECTOR: Final = "rankwatch_launcher.diagnose"
COMMAND: Final = " diagnose"
DEVICES: Final = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
READ_SECONDS: Final = 6.0
"""For the environments and command lines of all processes, and again for what some have changed of theirs since."""
STUCK_SECONDS: Final = 2.0
"""After which nothing more is awaited if no process was read meanwhile."""
READERS: Final = 16
"""Threads that read at a time, shared by the users."""
DEEPEST: Final = 64
"""Processes above one that are looked at: those that a launcher starts have some ten."""
MAX_COMMAND: Final = 2048
MAX_ENVIRONMENT: Final = 1 << 20
MAX_NAME: Final = 1000
"""Characters of a job's name, which stands at each of its ranks."""
_PPID: Final = 1
_STARTED: Final = 19
_NUMBERS: Final = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""),
)
"""Rank, world size, local rank and local world size, by who states them; the first that are there count."""


@dataclass(frozen=True, slots=True)
class Rank(RankProcess):
    """One rank's process, as it was found."""

    parent: int = 0
    torch: bool = False
    """It has loaded torch."""
    stated_by: int = 0
    """Position in :data:`_NUMBERS`."""
    dumps: str = ""
    """Where its flight recorder is dumped when it finds a hang by itself; empty: unknown."""
    control_plane: str = ""
    """Socket of torch's control plane, where the process may have one."""
    home: str = ""
    error_file: str = ""
    devices: Mapping[str, str] = field(default_factory=dict)
    """The variables that choose its GPU."""


@dataclass(frozen=True, slots=True)
class Found:
    """The ranks of this node, and what could not be seen."""

    ranks: tuple[Rank, ...] = ()
    unreadable: tuple[int, ...] = ()
    """Python processes whose environment this user may not read."""
    unread: tuple[int, ...] = ()
    """Processes that could not be read within the time."""


class _Memory(NamedTuple):
    """What a process has in its memory since its start."""

    command: str
    environment: Mapping[str, str] | None
    """None: this user may not read it."""
    torch: bool
    python: bool
    """It has loaded torch, and it is Python."""


_UNREAD: Final = _Memory("", {}, torch=False, python=False)


@dataclass
class _Processes:
    """The processes of this node at one moment."""

    proc: Path
    parents: dict[int, int] = field(default_factory=dict)
    started: dict[int, int] = field(default_factory=dict)
    children: dict[int, list[int]] = field(default_factory=dict)
    memory: dict[int, _Memory] = field(default_factory=dict)
    unread: set[int] = field(default_factory=set)

    @classmethod
    def read(cls, proc: Path) -> _Processes:
        made = cls(proc)
        for name in filter(str.isdigit, os.listdir(proc)):
            fields = procfs.stat_fields(procfs.text(proc / name / "stat"))
            if len(fields) > _STARTED and fields[0] not in "ZX":
                made.parents[int(name)], made.started[int(name)] = int(fields[_PPID]), int(fields[_STARTED])
        for child in sorted(made.parents, key=lambda pid: (made.started[pid], pid)):
            made.children.setdefault(made.parents[child], []).append(child)
        made.memory = made.read_each(made.parents, made._memory)
        return made

    def read_each(self, pids: Iterable[int], read: Callable[[int], T]) -> dict[int, T]:
        """What ``read`` returns of each process within :data:`READ_SECONDS`; one that is not read is in ``unread``."""
        waiting: dict[int, deque[int]] = {}
        for pid in pids:
            if pid not in self.unread:
                waiting.setdefault(self.user(pid), deque()).append(pid)
        asked = {pid for own in waiting.values() for pid in own}
        found: dict[int, T] = {}

        def take(own: deque[int], until: float) -> None:
            while time.monotonic() < until:
                try:
                    pid = own.popleft()
                except IndexError:
                    return
                found[pid] = read(pid)

        last, before = time.monotonic() + READ_SECONDS, -1
        while (left := [own for own in waiting.values() if own]) and len(found) > before:
            before, until = len(found), min(last, time.monotonic() + STUCK_SECONDS)
            threads = max(1, READERS // len(left))
            run_all(until, list(enumerate(partial(take, own, until) for own in left for _ in range(threads))))
        taken = dict(found)  # a thread that was stuck may go on
        self.unread |= asked - taken.keys()
        return taken

    def above(self, pid: int) -> Iterator[int]:
        """Its parent, and the parents of that, the nearest first, at most :data:`DEEPEST`."""
        return islice(self._all_above(pid), DEEPEST)

    def _all_above(self, pid: int) -> Iterator[int]:
        seen = {pid}
        while (pid := self.parents.get(pid, 0)) > 0 and pid not in seen:
            seen.add(pid)
            yield pid

    def below(self, pid: int) -> list[int]:
        """All processes below it."""
        found = list(self.children.get(pid, ()))
        for each in found:
            found.extend(self.children.get(each, ()))
        return found

    def of(self, pid: int) -> _Memory:
        return self.memory.get(pid, _UNREAD)

    def _memory(self, pid: int) -> _Memory:
        command = procfs.text(self.proc / str(pid) / "cmdline", MAX_COMMAND).replace("\0", " ").strip()
        libraries = procfs.maps_libraries(pid, (TORCH, PYTHON), self.proc)
        try:
            program = os.readlink(self.proc / str(pid) / "exe").rpartition("/")[2]
        except OSError:
            program = command.partition(" ")[0].rpartition("/")[2]
        python = program.startswith(("python", "pypy", "pt_main")) or PYTHON in libraries
        return _Memory(command, self._environment(pid), TORCH in libraries, python)

    def loads_data(self, pid: int) -> bool:
        return procfs.text(self.proc / str(pid) / "comm").strip() == DATA_WORKER

    def _environment(self, pid: int) -> dict[str, str] | None:
        try:
            with (self.proc / str(pid) / "environ").open("rb") as file:
                text = file.read(MAX_ENVIRONMENT).decode(errors="replace")
        except PermissionError:
            return None
        except OSError:
            return {}
        return dict(each.split("=", 1) for each in text.split("\0") if "=" in each)

    def user(self, pid: int) -> int:
        """The user that a process runs as; its folder may belong to root."""
        found = procfs.field(self.proc / str(pid) / "status", "Uid")
        return -1 if found is None else found

    def launcher_of(self, pid: int) -> tuple[str, int]:
        """What started a process, and its number; empty: unknown."""
        for each in self.above(pid):
            if name := launcher_named(self.of(each).command):
                return name, each
        return "", 0

    def age(self, pid: int) -> float:
        try:
            up = float(procfs.text(self.proc / "uptime").split()[0])
        except (ValueError, IndexError):
            return 0.0
        return max(0.0, round(up - self.started.get(pid, 0) / procfs.TICK, 2))


@lru_cache(maxsize=4096)
def launcher_named(command: str) -> str:
    """The launcher that a command line starts; empty: none."""
    first, *more = command.split() or [""]
    program = next((word for word in more if not word.startswith("-")), "")
    interpreted = first.rpartition("/")[2].startswith(("python", "bash", "sh"))
    for word in (first.rstrip(":"), program if interpreted else ""):
        if found := LAUNCHERS.get(word.rpartition("/")[2]):
            return found
        if (found := next((LAUNCHERS[path] for path in LAUNCHERS if "/" in path and word.endswith(path)), "")) != "":
            return found
    return ""


def ranks(pids: Collection[int] = (), *, proc: Path = procfs.PROC, own: int | None = None) -> Found:
    """Find the ranks.

    Args:
        pids: only these processes; empty: all that are ranks.
        own: this process; None: that is so.
    """
    processes = _Processes.read(proc)
    own = os.getpid() if own is None else own
    ours = {own, *(each for each in processes.above(own) if COMMAND in processes.of(each).command)}
    stated: dict[int, Rank] = {}
    unreadable: list[int] = []
    for pid in processes.parents:
        if pid in ours and pid not in pids:
            continue
        own_memory = processes.of(pid)
        if not own_memory.python:
            continue
        if own_memory.environment is None:
            unreadable.append(pid)
        elif (rank := _stated(pid, own_memory.environment)) is not None:
            stated[pid] = rank
    now = _with_torch(processes, ours, {pid for pid, rank in stated.items() if rank.stated_by == 0})
    for pid, variables in now.items():
        rank = _stated(pid, variables)
        if rank is not None and rank.stated_by == 0 and rank.world_size > 1:
            stated[pid] = rank
    chosen = _topmost(stated, processes)
    chosen += _siblings(processes, now.keys() - stated.keys(), {each.pid for each in chosen})
    if pids:
        chosen = _asked_for(pids, chosen, stated, processes)
    found = []
    parents = Counter(processes.parents[each.pid] for each in chosen)
    for each in sorted(chosen, key=lambda one: (one.job, one.rank, one.pid)):
        at_start = processes.of(each.pid)
        if COLLECTOR in at_start.command:
            continue
        variables = now.get(each.pid) or at_start.environment or {}
        launcher, launcher_pid = processes.launcher_of(each.pid)
        parent = processes.parents[each.pid]
        if not launcher and parents[parent] > 1 and processes.of(parent).python:
            launcher, launcher_pid = MULTIPROCESSING, parent
        known = replace(
            each,
            age=processes.age(each.pid),
            launcher=launcher,
            launcher_pid=launcher_pid,
            parent=parent,
            torch=at_start.torch,
            user=processes.user(each.pid),
            slurm_job=variables.get("SLURM_JOB_ID", "")[:MAX_NAME],
            devices={name: variables[name] for name in DEVICES if name in variables},
        )
        if known.user >= 0 or (proc / str(each.pid)).exists():  # it has not ended meanwhile
            found.append(known)
    return Found(tuple(_in_turn(_once(found))), tuple(sorted(unreadable)), tuple(sorted(processes.unread)))


def _with_torch(processes: _Processes, ours: Collection[int], numbered: Set[int]) -> Mapping[int, Mapping[str, str]]:
    """Python processes with torch that torch's variables have not numbered from their start, and their environment now.

    What Slurm or MPI has numbered is among them: it may have started the ranks, or be one with another number.
    """
    pids = (
        pid
        for pid, known in processes.memory.items()
        if known.torch and known.python and pid not in ours and numbered.isdisjoint((pid, *processes.above(pid)))
    )
    return processes.read_each(pids, lambda pid: memory.environment(pid, processes.proc))


def _in_turn(ranks: Iterable[Rank]) -> list[Rank]:
    """Users in turn, so that one with thousands of processes does not take the time in which others are looked at."""
    number: dict[int, int] = {}
    placed = []
    for each in ranks:
        number[each.user] = number.get(each.user, -1) + 1
        placed.append((number[each.user], each))
    return [each for _, each in sorted(placed, key=lambda one: one[0])]


def _asked_for(
    pids: Collection[int], chosen: Sequence[Rank], stated: Mapping[int, Rank], processes: _Processes
) -> list[Rank]:
    """The ranks that these processes are, or that are below them; else the processes, as ranks of one job."""
    found, bare = list[Rank](), list[int]()
    for pid in sorted(set(pids) & processes.parents.keys()):
        below = set(processes.below(pid))
        own = [each for each in chosen if each.pid == pid] or [each for each in chosen if each.pid in below]
        if own or pid in stated:
            found += own or [stated[pid]]
        else:
            bare.append(pid)
    job = f"{NODE} pid {min(bare, default=0)}"
    return found + [Rank(pid, job, i, len(bare), guessed=True) for i, pid in enumerate(bare)]


def _once(found: list[Rank]) -> Iterator[Rank]:
    """Of a user's processes that state one rank of a job the one with torch: ranks leave services and commands behind.

    While the ranks are restarted, the newest. What was left behind by a rank that has ended is none, either.
    """
    newest: dict[tuple[int, str, int], Rank] = {}
    for each in found:
        before = newest.get((each.user, each.job, each.rank))
        if before is None or (each.attempt, each.torch, each.age) > (before.attempt, before.torch, before.age):
            newest[each.user, each.job, each.rank] = each
    with_parent = {(each.user, each.job) for each in newest.values() if each.torch and each.parent > 1}
    return (
        each for each in newest.values() if each.torch or each.parent > 1 or (each.user, each.job) not in with_parent
    )


def _stated(pid: int, variables: Mapping[str, str]) -> Rank | None:
    """The rank that an environment states; None: none."""
    for position, (rank, size, local_rank, local_size) in enumerate(_NUMBERS):
        number, world = _number(variables, rank), _number(variables, size)
        if number < 0 or world < 1 or (position and world < 2):
            continue
        if rank == "SLURM_PROCID" and "SLURM_STEP_ID" not in variables:
            continue  # the batch script, which starts the ranks
        return Rank(
            pid,
            job_of(variables)[:MAX_NAME],
            number,
            world,
            _number(variables, local_rank),
            max(0, _number(variables, local_size)),
            max(0, _number(variables, "TORCHELASTIC_RESTART_COUNT")),
            _number(variables, "TORCHELASTIC_MAX_RESTARTS"),
            stated_by=position,
            dumps=variables.get("TORCH_FR_DUMP_TEMP_FILE") or variables.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE") or "",
            control_plane=_control_plane(variables),
            home=variables.get("HOME", ""),
            error_file=variables.get("TORCHELASTIC_ERROR_FILE", ""),
        )
    return None


def _control_plane(variables: Mapping[str, str]) -> str:
    """The script's own (``worker_main``), else that of ``rankwatch.init()`` below ``rankwatch run``."""
    folder, local_rank = variables.get(env.SLOTS_DIR), variables.get("LOCAL_RANK")
    ours = f"{folder}/{local_rank}.sock" if folder and local_rank else ""
    return variables.get("TORCH_WORKER_SERVER_SOCKET") or ours


def job_of(variables: Mapping[str, str]) -> str:
    """What tells the jobs of a node apart, and is the same on all nodes of one."""
    run = variables.get("TORCHELASTIC_RUN_ID", "")
    if run not in ("", "none"):
        return run
    if "SLURM_JOB_ID" in variables and "MASTER_PORT" not in variables:
        return f"slurm {variables['SLURM_JOB_ID']}.{variables.get('SLURM_STEP_ID', '')}".rstrip(".")
    address, port = variables.get("MASTER_ADDR", ""), variables.get("MASTER_PORT", "")
    if address or port:
        return f"{address}:{port}"
    return variables.get("OMPI_MCA_ess_base_jobid") or variables.get("PMIX_NAMESPACE") or "a job"


def _topmost(stated: Mapping[int, Rank], processes: _Processes) -> list[Rank]:
    """The process of each rank: neither what it has started, nor the launcher that was given the same variables."""
    starters = {pid for pid, rank in stated.items() if _starts_it(pid, rank, stated, processes)}
    above = {pid: [each for each in processes.above(pid) if each in stated] for pid in stated}
    first_below, local_below = dict[int, int](), set[int]()
    for pid, rank in stated.items():
        for each in above[pid]:
            first_below[each] = min(rank.stated_by, first_below.get(each, rank.stated_by))
        if rank.local_rank >= 0:
            local_below.update(above[pid])
    found = []
    for pid, rank in stated.items():
        outer = (stated[each] for each in above[pid] if each not in starters)
        own = (rank.job, rank.rank, rank.local_rank)
        local = rank.stated_by == 0 and rank.local_rank >= 0
        if not (
            pid in starters
            or any((each.job, each.rank, each.local_rank) == own for each in outer)
            or first_below.get(pid, rank.stated_by) < rank.stated_by
            or (pid in local_below and not local)
        ):
            found.append(rank)
    return found


def _starts_it(pid: int, rank: Rank, stated: Mapping[int, Rank], processes: _Processes) -> bool:
    """Whether a process has the variables of the rank that it started last: of its children one is that, others not.

    A rank that has started the others is none of them; nor are its loader workers, which are several.
    """
    numbers = [
        stated[each].rank for each in processes.children.get(pid, ()) if each in stated and stated[each].job == rank.job
    ]
    return numbers.count(rank.rank) == 1 < len(numbers)


def _siblings(processes: _Processes, torch: Set[int], known: Set[int]) -> list[Rank]:
    """Ranks of which nothing is stated, numbered in the order of their start.

    Of siblings below siblings those that are connected with each other, else the outer ones: ranks have child processes
    of their own, and one process may have started several jobs.
    """
    with_known_below = {each for pid in known for each in processes.above(pid)}
    torch = {pid for pid in torch - with_known_below if known.isdisjoint((pid, *processes.above(pid)))}
    families: list[tuple[int, list[int]]] = []
    for parent in sorted(processes.children, key=lambda pid: sum(1 for _ in processes.above(pid))):
        several = [pid for pid in processes.children[parent] if pid in torch and not processes.loads_data(pid)]
        if len(several) > 1 and (parent in torch or launcher_named(processes.of(parent).command)):
            families.append((parent, several))
    found, taken = list[Rank](), set[int]()
    if len(families) > 1:
        ends = list(tcp.connections())
        families.sort(key=lambda family: not _connected(family[1], ends, processes.proc))
    for parent, several in families:
        if taken.isdisjoint((parent, *several)):
            taken.update(several, *(processes.below(pid) for pid in several), processes.above(several[0]))
            job = f"{NODE} pid {parent}"
            found += [Rank(pid, job, i, len(several), i, guessed=True) for i, pid in enumerate(several)]
    return found


def _connected(pids: Iterable[int], connections: Iterable[tuple[str, str, int]], proc: Path) -> bool:
    """Whether a connection leads from one of these processes to another."""
    holders = {inode: pid for pid in pids for inode in procfs.sockets(pid, proc)}
    ends = {near: (far, holders[inode]) for near, far, inode in connections if inode in holders}
    return any(far in ends and ends[far][1] != pid for far, pid in ends.values())


def _number(variables: Mapping[str, str], name: str) -> int:
    text = variables.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else -1


def error_of(rank: Rank) -> str:
    """The first line of the exception in torch's error file of a rank, its user's own; empty: there is none."""
    try:
        if not rank.error_file:
            return ""
        message: object = decoded(read_file(Path(rank.error_file), errors="replace", owner=rank.user))["message"]
        message = message["message"] if isinstance(message, dict) else message
        return one_line(str(message).strip().partition("\n")[0], 300)
    except (OSError, ValueError, TypeError, KeyError):
        return ""
