"""Looks at the ranks of this node for some seconds, and makes the report of it.

Every look reads the Python stacks by py-spy, which pauses nothing, and counters of /proc; meanwhile the ends of
processes are awaited on their descriptors. Nothing is sent to a rank, no file of it is written, and every method has
its time: what does not answer is missing in the report, which comes anyway.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

from rankwatch.contract.diagnosis import (
    Called,
    Gpu,
    Hindrance,
    NodeReport,
    Obstacle,
    Profile,
    RankProcess,
    SeenExit,
    SeenNccl,
    SeenRank,
    ThreadStack,
)
from rankwatch.contract.enums import WaitKind
from rankwatch.contract.files import find_program, opened
from rankwatch.contract.messages import LOG_LINES, Collective, Frame, RankLog, RankStack
from rankwatch.contract.packages import package_of
from rankwatch.contract.peers import COLLECTIVES, waits_for_peers
from rankwatch.contract.text import decoded, one_line
from rankwatch_launcher import procfs
from rankwatch_launcher.diagnose import find, memory, share
from rankwatch_launcher.diagnose import native as native_frames
from rankwatch_launcher.diagnose import profile as profiling
from rankwatch_launcher.diagnose.find import Rank
from rankwatch_launcher.diagnose.gpus import Gpus
from rankwatch_launcher.stacks import collectives, flight_dumps, ras
from rankwatch_launcher.stacks.capture import NO_PERMISSION, StackReader, Target, run_all, run_py_spy
from rankwatch_launcher.stacks.usage import UsageMeter
from rankwatch_launcher.stacks.waits import PythonThread

SECONDS: Final = 6.5
"""From the first look to the last: a little more than ranks must stand still to count as such."""
INTERVAL: Final = 1.0
"""Seconds between two looks; longer where a look takes long, so that the job keeps its processors."""
SHARE: Final = 3.0
"""A look is followed by a pause of so many times as long as it took."""
LOOKS: Final = 3
"""At least, on however busy a machine."""
LOOK_SECONDS: Final = 5.0
ASKING_NODES: Final = 2
"""Nodes of a job on which NCCL is asked about it, unless one is looked at alone."""
ASKED_JOBS: Final = 4
"""Jobs of one user about which NCCL is asked; its answers are bounded (``nccl_ras.MAX_LISTED``)."""
LOCALS_SECONDS: Final = 2.0
NAMES_SECONDS: Final = 4.0
"""For the numbers of all ranks that only their stacks state."""
FILES_SECONDS: Final = 3.0
"""For the files of all ranks: logs, dumps, exceptions. A file may be a pipe, or on a server that does not answer."""
CONTROL_PLANE_SECONDS: Final = 1.0
STANDS: Final = 3.0
"""Seconds that a main thread was at the same lines of a collective, so that it is not leaving."""
SPAWN: Final = "mp.spawn"
SPAWN_FILE: Final = "torch/multiprocessing/spawn.py"
RANK_NAMES: Final = ("rank", "global_rank", "world_rank", "local_rank")
SIZE_NAMES: Final = ("world_size", "world", "size")
"""What scripts call their rank and the number of all ranks."""
MOST_DIGITS: Final = 8
WRAPPER_FILE: Final = "torch/distributed/c10d_logger.py"
NO_GROUP: Final = '"group": None'
GROUP: Final = re.compile(r"<[\w.]*ProcessGroup at (0x[0-9a-f]{1,16})>")
"""As py-spy shows them."""
MESSAGES: Final = ("recv", "send")
MAX_VARIABLE: Final = 100
COUNT_THEIR_RANKS: Final = ("torchrun", "accelerate", "deepspeed", SPAWN)
"""Launchers that start all ranks of a node, and end all when one fails: a rank that is missing exited with code 0."""
WORKER_LOOP: Final = ("_worker_loop", "torch/utils/data/")
MAX_LOCAL_RANKS: Final = 4096
"""Of a user: what claims more has none missing."""
MAX_PIDS: Final = 4096
"""Of an obstacle."""
MAX_THREADS: Final = 16
MAX_FRAMES: Final = 12
"""Of another thread than the main one."""
TAIL: Final = 32 << 10
MAX_LOCALS: Final = 4 << 20
_EXIT_CODE: Final = 49
"""Position in :func:`.procfs.stat_fields` of the status that a zombie leaves to its parent."""
_AS_FOUND: Final = {each.name for each in fields(RankProcess)}
"""What is known of a rank before the looks at it."""

_Frames = Sequence[Mapping[str, Any]]


@dataclass
class _Watched:
    """A rank, with what the looks have shown so far."""

    rank: Rank
    pidfd: int | None
    stack: RankStack | None = None
    threads: Mapping[int, PythonThread] = field(default_factory=dict)
    ended: float | None = None
    """Monotonic."""
    code: int | None = None


class Collector:
    """Looks at the ranks of this node. Used once."""

    def __init__(self, pids: Collection[int] = (), job: str | None = None, *, proc: Path = procfs.PROC) -> None:
        self._pids, self._job, self._proc = tuple(pids), job, proc
        self._reader = StackReader(py_spy=find_program("py-spy"))
        self._meters: dict[str, UsageMeter] = {}
        self._watched: list[_Watched] = []
        self._gpus: Mapping[int, Gpu] = {}
        """By process."""
        self._profiles: Mapping[int, Profile] = {}
        """By process."""
        self._nccl: tuple[SeenNccl, ...] = ()
        self._stated: dict[int, Rank | None] = {}
        """By process: the rank that its stack states; None: it is a loader worker."""

    def report(
        self, seconds: float = SECONDS, *, profile: bool = False, native: bool = False, alone: bool = False
    ) -> NodeReport:
        """Look at the ranks for so long.

        Args:
            profile: sample where they spend their time, too.
            native: stop each after the looks, and read its native frames.
            alone: no other node is looked at, so NCCL is asked here, whichever node of its job this is.
        """
        found = self._find()
        self._watched = [_Watched(rank, procfs.open_pidfd(rank.pid)) for rank in found.ranks]
        gpus = Gpus(found.ranks)
        asking = threading.Thread(target=self._ask_nccl, args=(found.ranks, alone), daemon=True)
        asking.start()
        sampling = threading.Thread(target=self._profile, args=(seconds,), daemon=True)
        interval = seconds / LOOKS if profile else INTERVAL
        try:
            if profile:
                sampling.start()
            began, last, looks = time.monotonic(), 0.0, 0
            while self._watched:
                last = time.monotonic()
                self._look(last)
                looks += 1
                enough = last - began >= seconds and looks >= LOOKS
                if enough or not any(each.ended is None for each in self._watched):
                    break
                now = time.monotonic()
                pause = min(max(interval - (now - last), SHARE * (now - last)), seconds / LOOKS)
                left = began + seconds - now
                self._await_ends(max(0.05, min(pause, left) if left > 0 else 0.05))
            if profile:
                sampling.join()
            asking.join(ras.SECONDS)
            at = time.time()
            self._gpus, no_gpus = gpus.taken()
            # Ranks begin anew where others have ended; on a busy node it takes seconds to find them.
            unchanged = self._watched and not any(each.ended or each.pidfd is None for each in self._watched)
            after = found if unchanged else self._find()
            frames = self._native() if native else {}
            looked = max(0.0, round(last - began, 3)) if self._watched else 0.0
            made = self._made(found, after, frames, looked, at)
            return replace(made, obstacles=(*made.obstacles, *no_gpus))
        finally:
            for each in self._watched:
                if each.pidfd is not None:
                    os.close(each.pidfd)

    def _profile(self, seconds: float) -> None:
        tool, pids = find_program("py-spy"), [each.rank.pid for each in self._watched]
        if tool is not None:
            with contextlib.suppress(OSError):  # no more processes: the report comes without
                self._profiles = profiling.profiles(tool, pids, seconds, proc=self._proc)

    def _native(self) -> dict[int, tuple[Frame, ...]]:
        """Native frames of the ranks, by process; empty where they could not be read."""
        tool, until = find_program("py-spy"), time.monotonic() + native_frames.SECONDS
        pids = [each.rank.pid for each in self._watched if each.ended is None]
        if tool is None:
            return {}
        read = run_all(until + 1.0, [(pid, partial(native_frames.of_rank, tool, pid, until)) for pid in pids])
        return {pid: read.get(pid, ()) for pid in pids}

    def _ask_nccl(self, ranks: Sequence[Rank], alone: bool) -> None:
        """Ask NCCL about each job, on its first nodes: an answer is of the whole job."""
        jobs: dict[tuple[str, int], list[Rank]] = {}
        for each in ranks:
            jobs.setdefault((each.job, each.user), []).append(each)
        asked: list[tuple[str, int]] = []
        for key, of_job in jobs.items():
            first = min(each.rank for each in of_job) < ASKING_NODES * max(each.local_world_size for each in of_job)
            if (alone or first) and sum(user == key[1] for _, user in asked) < ASKED_JOBS:
                asked.append(key)
        until = time.monotonic() + ras.SECONDS
        pids = [[each.pid for each in jobs[key]] for key in asked]
        answers = run_all(until, [(i, partial(ras.ask, each, until, proc=self._proc)) for i, each in enumerate(pids)])
        self._nccl = tuple(
            SeenNccl(job, answer, user) for i, (job, user) in enumerate(asked) if (answer := answers.get(i)) is not None
        )

    def _find(self) -> find.Found:
        found = find.ranks(self._pids, proc=self._proc)
        ranks = [each for each in found.ranks if self._job in (None, each.job)]
        if not self._pids and self._job is None:
            # In a step of a Slurm job that job is meant; ranks in containers may not state theirs.
            own = os.environ.get("SLURM_JOB_ID")
            ranks = [each for each in ranks if own and each.slurm_job == own] or ranks
        return replace(found, ranks=tuple(self._named(ranks)))

    # Looks ------------------------------------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        alive = {i: each for i, each in enumerate(self._watched) if each.ended is None}
        targets = [Target(i, each.rank.local_rank, each.rank.pid) for i, each in alive.items()]
        threads, stacks = self._reader.sample(targets, LOOK_SECONDS, dict.fromkeys(alive, ()))
        by_job: dict[str, list[RankStack]] = {}
        for stack in stacks:
            by_job.setdefault(alive[stack.rank].rank.job, []).append(stack)
        for job, of_job in by_job.items():
            usage = self._meters.setdefault(job, UsageMeter(self._proc)).sample(of_job, now, threads)
            for stack in of_job:
                each = alive[stack.rank]
                each.stack = replace(stack, usage=usage[stack.rank])
                each.threads = threads.get(stack.rank) or each.threads

    def _await_ends(self, seconds: float) -> None:
        """Wait, and note which processes end meanwhile, in their order."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            waiting = {each.pidfd: each for each in self._watched if each.ended is None and each.pidfd is not None}
            ready, _, _ = select.select(list(waiting), [], [], min(left, 0.5) if waiting else left)
            for pidfd in ready:
                waiting[pidfd].ended = time.monotonic()
                waiting[pidfd].code = self._exit_code(waiting[pidfd].rank.pid)

    def _exit_code(self, pid: int) -> int | None:
        """What a process that has ended leaves to its parent; None: it took it already, or only it may know."""
        fields = procfs.stat_fields(procfs.text(self._proc / str(pid) / "stat"))
        if not fields or fields[0] != "Z" or len(fields) <= _EXIT_CODE or not fields[_EXIT_CODE].isdigit():
            return None
        status = int(fields[_EXIT_CODE])
        return None if status == 0 and os.geteuid() else os.waitstatus_to_exitcode(status)

    def _named(self, ranks: Sequence[Rank]) -> list[Rank]:
        """The ranks with the numbers that their stacks state, without loader workers."""
        tool = find_program("py-spy")
        guessed = [each for each in ranks if each.guessed and each.pid not in self._stated]
        if tool is not None and guessed:
            pids = {pid for each in guessed for pid in (each.pid, each.parent)}
            until = time.monotonic() + NAMES_SECONDS
            frames = run_all(until, [(pid, partial(_locals, tool, pid)) for pid in pids])
            self._stated.update(_numbered(guessed, frames))
        return [known for each in ranks if (known := self._stated.get(each.pid, each)) is not None]

    # The report -------------------------------------------------------------------------------------------------------

    def _made(
        self, found: find.Found, after: find.Found, native: Mapping[int, tuple[Frame, ...]], seconds: float, at: float
    ) -> NodeReport:
        now = time.monotonic()
        alive = [each for each in self._watched if each.ended is None and each.stack is not None]
        ended = [each for each in self._watched if each.ended]
        until = now + FILES_SECONDS
        with flight_dumps.bounded_memory():
            dumps = run_all(until, [(each.rank.pid, partial(_collectives, each)) for each in alive])
        called = self._called(alive, dumps, until)
        errors = run_all(until, [(each.rank.pid, partial(find.error_of, each.rank)) for each in ended])
        stacks = [_own(each, dumps.get(each.rank.pid, ())) for each in alive]
        logs = self._logs(alive, until)
        seen = [
            replace(
                self._seen(each, stack, logs.get(each.rank.pid)),
                called=called.get(each.rank.pid),
                native=native.get(each.rank.pid, ()),
            )
            for each, stack in zip(alive, stacks, strict=True)
        ]
        exits = [
            _exit(each, now, errors.get(each.rank.pid, "")) for each in sorted(ended, key=lambda one: one.ended or 0.0)
        ]
        known = {(each.rank.user, each.rank.job, each.rank.rank): each.rank.pid for each in self._watched}
        begun = [e for e in after.ranks if known.get((e.user, e.job, e.rank)) != e.pid and not self._pids]
        named = {(one.user, one.job, one.rank) for one in seen}
        for each in begun:  # of the next attempt, of which there was one look at most
            if (each.user, each.job, each.rank) not in named:
                bare = RankStack(each.rank, each.pid, "", process_state=procfs.process_state(each.pid))
                seen.append(self._seen(_Watched(each, None), bare, None))
        gone = {(each.user, each.job, each.rank) for each in exits}
        missing = [one for one in _missing(seen) if (one.user, one.job, one.rank) not in gone]
        fitted = share.fitted(seen, (*exits, *missing))
        obstacles = self._obstacles(found, stacks)
        if unread := tuple(pid for pid, frames in native.items() if not frames):
            obstacles.append(Obstacle(Hindrance.NO_NATIVE_FRAMES, unread))
        if fitted.cut:
            obstacles.append(Obstacle(Hindrance.TOO_LARGE, fitted.cut))
        bounded = tuple(replace(each, pids=each.pids[:MAX_PIDS]) for each in obstacles)
        return NodeReport(socket.gethostname(), at, seconds, fitted.ranks, fitted.exits, bounded, self._nccl)

    def _seen(self, each: _Watched, stack: RankStack, log: RankLog | None) -> SeenRank:
        rank = each.rank
        others = [thread for tid, thread in each.threads.items() if tid != rank.pid and thread.frames]
        return SeenRank(
            stack=stack,
            threads=tuple(ThreadStack(one.name, one.frames[:MAX_FRAMES]) for one in others[:MAX_THREADS]),
            log=log,
            gpu=self._gpus.get(rank.pid),
            profile=self._profiles.get(rank.pid),
            **{**{name: getattr(rank, name) for name in _AS_FOUND}, "launcher": _launcher(rank, stack)},
        )

    def _called(
        self, alive: Sequence[_Watched], dumps: Mapping[int, Collection[Collective]], until: float
    ) -> dict[int, Called | None]:
        """The arguments of calls, by process, where all ranks here stand in one and no flight recorder tells."""
        tool = find_program("py-spy")
        moving = {(each.rank.user, each.rank.job) for each in alive if not _stands(each)}
        moving |= {(each.rank.user, each.rank.job) for each in self._watched if each.ended or dumps.get(each.rank.pid)}
        asked = [each.rank.pid for each in alive if (each.rank.user, each.rank.job) not in moving]
        return (
            {} if tool is None else run_all(until, [(pid, partial(_arguments, tool, pid, self._proc)) for pid in asked])
        )

    def _logs(self, alive: Sequence[_Watched], until: float) -> dict[int, RankLog]:
        """The ends of the files that output goes to, by process; of a file that ranks share once."""
        found: dict[int, RankLog] = {}
        files: dict[tuple[int, int], int] = {}
        read = run_all(until, [(one.rank.pid, partial(self._log, one.rank)) for one in alive])
        for pid in (one.rank.pid for one in alive):  # not in the order in which they were read: the first rank has it
            if (each := read.get(pid)) is None:
                continue
            file, log = each
            if file not in files:
                files[file], found[pid] = pid, log
            else:
                found[files[file]] = replace(found[files[file]], shared=True)
        return found

    def _log(self, rank: Rank) -> tuple[tuple[int, int], RankLog] | None:
        """What a rank's output goes to, and its end; None: no file has any."""
        for number, stream in ((2, "stderr"), (1, "stdout")):
            path = self._proc / str(rank.pid) / "fd" / str(number)
            with contextlib.suppress(OSError), opened(path, rank.user) as file:
                about = os.fstat(file.fileno())
                lines = tuple(_tail(file, about.st_size))
                if lines or number == 1:
                    log = RankLog(rank.rank, stream, socket.gethostname(), os.readlink(path), lines)
                    return (about.st_dev, about.st_ino), log.bounded()
        return None

    def _obstacles(self, found: find.Found, stacks: Sequence[RankStack]) -> list[Obstacle]:
        obstacles = list[Obstacle]()
        if self._watched and find_program("py-spy") is None:
            obstacles.append(Obstacle(Hindrance.NO_PY_SPY))
        refused = [s for s in stacks if not s.frames and self._refused(s)]
        if refused:
            obstacles.append(Obstacle(Hindrance.NOT_TRACED, tuple(s.pid for s in refused), one_line(refused[0].error)))
        blind = [
            s.pid
            for s in stacks
            if s.frames and s.usage is not None and s.usage.wait is not None
            and s.usage.wait.kind is WaitKind.UNKNOWN
            and not procfs.text(self._proc / str(s.pid) / "syscall").strip()
        ]  # fmt: skip
        if blind:
            obstacles.append(Obstacle(Hindrance.NO_SYSTEM_CALLS, tuple(blind)))
        if found.unreadable and os.geteuid():
            obstacles.append(Obstacle(Hindrance.OTHER_USERS, found.unreadable))
        elif found.unreadable:  # root without the capability, as in a container
            obstacles.append(Obstacle(Hindrance.NOT_TRACED, found.unreadable))
        if found.unread:
            obstacles.append(Obstacle(Hindrance.NOT_READ, found.unread))
        if os.geteuid() and not (self._proc / "1" / "stat").exists():
            obstacles.append(Obstacle(Hindrance.HIDDEN))
        return obstacles

    def _refused(self, stack: RankStack) -> bool:
        """Whether the kernel refuses to show a process, of which py-spy has several words."""
        try:
            os.readlink(self._proc / str(stack.pid) / "exe")
        except PermissionError:
            return True
        except OSError:
            return False
        return any(part in stack.error.lower() for part in NO_PERMISSION)


def _launcher(rank: Rank, stack: RankStack) -> str:
    """What started it; torch's own way to start ranks is a function of its stack."""
    spawned = rank.launcher == find.MULTIPROCESSING and any(each.file.endswith(SPAWN_FILE) for each in stack.frames)
    return SPAWN if spawned else rank.launcher


def _own(each: _Watched, dumped: tuple[Collective, ...]) -> RankStack:
    """A rank's stack under its own number, with what its flight recorder has dumped."""
    assert each.stack is not None
    return replace(each.stack, rank=each.rank.rank, collectives=dumped)


def _collectives(each: _Watched) -> tuple[Collective, ...]:
    """What the flight recorder has dumped, else what torch's control plane tells of it.

    The control plane aborts a process whose interpreter ends meanwhile: only who stands in a collective is asked.
    """
    rank = each.rank
    path = Path(rank.control_plane)
    found = flight_dumps.of_rank(rank.dumps, rank.home, rank.rank, rank.user, rank.age)
    if found or not path.is_absolute() or not _stands(each):
        return found
    try:
        return collectives.of_rank(path, time.monotonic() + CONTROL_PLANE_SECONDS, rank.user)
    except (OSError, ValueError):
        return ()


def _stands(each: _Watched) -> bool:
    """Whether it has been at the same lines of a collective."""
    stack = each.stack
    if stack is None or stack.usage is None:
        return False
    return waits_for_peers(stack.frames) and (stack.usage.same_stack or 0.0) >= STANDS


def _arguments(tool: str, pid: int, proc: Path) -> Called | None:
    """What the call in which a rank stands was given; None: it is none of torch's, or it cannot be read.

    torch calls each collective through one wrapper (``c10d_logger``), which has the arguments as they were given.
    """
    found = _locals(tool, pid)
    frames = iter(found)
    inside = next((f for f in frames if str(f["name"]).rpartition(".")[2] in (*COLLECTIVES, *MESSAGES)), None)
    wrapper = next(frames, None)
    if inside is None or wrapper is None or not str(wrapper["filename"]).endswith(WRAPPER_FILE):
        return None
    given, own = _variables(wrapper), _variables(inside)
    if not {"args", "kwargs"} <= given.keys() or any(text.endswith(("...)", "...}")) for text in given.values()):
        return None  # cut short
    of_all = "ProcessGroup" not in given["args"] and ('"group"' not in given["kwargs"] or NO_GROUP in given["kwargs"])
    peer = next((own[name] for name in ("src", "dst") if own.get(name, "").isdigit()), "")
    known = Called(of_all, peer=int(peer) if peer and len(peer) < MOST_DIGITS else -1)
    group = GROUP.search(own.get("group", "") if of_all else given["args"] + given["kwargs"])
    if group is None:
        return known
    of_script = (_variables(frame) for frame in frames if not package_of(str(frame["filename"])))
    names = (name for each in of_script for name, text in each.items() if text == group[0])
    place, size = memory.group(pid, int(group[1], 16), proc)
    return replace(known, group="" if of_all else one_line(next(names, ""), MAX_VARIABLE), place=place, size=size)


def _variables(frame: Mapping[str, Any]) -> dict[str, str]:
    """The local variables of a frame, as py-spy shows them."""
    return {str(each.get("name")): str(each.get("repr", "")) for each in frame.get("locals") or ()}


def _exit(each: _Watched, now: float, message: str) -> SeenExit:
    rank = each.rank
    age = round(now - (each.ended or now), 3)
    return SeenExit(rank.job, rank.rank, rank.pid, rank.attempt, age, each.code, message, rank.user)


def _missing(seen: Sequence[SeenRank]) -> list[SeenExit]:
    """Ranks of this node that have no process, by the local ranks of the others."""
    of_job: dict[tuple[int, str, int], list[SeenRank]] = {}
    for each in seen:
        if each.launcher in COUNT_THEIR_RANKS and 0 <= each.local_rank < each.local_world_size <= MAX_LOCAL_RANKS:
            of_job.setdefault((each.user, each.job, each.attempt), []).append(each)
    found, room = list[SeenExit](), dict[int, int]()
    for (user, job, attempt), ranks in of_job.items():
        room[user] = room.get(user, MAX_LOCAL_RANKS) - ranks[0].local_world_size
        if room[user] < 0:
            continue
        first = ranks[0].rank - ranks[0].local_rank
        there = {each.local_rank for each in ranks if each.rank - each.local_rank == first}
        absent = set(range(ranks[0].local_world_size)) - there if len(there) == len(ranks) else set()
        if min(each.age for each in ranks) > STARTING_SECONDS:
            found += [SeenExit(job, first + local, 0, attempt, user=user) for local in sorted(absent)]
    return found


STARTING_SECONDS: Final = 5.0
"""Seconds within which a launcher has started all its ranks."""


def _locals(tool: str, pid: int) -> _Frames:
    """The frames of a process's main thread with their local variables; empty: they cannot be read."""
    try:
        threads = decoded(run_py_spy(tool, pid, LOCALS_SECONDS, "--nonblocking", "--locals", output=MAX_LOCALS))
        main = [each["frames"] for each in threads if each.get("os_thread_id") == pid]
        return [dict(frame) for frame in main[0]] if main else []
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return []


def _numbered(ranks: Sequence[Rank], frames: Mapping[int, _Frames]) -> dict[int, Rank | None]:
    """Ranks that nothing else numbers, by what their functions were given; None: it is a loader worker.

    The scripts' own variables count if all processes of a parent have them, and each another number; else the number
    that ``torch.multiprocessing.spawn`` has given.
    """
    found, siblings = dict[int, Rank | None](), dict[int, list[Rank]]()
    for each in ranks:
        if any(f["name"] == WORKER_LOOP[0] and WORKER_LOOP[1] in f["filename"] for f in frames.get(each.pid, ())):
            found[each.pid] = None
        elif frames.get(each.pid):
            siblings.setdefault(each.parent, []).append(each)
    for parent, several in siblings.items():
        size = _variable(frames.get(parent, ()), ("nprocs",), SPAWN_FILE) or several[0].world_size
        stated = {each.pid: _variable(frames[each.pid], ("i",), SPAWN_FILE) for each in several}
        own = {each.pid: _variable(frames[each.pid], RANK_NAMES) for each in several}
        sizes = {_variable(frames[each.pid], SIZE_NAMES) for each in several}
        world = max(size, next(iter(sizes)) or 0) if len(sizes) == 1 else size
        local = {pid: number for pid, number in stated.items() if number is not None}
        numbers = {pid: number for pid, number in own.items() if number is not None and number < world}
        if len(set(numbers.values())) < len(several):
            numbers, world = local, size
        for each in several:
            if (number := numbers.get(each.pid)) is not None and len(set(numbers.values())) == len(numbers):
                place = local.get(each.pid, -1)
                known = replace(each, rank=number, local_rank=place, world_size=world, local_world_size=size)
                found[each.pid] = replace(known, guessed=False)
    return found


def _variable(frames: _Frames, names: Sequence[str], file: str = "") -> int | None:
    """The number that the outermost function of a file has in one of these variables; empty: of the script's files."""
    for frame in reversed(frames):
        name = str(frame["filename"])
        if not (name.endswith(file) if file else not package_of(name)):
            continue
        own = _variables(frame)
        for each in names:
            if own.get(each, "").isdigit() and len(own[each]) < MOST_DIGITS:
                return int(own[each])
    return None


def _tail(file: BinaryIO, size: int) -> list[str]:
    file.seek(max(0, size - TAIL))
    text = file.read(TAIL).decode(errors="replace")
    lines = text.splitlines()[1 if size > TAIL else 0 :]
    return [line for line in lines if line.strip()][-LOG_LINES:]
