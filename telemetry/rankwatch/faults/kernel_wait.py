"""A main thread that waits in the kernel in state D, made without root and without harm to the machine.

A process whose ``vfork`` child has neither run a program nor ended is suspended by the kernel in that state. glibc's
``posix_spawn`` is such a vfork, and it lets the child open a file before it runs its program: here a named pipe that
nobody writes to. SIGKILL ends the wait, as it does most real ones (a file server that does not answer, for example).
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Final

_ACTIONS_BYTES: Final = 512
"""More than any libc's posix_spawn_file_actions_t takes (80 bytes in glibc)."""
_PROGRAM: Final = b"/bin/true"

# Its standard input is closed when the time has come, or by the kernel when this process has died. Then it lets the
# child go on, which would else outlive a rank that was killed without its process group, and tidies up; "<>" never
# blocks.
_RELEASE: Final = 'read -r _; : <> "$1/pipe"; rm -rf "$1"'


def rankwatch_injected_uninterruptible(seconds: float) -> None:
    """Wait in state D on this thread; others run on, since the GIL is not held.

    Raises:
        OSError: no process can be started.
    """
    libc = ctypes.CDLL(None)
    folder = Path(tempfile.mkdtemp(prefix="rankwatch-fault-"))
    os.mkfifo(folder / "pipe")
    # In a session of its own: it has work to do after the process group of this rank was killed.
    releaser = subprocess.Popen(
        ["/bin/sh", "-c", _RELEASE, "sh", str(folder)], stdin=subprocess.PIPE, start_new_session=True
    )
    with releaser:
        assert releaser.stdin is not None
        timer = threading.Timer(seconds, releaser.stdin.close)
        timer.daemon = True
        timer.start()
        _spawn_behind(libc, folder / "pipe", closing=releaser.stdin.fileno())


def _spawn_behind(libc: ctypes.CDLL, pipe: Path, *, closing: int) -> None:
    """Start a program whose process first waits for a writer of the pipe; without its copy of ``closing``."""
    actions = ctypes.create_string_buffer(_ACTIONS_BYTES)
    libc.posix_spawn_file_actions_init(actions)
    libc.posix_spawn_file_actions_addclose(actions, closing)
    libc.posix_spawn_file_actions_addopen(actions, 0, os.fsencode(pipe), os.O_RDONLY, 0)
    pid = ctypes.c_int()
    arguments = (ctypes.c_char_p * 2)(_PROGRAM, None)
    nothing = (ctypes.c_char_p * 1)(None)
    try:
        error = libc.posix_spawn(ctypes.byref(pid), _PROGRAM, actions, None, arguments, nothing)
    finally:
        libc.posix_spawn_file_actions_destroy(actions)
    if error:
        raise OSError(error, os.strerror(error), os.fsdecode(_PROGRAM))
    os.waitpid(pid.value, 0)
