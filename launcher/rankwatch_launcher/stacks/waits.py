"""What a rank that does not move waits for: read from ``/proc``, and followed until something that may end by itself.

The search begins at the main thread. What a thread waits for is known from its system call and that call's arguments
(``/proc/PID/task/TID/syscall``), from its state, and from the descriptors involved. A thread that waits for another
one of its process is followed to all threads that could wake it, one that waits for a child or for a pipe of one to the
threads of the child. A wait for something outside ends the search: it may end by itself. A search that ends without any
shows that nothing will wake the rank.

Threads that only libraries own (collective libraries, Rankwatch, loggers) wake nobody. Which Python thread is whose is
known from its stack; of native threads without one only those count that wait for something outside of the process. In
a rank that waits within native code of a package others may count, too: then the answer is ``unknown``.

Reads only, a few files of one process; it needs the permission that py-spy needs. Without it, on another architecture
and in a sandbox that lacks these files, the answer is ``unknown``.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import struct
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from rankwatch.contract.enums import WaitKind
from rankwatch.contract.messages import Frame, Wait
from rankwatch.contract.packages import PYTHON, package_of
from rankwatch.contract.peers import waits_for_peers
from rankwatch_launcher import procfs
from rankwatch_launcher.stacks.sockets import Connection, connections, unix_peer

LIBRARY_THREADS: Final = ("NCCL", "nccl", "pt_", "gloo", "cuda", "rankwatch", "iou-")
"""Beginnings of the names of native threads that serve a library and wake nobody."""
LIBRARIES: Final = frozenset(
    {
        "ddtrace", "debugpy", "mlflow", "opentelemetry", "prometheus_client", "rankwatch", "sentry_sdk", "tensorboard",
        "tqdm", "wandb",
    }
)  # fmt: skip
"""Packages whose threads wake nobody but who waits within them."""
ELASTIC: Final = "/torch/distributed/elastic/"
DEBUGGERS: Final = frozenset({PYTHON, "IPython", "ipdb", "pudb"})
PROMPTS: Final = frozenset({"interaction", "prompt_for_code"})
"""Functions of theirs within which they wait for a command; the others of pdb are on the stack of all that it runs."""
SUSPENDED: Final = "do_wait_suspend"
"""In pydevd, which IDEs put anywhere; its threads run beside each script that was started for debugging."""
SERVERS: Final = "/multiprocessing/resource_sharer.py"
"""Python's own, which accept connections and wake nobody."""
POLLING_LOOPS: Final = ("torch/utils/data/",)
"""Code that waits with a time limit in a loop, so that the limit ends no wait."""
TORCH_DISTRIBUTED: Final = "torch/distributed/"
MAX_PROCESSES: Final = 64
MAX_THREADS: Final = 1024
"""Looked at in one search. One that ends at a limit shows nothing."""
MAX_OTHERS: Final = 2048
"""Processes of this machine that are no relatives; with more nothing is concluded from what they do not hold."""
MAX_FILES: Final = 4096
MAX_DESCRIPTORS: Final = 64
"""Of one wait."""
MAX_TARGET: Final = 120
MAX_COMMAND: Final = 100


class PythonThread(NamedTuple):
    """A thread that runs Python: its name and its stack, innermost frame first."""

    name: str
    frames: tuple[Frame, ...]

    @property
    def libraries(self) -> frozenset[str]:
        """Those of :data:`LIBRARIES` to which it belongs: a logger's, an exporter's, Rankwatch's.

        A library may call what has its own work to do: tracers wrap the ``run()`` of each thread of a process. That of
        a script, or of another package, which runs within one of them, is its own.
        """
        found = set[str]()
        for frame in reversed(self.frames):
            package = ELASTIC if ELASTIC in frame.file else package_of(frame.file)
            if package in LIBRARIES or package == ELASTIC:
                found.add(package)
            elif frame.function.rpartition(".")[2] == "run":
                found.clear()
            if not package or (package != PYTHON and not found):
                return frozenset()
        return frozenset(found)


class Found(NamedTuple):
    """What a rank waits for."""

    wait: Wait
    socket: str = ""
    """The inode of the connection over which an answer is awaited; empty: none is."""


class _Call(NamedTuple):
    """A system call under way."""

    name: str
    arguments: tuple[int, ...]


_X86: Final = {
    35: "nanosleep", 230: "clock_nanosleep", 202: "futex", 45: "recv", 47: "recv", 299: "recv", 0: "read", 19: "read",
    17: "read", 1: "write", 20: "write", 18: "write", 44: "send", 46: "send", 7: "poll", 271: "ppoll", 23: "select",
    270: "select", 232: "epoll", 281: "epoll", 441: "epoll2", 61: "wait4", 247: "waitid", 73: "flock", 72: "fcntl",
    257: "openat", 42: "connect", 43: "accept", 288: "accept", 74: "fsync", 75: "fsync", 16: "ioctl", 128: "sigwait",
    220: "semop", 65: "semop", 34: "pause", 130: "pause", 208: "aio", 333: "aio", 426: "io_uring",
}  # fmt: skip
_ARM: Final = {
    101: "nanosleep", 115: "clock_nanosleep", 98: "futex", 207: "recv", 212: "recv", 243: "recv", 63: "read",
    65: "read", 67: "read", 64: "write", 66: "write", 68: "write", 206: "send", 211: "send", 73: "ppoll", 72: "select",
    22: "epoll", 441: "epoll2", 260: "wait4", 95: "waitid", 32: "flock", 25: "fcntl", 56: "openat", 203: "connect",
    202: "accept", 242: "accept", 82: "fsync", 83: "fsync", 29: "ioctl", 137: "sigwait", 192: "semop", 193: "semop",
    133: "pause", 4: "aio", 292: "aio", 426: "io_uring",
}  # fmt: skip
SYSTEM_CALLS: Final[Mapping[str, Mapping[int, str]]] = {"x86_64": _X86, "aarch64": _ARM, "arm64": _ARM}
"""Numbers of the system calls in which a thread can wait, by machine; from the kernel's tables."""
_FUTEX_WAIT, _FUTEX_WAIT_BITSET, _FUTEX_PRIVATE, _FUTEX_REALTIME, _FUTEX_COMMAND = 0, 9, 128, 256, 127
_LOCK_COMMANDS: Final = (7, 38)
"""F_SETLKW and F_OFD_SETLKW of fcntl."""
_EVENTFD: Final = "anon_inode:[eventfd]"
_SIGNED: Final = struct.Struct("<i")


def wait_of(
    pid: int,
    threads: Mapping[int, PythonThread],
    parents: Mapping[int, int],
    of_job: Collection[int] = (),
    *,
    device: bool = True,
    proc: Path = procfs.PROC,
    machine: str = platform.machine(),
) -> Found:
    """What a rank waits for.

    Args:
        threads: its Python threads by their id in the kernel; empty: not known.
        parents: the parent of each process of this machine.
        of_job: the processes of this job here, whose ends of connections are peers.
        device: whether the rank uses a GPU, or may.
    """
    main = threads.get(pid)
    if any(map(_debugged, threads.values())):
        return Found(Wait(WaitKind.DEBUGGER))
    if main is not None and waits_for_peers(main.frames, device=device):
        return Found(Wait(WaitKind.PEERS))
    calls = SYSTEM_CALLS.get(machine)
    if calls is None:
        return Found(Wait(WaitKind.UNKNOWN))
    entered = "" if main is None else package_of(_innermost(main.frames))
    if entered == "rankwatch":
        entered = ""  # it waits for no thread of its own, and an injected hang is its code
    search = _Search(proc, calls, pid, threads, parents, frozenset(of_job) - {pid}, entered, device)
    try:
        found = search.thread(pid, pid, "") or search.last
        alarm = procfs.caught_in(procfs.text(proc / str(pid) / "status"), signal.SIGALRM)  # its handler may raise
        found = found or Wait(WaitKind.UNKNOWN if alarm or search.may_be_woken(main) else WaitKind.THREAD)
    except (_TooMuchError, RecursionError):  # the latter: a long line of children, each of which waits for the next
        return Found(Wait(WaitKind.UNKNOWN))
    return Found(found.bounded(), search.socket)


class _TooMuchError(Exception):
    """More would have to be looked at than a search may."""


@dataclass
class _Search:
    """Follows waits from one thread to those that could wake it; each is looked at once."""

    proc: Path
    calls: Mapping[int, str]
    rank: int
    threads: Mapping[int, PythonThread]
    parents: Mapping[int, int]
    of_job: frozenset[int]
    _entered: str
    """The package in whose code the main thread waits, perhaps for a thread of its own."""
    _device: bool
    """The rank uses a GPU, or may."""
    seen: set[tuple[int, int]] = field(default_factory=set)
    _searched: set[int] = field(default_factory=set)
    """Processes of which all threads are looked at already, or will be."""
    last: Wait | None = None
    """What is found only if nothing else is: a child that is stopped, other ranks."""
    socket: str = ""
    left_aside: bool = False
    """A native thread of the rank only sleeps, or it is not known what it waits for."""
    _family: list[int] | None = None
    _tables: dict[int, list[Connection]] = field(default_factory=dict)
    """By process: the connections of its network namespace."""
    _files: dict[int, dict[str, bool]] = field(default_factory=dict)
    """By process: the descriptors' targets, and whether one is open for writing."""

    # Threads ----------------------------------------------------------------------------------------------------------

    def thread(self, pid: int, tid: int, through: str) -> Wait | None:
        """What this thread waits for that may end by itself; None: nothing does."""
        if (pid, tid) in self.seen:
            return None
        if len(self.seen) >= MAX_THREADS:
            raise _TooMuchError
        self.seen.add((pid, tid))
        folder = self.proc / str(pid) / "task" / str(tid)
        state = procfs.stat_fields(procfs.text(folder / "stat"))[:1]
        if not state or state[0] in "ZX":
            return None
        if state[0] == "t":
            return Wait(WaitKind.DEBUGGER, "", None, through)
        if state[0] == "T":
            self.last = self.last or Wait(WaitKind.STOPPED, self._command(pid), None, through)
            return None
        call = self._call(folder)
        if call is None:
            running = state[0] == "R" or procfs.text(folder / "syscall").startswith("running")
            storage = state[0] == "D"
            kind = WaitKind.STORAGE if storage else WaitKind.RUNNING if running else WaitKind.UNKNOWN
            return Wait(kind, "", None, through)
        found = self._of_call(pid, tid, call, through)
        return Wait(WaitKind.STORAGE, found.target if found else "", None, through) if state[0] == "D" else found

    def _of_call(self, pid: int, tid: int, call: _Call, through: str) -> Wait | None:
        name, arguments = call
        match name:
            case "pause":
                return self._signal(pid, tid, through)
            case "sigwait" if not arguments[2]:
                return self._signal(pid, tid, through)
            case "nanosleep" | "clock_nanosleep" | "sigwait":
                return Wait(WaitKind.TIMED, "", self._sleeps(pid, call), through)
            case "futex":
                return self._futex(pid, tid, arguments, through)
            case "wait4" | "waitid":
                return self._child(pid, call, through)
            case "flock" | "fcntl":
                if name == "fcntl" and arguments[1] not in _LOCK_COMMANDS:
                    return Wait(WaitKind.UNKNOWN, "", None, through)
                return Wait(WaitKind.FILE_LOCK, self._lock(pid, arguments[0]), None, through)
            case "openat":
                path = self._string(pid, arguments[1])
                fifo = procfs.text(self.proc / str(pid) / "task" / str(tid) / "wchan").startswith("wait_for_partner")
                return Wait(WaitKind.PIPE if fifo else WaitKind.STORAGE, path, None, through)
            case "fsync":
                return Wait(WaitKind.STORAGE, self._target(pid, arguments[0])[-MAX_TARGET:], None, through)
            case "aio":
                return Wait(WaitKind.STORAGE, "", None, through)
            case "io_uring":
                return Wait(WaitKind.EVENT, "io_uring", None, through)
            case "semop":
                return self._relatives(pid, through) or Wait(WaitKind.EVENT, "a semaphore", None, through)
            case "poll" | "ppoll" | "select" | "epoll" | "epoll2":
                return self._several(pid, tid, call, through)
            case _:
                return self._descriptor(pid, tid, arguments[0], writes=name in ("write", "send"), through=through)

    def _futex(self, pid: int, tid: int, arguments: Sequence[int], through: str) -> Wait | None:
        command = arguments[1] & _FUTEX_COMMAND
        if command in (_FUTEX_WAIT, _FUTEX_WAIT_BITSET) and arguments[3] and not self._polls_in_a_loop(tid):
            realtime = bool(arguments[1] & _FUTEX_REALTIME)
            left = self._left(pid, arguments[3], realtime=realtime) if command == _FUTEX_WAIT_BITSET else None
            return Wait(WaitKind.TIMED, "", left, through)
        if not arguments[1] & _FUTEX_PRIVATE:
            found = self.wakers(pid, through) or self._relatives(pid, through)
            return found or self._shared(pid, arguments[0], through)
        return self.wakers(pid, through)

    def _signal(self, pid: int, tid: int, through: str) -> Wait | None:
        """Anybody may send one; a thread beside the main one that handles signals wakes nobody."""
        return Wait(WaitKind.EVENT, "a signal", None, through) if pid != self.rank or tid == self.rank else None

    def _whoever_comes(self, pid: int, tid: int, wait: Wait) -> Wait | None:
        """A wait for whoever connects or sends; of a native thread of the rank it is not known for whom that is."""
        if pid != self.rank or tid == self.rank:
            return wait
        known = self.threads.get(tid)
        if known is None:
            return Wait(WaitKind.UNKNOWN, "", None, wait.through) if self.threads else None
        return None if any(SERVERS in frame.file for frame in known.frames) else wait

    def _shared(self, pid: int, address: int, through: str) -> Wait | None:
        """A lock or semaphore in shared memory, for which the relatives wait too, as far as they know it: that of
        another process here; None: no other has mapped it.
        """
        mapped = _mapping(procfs.text(self.proc / str(pid) / "maps"), address)
        if not mapped:
            return None
        semaphore = Wait(WaitKind.EVENT, "a semaphore", None, through)
        return self._held_elsewhere(
            lambda other: mapped in procfs.text(self.proc / str(other) / "maps"), semaphore, self.of_job
        )

    def wakers(self, pid: int, through: str) -> Wait | None:
        """The first wait of another thread of this process that may end by itself."""
        if pid in self._searched:
            return None  # the search that led here goes on with them, in a loop, since they may be thousands
        self._searched.add(pid)
        natives = list[tuple[int, str]]()
        for task in sorted(procfs.tasks(pid, self.proc), key=lambda each: int(each.name)):
            tid = int(task.name)
            known = self.threads.get(tid) if pid == self.rank else None
            name = procfs.text(task / "comm").strip()
            if known is not None:
                if known.libraries - {self._entered}:
                    continue
                if waits_for_peers(known.frames, device=self._device):
                    self.last = self.last or Wait(WaitKind.PEERS, "", None, known.name)
                    continue
                if (found := self.thread(pid, tid, through or known.name)) is not None:
                    return found
            elif not name.startswith(LIBRARY_THREADS):
                natives.append((tid, name))
        for tid, name in natives:
            found = self.thread(pid, tid, through or name)
            # Which thread is whose is not known here: in the rank itself one that only sleeps is taken for a library's.
            quiet = (WaitKind.TIMED, WaitKind.UNKNOWN)
            if found is not None and not (pid == self.rank and self.threads and found.kind in quiet):
                return found
            self.left_aside |= found is not None
        return None

    def may_be_woken(self, main: PythonThread | None) -> bool:
        """Whether a thread that was left aside may wake the main one: that waits in native code of a package or of
        the script, or otherwise than a lock of Python does.
        """
        if not self.left_aside or main is None or not main.frames:
            return False
        call = self._call(self.proc / str(self.rank) / "task" / str(self.rank))
        native = package_of(main.frames[0].file) not in (PYTHON, "torch", "rankwatch")
        return native or (call is not None and call.name != "futex")

    def _polls_in_a_loop(self, tid: int) -> bool:
        known = self.threads.get(tid)
        return known is not None and any(part in frame.file for frame in known.frames for part in POLLING_LOOPS)

    # Processes --------------------------------------------------------------------------------------------------------

    def _child(self, pid: int, call: _Call, through: str) -> Wait | None:
        asked = _signed(call.arguments[0 if call.name == "wait4" else 1])
        children = [child for child, parent in self.parents.items() if parent == pid]
        chosen = [asked] if asked > 0 else children
        if not set(chosen) <= set(children) or any(map(self._has_ended, chosen)):
            # The wait is over, and this thread has had no CPU since; or the child is younger than the known ones.
            return Wait(WaitKind.RUNNING, "", None, through)
        return self._processes(chosen, through)

    def _has_ended(self, pid: int) -> bool:
        state = procfs.stat_fields(procfs.text(self.proc / str(pid) / "task" / str(pid) / "stat"))[:1]
        return not state or state[0] in "ZX"

    def _processes(self, pids: Iterable[int], through: str) -> Wait | None:
        """The first of these processes that may go on by itself."""
        for child in pids:
            command = self._command(child)
            tids = sorted(int(task.name) for task in procfs.tasks(child, self.proc))
            for tid in tids:
                if (found := self.thread(child, tid, through)) is not None:
                    return Wait(WaitKind.CHILD, command, found.seconds, through)
        return None

    def _relatives(self, pid: int, through: str) -> Wait | None:
        """The rank and its children, for waits that any of them may end."""
        others = [each for each in self.family() if each != pid]
        return self._processes([each for each in others if each != self.rank], through) or (
            self.wakers(self.rank, through) if self.rank in others else None
        )

    def family(self) -> list[int]:
        """The rank and the processes below it."""
        if self._family is None:
            found, children = [self.rank], dict[int, list[int]]()
            for child, parent in self.parents.items():
                children.setdefault(parent, []).append(child)
            for each in found:
                found.extend(children.get(each, ()))
                if len(found) > MAX_PROCESSES:
                    raise _TooMuchError
            self._family = found
        return self._family

    def _command(self, pid: int) -> str:
        words = procfs.text(self.proc / str(pid) / "cmdline", MAX_COMMAND).replace("\0", " ").strip()
        words = words or procfs.text(self.proc / str(pid) / "comm").strip()
        return f"{words} (pid {pid})" if words else f"pid {pid}"

    # Descriptors ------------------------------------------------------------------------------------------------------

    def _several(self, pid: int, tid: int, call: _Call, through: str) -> Wait | None:
        """A wait for any of several descriptors: what may end by itself among them, else its time limit."""
        descriptors, forever = self._waited_for(pid, call)
        found: Wait | None = None
        for number, writes in descriptors[:MAX_DESCRIPTORS]:
            if found is None or found.kind is WaitKind.UNKNOWN:
                found = self._descriptor(pid, tid, number, writes=writes, through=through) or found
        if found is not None:
            return found
        if len(descriptors) > MAX_DESCRIPTORS:
            return Wait(WaitKind.UNKNOWN, "", None, through)
        if forever or (descriptors and self._polls_in_a_loop(tid)):
            return self.wakers(pid, through)
        if self.last is not None and descriptors:
            return None  # a stopped child, or other ranks: the limit only begins the same wait anew
        return Wait(WaitKind.TIMED, "", None, through)

    def _descriptor(self, pid: int, tid: int, number: int, *, writes: bool, through: str) -> Wait | None:
        target = self._target(pid, number)
        if target.startswith("pipe:"):
            pipe = Wait(WaitKind.PIPE, "", None, through)
            # The launcher reads what ranks print: it is the other end of that, and no peer.
            return self._other_end(pid, f"{target} {'r' if writes else 'w'}", pipe, not_ranks=[os.getpid()])
        if target.startswith("socket:"):
            return self._socket(pid, tid, target[8:-1], through)
        if target.startswith(("/dev/pts/", "/dev/tty", "/dev/console")):
            kind = WaitKind.TERMINAL if tid == self.rank else WaitKind.EVENT  # a thread may read keys beside the work
            return Wait(kind, target[-MAX_TARGET:], None, through)
        if target.startswith("/dev/"):
            return Wait(WaitKind.DEVICE, target[-MAX_TARGET:], None, through)
        if target.startswith("anon_inode:"):
            return self._anonymous(pid, tid, number, target, through)
        if target.startswith("/"):
            fifo = (self.proc / str(pid) / "fd" / str(number)).is_fifo()
            return Wait(WaitKind.PIPE if fifo else WaitKind.STORAGE, target[-MAX_TARGET:], None, through)
        return Wait(WaitKind.UNKNOWN, "", None, through)

    def _anonymous(self, pid: int, tid: int, number: int, target: str, through: str) -> Wait | None:
        """An object of the kernel without a path."""
        info = procfs.text(self.proc / str(pid) / "fdinfo" / str(number))
        match target.removeprefix("anon_inode:").strip("[]"):
            case "timerfd":
                return Wait(WaitKind.TIMED, "", None, through)
            case "signalfd":
                return self._signal(pid, tid, through)
            case "pidfd":
                return self._processes([int(_named(info, "Pid:") or 0)], through)
            case "eventfd" if pid != self.rank or tid == self.rank or tid in self.threads:
                return self._other_end(pid, f"{_eventfd(info)} w", Wait(WaitKind.EVENT, "an eventfd", None, through))
            case "eventfd":
                return self.wakers(pid, through)  # with which a library wakes its own threads
            case "eventpoll":
                return next(
                    filter(
                        None,
                        (
                            self._descriptor(pid, tid, each, writes=False, through=through)
                            for each in _polled(info)[:MAX_DESCRIPTORS]
                        ),
                    ),
                    None,
                )
            case "inotify" | "fanotify":
                return Wait(WaitKind.EVENT, "a change of a file", None, through)
            case name:
                return Wait(WaitKind.EVENT, name[:MAX_TARGET], None, through)

    def _other_end(self, pid: int, end: str, outside: Wait, not_ranks: Collection[int] = ()) -> Wait | None:
        """What those wait for that hold this end of what a thread of ``pid`` waits for; ``outside`` if one of them may
        be outside of the job.
        """
        peers = self.of_job.difference(not_ranks)
        if any(end in self._open_files(each) for each in peers):
            self.last = self.last or Wait(WaitKind.PEERS, "", None, outside.through)
            return None
        holders = [each for each in self.family() if end in self._open_files(each)]
        if not holders:
            return outside
        found = self._processes([each for each in holders if each not in (pid, self.rank)], outside.through)
        for mine in {pid, self.rank}.intersection(holders):
            found = found or self.wakers(mine, outside.through)
        return found or self._held_elsewhere(lambda other: end in self._open_files(other), outside, peers)

    def _held_elsewhere(self, holds: Callable[[int], bool], outside: Wait, peers: Collection[int]) -> Wait | None:
        """``outside`` with the command of the first process that holds something and is no relative."""
        others = self.parents.keys() - set(self.family())
        if len(others) > MAX_OTHERS:
            raise _TooMuchError
        for other in sorted(others, key=lambda each: (each not in peers, each)):
            if holds(other):
                if other in peers:
                    self.last = self.last or Wait(WaitKind.PEERS, "", None, outside.through)
                    return None
                named = f"{outside.target}, " if outside.target else ""
                return replace(outside, target=f"{named}held by {self._command(other)}")
        return None

    def _open_files(self, pid: int) -> dict[str, bool]:
        if pid not in self._files:
            folder, found = self.proc / str(pid) / "fd", dict[str, bool]()
            with contextlib.suppress(OSError):
                for name in os.listdir(folder)[:MAX_FILES]:
                    with contextlib.suppress(OSError):  # closed meanwhile
                        mode = (folder / name).lstat().st_mode
                        target = os.readlink(folder / name)
                        if target == _EVENTFD:
                            target = _eventfd(procfs.text(folder.with_name("fdinfo") / name))
                        for letter, bit in (("r", 0o400), ("w", 0o200)):
                            if mode & bit:
                                found[f"{target} {letter}"] = True
            self._files[pid] = found
        return self._files[pid]

    def _socket(self, pid: int, tid: int, inode: str, through: str) -> Wait | None:
        if pid not in self._tables:
            self._tables[pid] = list(connections(self.proc / str(pid) / "net"))
        table = self._tables[pid]
        mine = next((each for each in table if each.inode == inode), None)
        if mine is None:
            return self._local_socket(pid, tid, inode, through)
        if mine.accepts:
            return self._whoever_comes(pid, tid, Wait(WaitKind.SOCKET, f"a connection to {mine.local}", None, through))
        known = self.threads.get(tid)
        if (
            known is not None
            and TORCH_DISTRIBUTED in (file := _innermost(known.frames))
            and package_of(file) == "torch"
        ):
            self.last = self.last or Wait(WaitKind.PEERS, "", None, through)
            return None
        other = next((each for each in table if (each.local, each.remote) == (mine.remote, mine.local)), None)
        answer = Wait(WaitKind.SOCKET, mine.remote, None, through)
        found = answer if other is None else self._other_end(pid, f"socket:[{other.inode}] r", answer)
        if found is answer:
            self.socket = inode
        return found

    def _local_socket(self, pid: int, tid: int, inode: str, through: str) -> Wait | None:
        """One that is no TCP or UDP connection of this namespace: its own, a child's, that of a service."""
        answer = Wait(WaitKind.SOCKET, "a local socket", None, through)
        peer = unix_peer(int(inode)) if self.proc == procfs.PROC else None
        if peer:
            return self._other_end(pid, f"socket:[{peer}] r", answer)
        if peer == 0:
            return self._whoever_comes(pid, tid, answer)
        return self._relatives(pid, through) or (answer if self._blocks_in_one(pid, tid) else self.wakers(pid, through))

    def _blocks_in_one(self, pid: int, tid: int) -> bool:
        call = self._call(self.proc / str(pid) / "task" / str(tid))
        return call is not None and call.name in ("recv", "read", "send", "write", "connect")

    def _waited_for(self, pid: int, call: _Call) -> tuple[list[tuple[int, bool]], bool]:
        """Descriptors with whether they are to be written, and whether the wait has no time limit."""
        arguments = call.arguments
        if call.name in ("epoll", "epoll2"):
            numbers = _polled(procfs.text(self.proc / str(pid) / "fdinfo" / str(arguments[0])))
            forever = _signed(arguments[3]) < 0 if call.name == "epoll" else not arguments[3]
            return [(number, False) for number in numbers], forever
        if call.name == "select":
            found = list[tuple[int, bool]]()
            for argument, writes in ((arguments[1], False), (arguments[2], True)):
                bits = int.from_bytes(self._memory(pid, argument, (min(arguments[0], 1024) + 7) // 8), "little")
                found += [(number, writes) for number in range(bits.bit_length()) if bits >> number & 1]
            return found, not arguments[4]
        data = self._memory(pid, arguments[0], 8 * min(arguments[1], MAX_DESCRIPTORS + 1))
        polled = [(number, bool(events & 4)) for number, events, _ in struct.iter_unpack("<ihh", data)]
        return polled, not arguments[2] if call.name == "ppoll" else _signed(arguments[2]) < 0

    # /proc ------------------------------------------------------------------------------------------------------------

    def _call(self, folder: Path) -> _Call | None:
        words = procfs.text(folder / "syscall").split()
        if len(words) < 7 or not words[0].isdigit():
            return None
        name = self.calls.get(int(words[0]))
        return None if name is None else _Call(name, tuple(int(word, 16) for word in words[1:7]))

    def _target(self, pid: int, number: int) -> str:
        try:
            return os.readlink(self.proc / str(pid) / "fd" / str(number))
        except OSError:
            return ""

    def _lock(self, pid: int, number: int) -> str:
        """The path of a locked file, and who holds it."""
        path = self._target(pid, number)[-MAX_TARGET:]
        try:
            inode = os.stat(self.proc / str(pid) / "fd" / str(number)).st_ino
        except OSError:
            return path
        for line in procfs.text(self.proc / "locks").splitlines():
            words = line.split()
            if len(words) > 5 and words[1] != "->" and words[5].rpartition(":")[2] == str(inode):
                return f"{path}, held by {self._command(int(words[4]))}" if int(words[4]) > 0 else path
        return path

    def _sleeps(self, pid: int, call: _Call) -> float | None:
        """Seconds until a sleep ends; known where its end was given."""
        if call.name != "clock_nanosleep" or not call.arguments[1] & 1:
            return None
        return self._left(pid, call.arguments[2], realtime=call.arguments[0] == 0)

    def _left(self, pid: int, address: int, *, realtime: bool) -> float | None:
        data = self._memory(pid, address, 16)
        if len(data) < 16:
            return None
        seconds, nanoseconds = struct.unpack("<qq", data)
        now = time.time() if realtime else time.monotonic()
        left = seconds + nanoseconds / 1e9 - now
        return round(left, 1) if 0 <= left < 1e9 else None

    def _string(self, pid: int, address: int) -> str:
        data = self._memory(pid, address, 256).partition(b"\0")[0]
        return data.decode(errors="replace")[-MAX_TARGET:]

    def _memory(self, pid: int, address: int, size: int) -> bytes:
        if not address or size <= 0:
            return b""
        try:
            with (self.proc / str(pid) / "mem").open("rb", buffering=0) as file:
                return os.pread(file.fileno(), size, address)
        except (OSError, OverflowError, ValueError):
            return b""


def _signed(argument: int) -> int:
    """An argument of a system call as the 32-bit integer that it is."""
    value: int = _SIGNED.unpack(struct.pack("<I", argument & 0xFFFFFFFF))[0]
    return value


def _named(info: str, name: str) -> str:
    """What a line of ``/proc/PID/fdinfo`` says; empty: there is none."""
    return next((line.removeprefix(name).strip() for line in info.splitlines() if line.startswith(name)), "")


def _eventfd(info: str) -> str:
    """Its identity, which all have in common before Linux 5.2."""
    return f"eventfd:{_named(info, 'eventfd-id:')}"


def _polled(info: str) -> list[int]:
    """The descriptors that an epoll waits for."""
    return [int(line.split()[1]) for line in info.splitlines() if line.startswith("tfd:")]


def _mapping(maps: str, address: int) -> str:
    """Device and inode of the file or shared memory at an address, as a line of ``maps`` has them; empty: private."""
    for line in maps.splitlines():
        span, permissions, _, device, inode, *_ = line.split()
        start, end = (int(word, 16) for word in span.split("-"))
        if start <= address < end:
            return f" {device} {inode} " if "s" in permissions and inode != "0" else ""
    return ""


def _debugged(thread: PythonThread) -> bool:
    """Whether it is suspended in a debugger; one that only runs in one is not."""
    return any(
        (function in PROMPTS and package_of(frame.file) in DEBUGGERS)
        or (function.endswith(SUSPENDED) and frame.file.endswith("/pydevd.py"))
        for frame in thread.frames
        for function in [frame.function.rpartition(".")[2]]
    )


def _innermost(frames: Sequence[Frame]) -> str:
    """The file of the innermost function outside of Python's own library."""
    return next((frame.file for frame in frames if package_of(frame.file) != PYTHON), "")
