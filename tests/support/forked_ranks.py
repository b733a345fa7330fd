"""A launcher whose ranks begin with torch already imported, for tests that start many of them.

Importing torch is most of what a short rank costs: 1.7 s of CPU time. So the launcher of a test imports torch, and
forks a server before it imports anything of Rankwatch; each rank that would be ``python -u script.py`` is then forked
from that server instead. It is a process of its own all the same: a child of the launcher, in a session of its own,
with its own environment, arguments and output, that runs the script as ``__main__`` and ends as an interpreter does.

A rank that needs more than that (``--auto``, ``--stand-in``, prewarmed workers, another program) is started as usual.
What the process table shows of a forked rank is the launcher's own command line.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

TESTS: Final = Path(__file__).parents[1]
PR_SET_CHILD_SUBREAPER: Final = 36
REQUEST_BYTES: Final = 1 << 20
SUPERVISED: Final = "RANKWATCH_SUPERVISED"
"""What the supervisor sets for the launcher that it starts from its own command line."""
FRESH: Final = ("RANKWATCH_AUTO_PARENT", "RANKWATCH_STAND_IN", "LD_PRELOAD")
"""Environment variables with which a rank has to be a new interpreter."""


def launcher_code(then: str, preload: Sequence[str] = ()) -> str:
    """Code for ``python -c`` that prepares forked ranks, with the modules ``preload`` imported, then runs ``then``."""
    return (
        f"import sys; sys.path.insert(0, {str(TESTS)!r}); from support import forked_ranks; "
        f"sys.path.remove({str(TESTS)!r}); forked_ranks.install({tuple(preload)!r})\n{then}"
    )


def run_command(*preload: str) -> list[str]:
    """Arguments of Python for ``rankwatch run`` with forked ranks."""
    return ["-c", launcher_code("from rankwatch.cli.main import main; sys.exit(main())", preload), "run"]


class ForkedRank(subprocess.Popen[bytes]):
    """A rank that was forked by the server: waited for and signalled as any child."""

    def __init__(self, pid: int, args: Sequence[str]) -> None:
        self.pid, self.args, self.returncode = pid, args, None  # type: ignore[assignment]
        self.stdin = self.stdout = self.stderr = None
        self._child_created, self._waitpid_lock = True, threading.Lock()


def install(preload: Sequence[str] = ()) -> None:
    """Fork the server, and have torch start ranks through it. Call it first, before any thread is started.

    The supervisor of ``--job-retries`` starts launchers, not ranks: it goes on without torch.
    """
    if SUPERVISED not in os.environ and any(argument.startswith("--job-ret") for argument in sys.argv):
        return
    import torch
    import torch.distributed
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    del torch
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        for module in preload:
            importlib.import_module(module)
        _serve(theirs)  # returns in no process but a rank's, by SystemExit
    theirs.close()
    plain, lock, libc = SubprocessHandler._popen, threading.Lock(), ctypes.CDLL(None)
    path = os.environ.get("PYTHONPATH")

    def popen(self: Any, args: tuple[str, ...], env: dict[str, str]) -> subprocess.Popen[bytes]:
        script = args[:2] == (sys.executable, "-u") and len(args) > 2 and args[2].endswith(".py")
        if not script or env.get("PYTHONPATH") != path or any(name in env for name in FRESH):
            started: subprocess.Popen[bytes] = plain(self, args, env)
            return started
        outputs = [1 if self._stdout is None else self._stdout.fileno()]
        outputs += [2 if self._stderr is None else self._stderr.fileno()]
        with lock:
            # The rank's own parent ends at once, so that the rank becomes a child of this process.
            libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            socket.send_fds(ours, [pickle.dumps((args[2:], env, os.getcwd()))], outputs)
            answer = ours.recv(REQUEST_BYTES)
            libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        return ForkedRank(int(answer), args)

    SubprocessHandler._popen = popen


def _serve(requests: socket.socket) -> None:
    while True:
        request, outputs, _, _ = socket.recv_fds(requests, REQUEST_BYTES, 2)
        if not request:  # the launcher is gone
            os._exit(0)
        between = os.pipe()
        middle = os.fork()
        if middle == 0:
            rank = os.fork()
            if rank == 0:
                requests.close()
                for descriptor in between:
                    os.close(descriptor)
                _become(*pickle.loads(request), outputs)
            os.write(between[1], str(rank).encode())
            os._exit(0)
        os.waitpid(middle, 0)
        requests.send(os.read(between[0], 64))
        for descriptor in (*between, *outputs):
            os.close(descriptor)


def _become(arguments: Sequence[str], env: dict[str, str], folder: str, outputs: Sequence[int]) -> None:
    """Run the script as a new interpreter would, and leave by ``SystemExit``."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    for descriptor, output in zip((1, 2), outputs, strict=True):
        os.dup2(output, descriptor)
        os.close(output)
    sys.stdout.reconfigure(line_buffering=True, write_through=True)  # type: ignore[union-attr]
    script = Path(arguments[0])
    sys.argv = list(arguments)
    sys.path[0] = str(script.resolve().parent)
    main = sys.modules["__main__"].__dict__
    for name in [name for name in main if not name.startswith("__")]:
        del main[name]
    main.update(__file__=str(script), __spec__=None)
    exec(compile(script.read_bytes(), str(script), "exec"), main)
    raise SystemExit(0)
