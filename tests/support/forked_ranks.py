"""A launcher whose ranks begin with torch already imported, for tests that start many of them.

The launcher of a test forks a server before it imports anything of Rankwatch; each rank that would be ``python -u
script.py`` is then forked from that server instead, as in :mod:`support.forked`, and runs the launcher's
``sitecustomize`` before the script as a new interpreter would.

A rank that needs more than that (``--auto``, ``--stand-in``, prewarmed workers, another program) is started as usual.
"""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from support.forked import TESTS, ForkedProcess, Requests, serve

SUPERVISED: Final = "RANKWATCH_SUPERVISED"
"""What the supervisor sets for the launcher that it starts from its own command line."""
FRESH: Final = ("RANKWATCH_AUTO_PARENT", "RANKWATCH_STAND_IN", "LD_PRELOAD")
"""Environment variables with which a rank has to be a new interpreter."""


def launcher_code(then: str, preload: Sequence[str] = ()) -> str:
    """Code for ``python -c`` that prepares forked ranks, with the modules ``preload`` imported, then runs ``then``."""
    return (
        f"import sys; sys.path.insert(0, {TESTS!r}); from support import forked_ranks; "
        f"sys.path.remove({TESTS!r}); forked_ranks.install({tuple(preload)!r})\n{then}"
    )


def run_command(*preload: str) -> list[str]:
    """Arguments of Python for ``rankwatch run`` with forked ranks."""
    return ["-c", launcher_code("from rankwatch.cli.main import main; sys.exit(main())", preload), "run"]


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
        serve(theirs)  # returns in no process but a rank's, by SystemExit
    theirs.close()
    plain, requests = SubprocessHandler._popen, Requests(ours)
    path = _entries(os.environ)

    def popen(self: Any, args: tuple[str, ...], env: dict[str, str]) -> subprocess.Popen[bytes]:
        from rankwatch_launcher.prewarm.bootstrap import ERRORS, HOOK

        script = (
            args[:2] == (sys.executable, "-u") and len(args) > 2 and args[2].endswith(".py") and os.path.isfile(args[2])
        )
        hooked = ERRORS in env and _entries(env)[:1] == [str(HOOK)]
        if not script or _entries(env)[hooked:] != path or any(name in env for name in FRESH):
            started: subprocess.Popen[bytes] = plain(self, args, env)
            return started
        request = {"kind": "", "target": args[2], "arguments": args[3:], "env": env, "cwd": os.getcwd(), "path": []}
        request |= {"site": str(HOOK / "sitecustomize.py") if hooked else "", "parent": os.getpid()}
        outputs = [1 if self._stdout is None else self._stdout.fileno()]
        outputs += [2 if self._stderr is None else self._stderr.fileno()]
        pid = requests.fork(request | {"session": True, "unbuffered": True}, outputs)
        return ForkedProcess(pid, args)

    SubprocessHandler._popen = popen


def _entries(env: Mapping[str, str]) -> list[str]:
    return [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
