"""Keeps what each rank prints in a file of its own, and passes it on to where the launcher prints.

torch lets ranks inherit the launcher's streams, or redirects them into files (``--redirects``, ``--tee``). Where it
does the former and no stream is a terminal, a rank writes to a file in memory instead: neither a slow reader nor a full
disk can hold it up or make it fail. A thread copies that to the rank's file and to the launcher's stream, whole lines
at a time, and gives back the memory. Of the file only the end is kept: its beginning is given back to the disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import select
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

from torch.distributed.elastic.multiprocessing import LogsSpecs
from torch.distributed.elastic.multiprocessing.api import LogsDest

from rankwatch.contract.files import temporary_folder
from rankwatch_launcher.folders import locked
from rankwatch_launcher.log import logger
from rankwatch_launcher.node.rank_output import ATTEMPTS, Log, RankOutput

LAUNCHES: Final = 5
"""Of this user on this node whose files stay, the newest."""
PASS_SECONDS: Final = 0.05
"""Between two looks at what ranks have printed."""
PARTIAL_SECONDS: Final = 0.2
"""After which a line without a break is passed on: a progress bar, a prompt."""
STUCK_SECONDS: Final = 5.0
"""How long the end waits for a reader of the launcher's output that takes nothing."""
MOST_BEHIND: Final = 16 << 20
"""Bytes of one rank in memory that are not passed on yet, beyond which they are left out: the launcher's reader is too
slow."""
CHUNK: Final = 1 << 20
_PAGE: Final = 4096
_PUNCH: Final = 0x3  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE


class _Target:
    """A stream of the launcher, written by a thread of its own: a reader that takes nothing holds up that alone."""

    def __init__(self, descriptor: int, taken: threading.Event) -> None:
        """``taken`` is set when it can be given more."""
        self._descriptor, self._taken = descriptor, taken
        self._data = b""
        self._given = threading.Semaphore(0)
        self.idle = True
        threading.Thread(target=self._run, name="rankwatch-output", daemon=True).start()

    def offer(self, data: bytes) -> bool:
        """Write it soon; False: what was given before is not written yet."""
        if not self.idle:
            return False
        self._data, self.idle = data, False
        self._given.release()
        return True

    def _run(self) -> None:
        reads = True
        while True:
            self._given.acquire()
            reads = reads and _write(self._descriptor, self._data)
            self.idle = True
            self._taken.set()


@dataclass(slots=True)
class _Feed:
    """What one rank prints: in memory, in its file, and where it is passed on to."""

    log: Log
    memory: io.FileIO
    file: io.FileIO
    target: _Target | None
    """None: it is kept, and not shown."""
    kept: int = 0
    passed: int = 0
    """Bytes of what is in memory that were written to the file, and to the target."""
    freed: int = 0
    left_out: int = 0
    """Bytes that were not passed on since something was."""
    within_line: bool = False
    """What was passed on last did not end with a line's break."""
    grown: float = 0.0
    """When a line without a break was last seen to grow."""
    seen: int = 0


class KeptLogs(LogsSpecs):
    """torch's places for the output of ranks, with files of ours where there were none."""

    def __init__(self, inner: LogsSpecs, keeper: OutputKeeper) -> None:
        self._inner, self._keeper = inner, keeper

    def __getattr__(self, name: str) -> Any:
        """What torch keeps in its own."""
        return getattr(self.__dict__["_inner"], name)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """The files of an attempt."""
        return self._keeper.place(self._inner.reify(envs), envs)

    @property
    def root_log_dir(self) -> str:
        """torch's folder."""
        return self._inner.root_log_dir


class OutputKeeper:
    """The kept output of this launch. Made before the ranks start; closed after the last has ended."""

    def __init__(self, output: RankOutput, most: int) -> None:
        """``most``: bytes that are kept of each rank; 0: none."""
        self._output, self._most = output, most
        self.folder, self._lock = _folder() if most and (_may_replace(1) or _may_replace(2)) else (None, -1)
        self._attempt, self._places = 0, 0
        self._feeds: list[_Feed] = []
        self._stop, self._wake, self._idle = threading.Event(), threading.Event(), threading.Event()
        self._hurried = self._failed = False
        self._turn = threading.Lock()
        self._targets: dict[int, _Target] = {}
        self._moved = 0.0
        self._thread: threading.Thread | None = None

    def specs(self, inner: LogsSpecs) -> LogsSpecs:
        """What torch is given for its own."""
        return KeptLogs(inner, self)

    def begin(self, attempt: int) -> None:
        """The ranks of an attempt are about to start."""
        self._attempt = attempt

    def place(self, dest: LogsDest, envs: Mapping[int, Mapping[str, str]]) -> LogsDest:
        """Give each rank a file where torch gives it none."""
        self._end_attempt()
        stdouts, stderrs = dict(dest.stdouts), dict(dest.stderrs)
        logs: list[Log] = []
        feeds: list[_Feed] = []
        folder = self._attempt_folder()
        ours = {1: folder is not None and _may_replace(1), 2: folder is not None and _may_replace(2)}
        together = _same_file(1, 2)
        for local, env in envs.items():
            rank, given = int(env.get("RANK", local)), (stdouts.get(local, ""), stderrs.get(local, ""))
            if given in (("", ""), (os.devnull, os.devnull)) and together and ours[1]:
                wanted = [("output", 1, stdouts)]
                stderrs[local] = ""
            else:
                wanted = [("stdout", 1, stdouts), ("stderr", 2, stderrs)]
            for stream, number, paths in wanted:
                path, silent = paths.get(local, ""), paths.get(local, "") == os.devnull
                log = Log(rank, stream, path or os.devnull)
                if (not path or silent) and ours[number] and folder is not None:
                    suffix = "" if stream == "output" else f".{stream}"
                    own = str(folder / f"rank_{rank}{suffix}.log")
                    with contextlib.suppress(OSError):  # too many open files: it is shown, and not kept
                        feeds.append(self._feed(rank, stream, own, None if silent else number))
                        log, paths[local] = feeds[-1].log, own
                logs.append(log)
            if len(wanted) == 1:
                stderrs[local] = stdouts[local]
        self._output.begin(self._attempt, logs)
        self._feeds = feeds
        if feeds and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rankwatch-output", daemon=True)
            self._thread.start()
        return replace(dest, stdouts=stdouts, stderrs=stderrs)

    def stream(self, path: str) -> IO[bytes] | None:
        """What a rank is given in place of its file: a file in memory. None: the file is not ours."""
        memory = next((feed.memory for feed in self._feeds if feed.log.path == path), None)
        return None if memory is None else os.fdopen(os.dup(memory.fileno()), "ab", buffering=0)

    def drain(self, seconds: float = 1.0) -> None:
        """Pass on what the ranks have printed, before this launcher prints itself; ``seconds`` at most."""
        if not self._feeds:
            return
        self._idle.clear()
        self._hurried = True
        self._wake.set()
        self._idle.wait(seconds)

    def close(self) -> None:
        """Pass on the rest, as long as it is taken, and leave the files for a look at them."""
        self._end_attempt()
        self._stop.set()
        self._wake.set()
        if self.folder is not None:
            for each in (*self.folder.glob("attempt_*/*"), *self.folder.glob("attempt_*"), self.folder):
                with contextlib.suppress(OSError):
                    _remove_empty(each)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # The thread -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            hurried = self._hurried
            try:
                with self._turn:
                    for feed in self._feeds:
                        self._copy(feed)
                        self._pass_on(feed, hurried=hurried)
                    done = all(feed.passed >= _size(feed.memory) for feed in self._feeds)
            except Exception as error:  # noqa: BLE001 - the thread's boundary: ranks print into memory in any case
                done = True
                if not self._failed:
                    logger.warning("what ranks print may not be shown: %r", error)
                self._failed = True
            if hurried and done and all(each.idle for each in self._targets.values()):
                self._hurried = False
                self._idle.set()
            self._wake.wait(PASS_SECONDS)

    def _copy(self, feed: _Feed) -> None:
        """To the rank's file, of which only the end stays."""
        size = _size(feed.memory)
        if size < feed.kept:  # a child of the rank has opened /dev/stderr, and so emptied it
            feed.kept = feed.passed = feed.seen = feed.freed = 0
        while feed.kept < size:
            data = os.pread(feed.memory.fileno(), CHUNK, feed.kept)
            feed.kept += len(data)
            with contextlib.suppress(OSError):  # the disk is full: it is shown all the same
                feed.file.write(data)
        end = _size(feed.file)
        if end - feed.log.first > self._most + max(_PAGE, self._most // 4):
            first = (end - self._most) // _PAGE * _PAGE
            if _punch(feed.file.fileno(), first):
                feed.log.first = first

    def _pass_on(self, feed: _Feed, *, hurried: bool) -> None:
        """To the launcher's stream; then what is no longer needed of the memory is given back."""
        size = feed.kept
        if feed.target is None:
            feed.passed = size
        elif size - feed.passed > MOST_BEHIND:
            feed.left_out, feed.passed = feed.left_out + size - feed.passed, size
        while feed.target is not None and feed.target.idle and (feed.passed < size or feed.left_out):
            data = os.pread(feed.memory.fileno(), min(CHUNK, size - feed.passed), feed.passed)
            whole = data.rfind(b"\n") + 1
            if not whole and feed.passed + len(data) > feed.seen:
                feed.seen, feed.grown = feed.passed + len(data), time.monotonic()
            late = hurried or len(data) == CHUNK or time.monotonic() - feed.grown > PARTIAL_SECONDS
            if not whole and not late and not feed.left_out:
                break
            data = data[:whole] or data
            said = b""
            if feed.left_out:
                words = f"[rankwatch] {feed.left_out} bytes of rank {feed.log.rank} are not shown here\n"
                said = b"\n" * feed.within_line + words.encode()
            feed.target.offer(said + data)
            feed.within_line = not (said + data).endswith(b"\n")
            feed.passed, feed.left_out = feed.passed + len(data), 0
            self._moved = time.monotonic()
        free = min(feed.kept, feed.passed) // _PAGE * _PAGE
        if free > feed.freed and _punch(feed.memory.fileno(), free):
            feed.freed = free

    # From attempt to attempt ------------------------------------------------------------------------------------------

    def _attempt_folder(self) -> Path | None:
        if self.folder is None:
            return None
        self._places += 1
        made = self.folder / f"attempt_{self._attempt}"
        try:
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir(mode=0o700, parents=True)
        except OSError as error:
            logger.warning("what ranks print is not kept: %s", error)
            return None
        found = sorted(self.folder.glob("attempt_*"), key=lambda each: int(each.name.rpartition("_")[2]))
        for old in found[:-ATTEMPTS]:
            shutil.rmtree(old, ignore_errors=True)
        return made

    def _feed(self, rank: int, stream: str, path: str, number: int | None) -> _Feed:
        """``number``: the launcher's stream to which it is passed on; None: to none."""
        if number is not None and number not in self._targets:
            self._targets[number] = _Target(number, self._wake)
        file = io.FileIO(
            path, "x+", opener=lambda name, flags: os.open(name, flags | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        )
        memory = io.FileIO(os.memfd_create(f"rank_{rank}.{stream}"), "r+")
        return _Feed(Log(rank, stream, path), memory, file, None if number is None else self._targets[number])

    def _end_attempt(self) -> None:
        self._moved = time.monotonic()
        while any(each.passed < _size(each.memory) for each in self._feeds) or self._busy():
            self.drain()
            if time.monotonic() - self._moved > STUCK_SECONDS:
                break
        with self._turn:
            feeds, self._feeds = self._feeds, []
        for feed in feeds:
            with contextlib.suppress(OSError):
                _compact(feed.log, feed.file.fileno())
            feed.file.close()
            feed.memory.close()

    def _busy(self) -> bool:
        return bool(self._feeds) and not all(each.idle for each in self._targets.values())


def _size(file: io.FileIO) -> int:
    return os.fstat(file.fileno()).st_size


def _write(target: int, data: bytes) -> bool:
    """Write all of it; False: nobody reads any more."""
    view, ready = memoryview(data), select.poll()
    ready.register(target, select.POLLOUT)
    try:
        while view:
            ready.poll()  # another process may have made it non-blocking
            with contextlib.suppress(BlockingIOError):
                view = view[os.write(target, view) :]
    except OSError:
        return False
    return True


def _compact(log: Log, descriptor: int) -> None:
    """Replace a file whose beginning is a hole by what is kept of it: other programs would show the hole as zeros."""
    if log.first <= log.base:
        return
    beside = f"{log.path}.end"
    with open(beside, "xb") as file:
        at = log.first - log.base
        while data := os.pread(descriptor, CHUNK, at):
            file.write(data)
            at += len(data)
    os.replace(beside, log.path)
    log.base = log.first


def _may_replace(number: int) -> bool:
    """Whether ranks may be given a file for a stream of this launcher: a terminal buffers and colours otherwise."""
    try:
        return not os.isatty(number) and os.fstat(number) is not None
    except OSError:
        return False


def _same_file(one: int, other: int) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(one), os.fstat(other))
    return False


def _remove_empty(path: Path) -> None:
    found = path.lstat()
    if stat.S_ISDIR(found.st_mode):
        path.rmdir()
    elif not found.st_size:
        path.unlink()


def _folder() -> tuple[Path | None, int]:
    """A new folder for this launch, locked; of earlier ones only the newest stay. None: there is none."""
    try:
        parent = temporary_folder("output")
        folders = [each for each in parent.iterdir() if each.is_dir() and not each.is_symlink()]
        folders.sort(key=lambda each: each.stat().st_mtime)
        for old in folders[: -(LAUNCHES - 1)]:
            if (lock := locked(old)) >= 0:  # it has ended
                shutil.rmtree(old, ignore_errors=True)
                os.close(lock)
        made = Path(tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=parent))
        lock = locked(made)
        with tempfile.TemporaryFile(dir=made) as file, io.FileIO(os.memfd_create("rankwatch"), "r+") as memory:
            if _can_punch(file.fileno()) and _can_punch(memory.fileno()):
                return made, lock
        made.rmdir()
        os.close(lock)
        return None, -1
    except (OSError, AttributeError) as error:  # no files in memory: not on this kernel, or C library
        logger.debug("what ranks print is not kept: %s", error)
        return None, -1


def _can_punch(descriptor: int) -> bool:
    os.write(descriptor, bytes(2 * _PAGE))
    return _punch(descriptor, _PAGE)


def _punch(descriptor: int, until: int) -> bool:
    """Give the beginning of a file back to the file system; it keeps its length."""
    try:
        fallocate = ctypes.CDLL(None, use_errno=True).fallocate64
    except (AttributeError, OSError):
        return False
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return bool(fallocate(descriptor, _PUNCH, 0, until) == 0)
