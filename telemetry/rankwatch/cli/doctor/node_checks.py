"""Checks of this node: settings, stack capture, shared memory, open files, proxies, running and leftover launchers."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined] # the rule that urllib applies

from rankwatch.cli.doctor.finding import Finding, fault, ok, warning
from rankwatch.cli.formatting import count, ranks, size
from rankwatch.contract.files import find_program
from rankwatch.contract.text import operands
from rankwatch.liveness.stack_dump import allow_tracing
from rankwatch.monitor_client import is_loopback
from rankwatch.recording import shared_slots
from rankwatch.recording.shared_slots import Slots
from rankwatch.settings import load

MEMORY: Final = Path("/dev/shm")
LITTLE_MEMORY: Final = 4 * 2**20
"""Bytes in /dev/shm below which the slots of a node may not fit: 12 KiB per rank, plus the stack files."""
FEW_FILES: Final = 4096
"""File descriptors below which a monitor runs out of connections for a medium job, one per rank."""
TOO_FEW_FILES: Final = 256
PY_SPY_SECONDS: Final = 20.0
_OURS: Final = "rankwatch-doctor-"
"""Begins the name of the folder that a check makes."""
SYS_PTRACE: Final = 19
"""Number of the capability CAP_SYS_PTRACE."""

_SCOPES: Final[Mapping[int, str]] = {
    0: "any process of the same user",
    1: "children, and those that allow it, as rankwatch.init() does",
    2: "processes with CAP_SYS_PTRACE only",
    3: "no process, until the next boot",
}
_IN_A_CONTAINER: Final = (
    "give the launcher CAP_SYS_PTRACE (docker: --cap-add SYS_PTRACE; Kubernetes: securityContext.capabilities.add)"
)


def checks(monitor: str, variables: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Check this node as one whose ranks report to ``monitor``."""
    yield from settings(variables)
    yield stacks()
    yield memory()
    yield files()
    yield from proxies(monitor, variables)
    yield from launchers()


def settings(variables: Mapping[str, str]) -> Iterator[Finding]:
    """Invalid variables, which a rank would ignore."""
    _, problems = load(variables=variables)
    for problem in problems:
        yield warning("settings", problem, "correct or unset the variable")
    if not problems:
        ours = sorted(name for name in variables if name.startswith("RANKWATCH_"))
        yield ok("settings", f"valid: {', '.join(ours)}" if ours else "no RANKWATCH_ variable is set")


def stacks() -> Finding:
    """py-spy and the permission to trace, tested on this process, which allows it as ``rankwatch.init()`` does."""
    tool = find_program("py-spy")
    if tool is None:
        return warning(
            "stacks",
            "py-spy is not installed: a rank that is stopped or holds its GIL shows no stack; the others write theirs",
            "pip install py-spy",
        )
    allow_tracing()
    try:
        done = subprocess.run(
            [tool, "dump", "--nonblocking", "--pid", str(os.getpid())],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PY_SPY_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return warning("stacks", f"py-spy does not run: {error}", f"try it: {tool} dump --pid PID")
    rights = _rights()
    if done.returncode == 0:
        return ok("stacks", f"py-spy reads a process here ({rights})")
    last_line = (done.stderr.strip().splitlines() or ["without a word"])[-1]
    return warning(
        "stacks",
        f"py-spy may not read a process here: {last_line[:200]} ({rights}); ranks then write their own stacks, but not "
        "while they are stopped or hold their GIL",
        _IN_A_CONTAINER + (", or set kernel.yama.ptrace_scope to 1" if _scope() in (2, 3) else ""),
    )


def memory(folder: Path = MEMORY) -> Finding:
    """Shared memory for slots; creates and removes a slot file."""
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        where = tempfile.gettempdir()
        return warning(
            "slots",
            f"{folder} is not there or not writable: slots go to {where}, where a busy disk may delay a rank",
            f"mount a tmpfs at {folder} that all users may write",
        )
    state = os.statvfs(folder)
    free, whole = state.f_bavail * state.f_frsize, state.f_blocks * state.f_frsize
    space = f"{size(free)} of {size(whole)} free in {folder}"
    try:
        with tempfile.TemporaryDirectory(prefix=_OURS, dir=folder) as made:
            tried = Slots.create(Path(made) / "0.slots")
            tried.claim(rank=0, local_rank=0, world_size=1, attempt=1)
            read = shared_slots.read(tried)
            tried.close()
    except OSError as error:
        return fault(
            "slots", f"no slots can be made in {folder}: {error}", "free some of it, or enlarge it (--shm-size)"
        )
    if read is None or free < LITTLE_MEMORY:
        return warning("slots", space, "free some of it, or enlarge it (docker: --shm-size; Kubernetes: an emptyDir)")
    return ok("slots", f"{space}; a rank takes {size(shared_slots.SIZE)}")


def files() -> Finding:
    """The limit of open files per process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= FEW_FILES:
        return ok("open files", "no limit" if soft == resource.RLIM_INFINITY else f"{soft} a process")
    most = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    mend = f"ulimit -n {most if hard != resource.RLIM_INFINITY else 65536} before it is started (hard limit: {most})"
    if soft < TOO_FEW_FILES:
        return fault("open files", f"only {soft} a process: launchers and data loaders run out of them", mend)
    words = f"{soft} a process: a monitor here holds connections of some {soft - 100} ranks; ranks are fine with it"
    return warning("open files", words, mend)


def proxies(monitor: str, variables: Mapping[str, str]) -> Iterator[Finding]:
    """Proxies from the environment that apply to loopback or the monitor."""
    found = {
        name.lower().removesuffix("_proxy"): value
        for name, value in sorted(
            variables.items()
        )  # where both spellings are set, the lower case comes last and counts
        if name.lower().endswith("_proxy") and value
    }
    scheme, host = urlsplit(monitor).scheme, urlsplit(monitor).hostname or ""
    taken = [
        name
        for name in dict.fromkeys(("127.0.0.1", "localhost", host))
        if name and not proxy_bypass_environment(name, found)
    ]
    used = {name: value for name, value in found.items() if name in ("http", "https", "all")}
    if not used:
        yield ok("proxies", "none is set")
        return
    setting = ", ".join(f"{name}_proxy={value.rpartition('@')[2]}" for name, value in sorted(used.items()))
    if not taken:
        yield ok("proxies", f"{setting}; not used for loopback and the monitor")
        return
    mend = f"export no_proxy={','.join(dict.fromkeys(('127.0.0.1', 'localhost', host)))}"
    if host in taken and not is_loopback(monitor) and (scheme in used or "all" in used):
        yield warning(
            "proxies",
            f"{setting} applies to the monitor on {host}: launchers and these commands use it, ranks do not",
            mend,
        )
    else:
        yield warning(
            "proxies",
            f"{setting} applies to {', '.join(taken)}; Rankwatch ignores it there, other clients "
            "(curl, OpenTelemetry exporters) do not",
            mend,
        )


def launchers() -> Iterator[Finding]:
    """Slots of running launchers, and those left by a killed launcher."""
    places = dict.fromkeys(place for place in (MEMORY, Path(tempfile.gettempdir())) if place.is_dir())
    owners = {folder: _owner(folder) for place in places for folder in place.glob("rankwatch-*")}
    # Root may enter those of others, but opening what is there may act on a device, and end whoever maps it.
    own = sorted(folder for folder, owner in owners.items() if owner == os.geteuid())
    attempts = [attempt for folder in own for attempt in sorted(folder.glob("attempt-*"))]
    yield from map(_attempt, attempts)
    if others := sum(owner not in (None, os.geteuid()) for owner in owners.values()):
        yield ok("launcher", f"{count(others, 'folder')} of launchers of other users")
    if not attempts and not others:
        yield ok("launcher", "none runs ranks on this machine")


def _owner(folder: Path) -> int | None:
    """The user whose folder it is; None: it is none, or a check's own."""
    with suppress(OSError):
        found = folder.lstat()
        return found.st_uid if stat.S_ISDIR(found.st_mode) and not folder.name.startswith(_OURS) else None
    return None


def _attempt(attempt: Path) -> Finding:
    folder = attempt.parent
    files = sorted(attempt.glob("*.slots"))
    readings = [reading for reading in map(_reading, files) if reading is not None]
    living = [r for r in readings if Path(f"/proc/{r.pid}").exists()]
    if readings and not living:
        return warning(
            "launcher",
            f"{folder} is a leftover: its ranks are gone",
            f"if no launcher is about to restart them: rm -r {operands(str(folder))}",
        )
    if not readings:
        return ok("launcher", f"{attempt}: no rank has called rankwatch.init() (yet)")
    steps = [r.iteration for r in living if r.iteration is not None]
    step = f", step {min(steps)} to {max(steps)}" if steps else ""
    gone = f", {count(len(readings) - len(living), 'rank')} gone" if len(living) < len(readings) else ""
    late = [r.rank for r in living if r.overdue is not None]
    words = f"{attempt}: {count(len(living), 'rank')} ({ranks(r.rank for r in living)}){step}{gone}"
    if late:
        return warning(
            "launcher",
            f"{words}; reports of {count(len(late), 'rank')} ({ranks(late)}) are overdue",
            "are those ranks stopped, or is the monitor away? See the lines about it",
        )
    return ok("launcher", words)


def _reading(file: Path) -> shared_slots.Reading | None:
    with suppress(OSError, ValueError):
        opened = Slots.open(file)
        try:
            return shared_slots.read(opened)
        finally:
            opened.close()
    return None


def _scope() -> int | None:
    with suppress(OSError, ValueError):
        return int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    return None


def _rights() -> str:
    """The permissions that decide about tracing, as text."""
    scope, capable = _scope(), False
    with suppress(OSError, ValueError, StopIteration):
        status = Path("/proc/self/status").read_text().splitlines()
        effective = next(line for line in status if line.startswith("CapEff:")).split()[1]
        capable = bool(int(effective, 16) >> SYS_PTRACE & 1)
    rights = ["with CAP_SYS_PTRACE" if capable else "without CAP_SYS_PTRACE"]
    if scope is not None:
        rights.append(f"ptrace_scope {scope}: {_SCOPES.get(scope, 'unknown')}")
    return ", ".join(rights)
