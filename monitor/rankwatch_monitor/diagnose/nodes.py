"""Gets the reports of nodes: each is printed by the same collector, started here, by ssh, Slurm or Kubernetes.

All nodes are asked at once. One that does not answer within its time is a finding, not a wait.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from rankwatch.contract import interpreter
from rankwatch.contract.diagnosis import NodeReport
from rankwatch.contract.files import opened
from rankwatch.contract.interpreter import isolated_python, own_python
from rankwatch.contract.messages import Frame, read
from rankwatch.contract.text import decoded, one_line

COLLECTOR: Final = ("-m", "rankwatch_launcher.diagnose")
RECEIVE: Final = (
    "import os, subprocess, sys, tempfile; d = tempfile.TemporaryDirectory(prefix='rankwatch-'); "
    "p = os.path.join(d.name, 'rankwatch.pyz'); f = open(p, 'wb'); f.write(sys.stdin.buffer.read()); f.close(); "
    "c = subprocess.call([sys.executable, p, *sys.argv[1:]]); d.cleanup(); sys.exit(c)"
)
"""Runs the archive that its input is: so a node needs nothing but Python where Rankwatch itself is one file."""
VERDICT_ONLY: Final = ("native/numpy", "rankwatch_monitor/")
"""Parts of that file which a collector does without."""
ANSWER_SECONDS: Final = 30.0
"""Seconds that a node may take besides its looks: to connect, to start Python, and to read stacks on a busy machine, or
of processes that make reading slow."""
LIST_SECONDS: Final = 10.0
LARGEST: Final = 16 << 20
"""Bytes of one report."""
AT_ONCE: Final = 1024
FILES: Final = 5
"""That an answer is written to and awaited with, of those that this process may open."""
LOOK_SECONDS: Final = 0.2
"""Between two looks at how much a node has answered: it might fill the disk."""


class NodeError(ValueError):
    """A node, or the list of nodes, cannot be had; the message tells why."""


class Place(NamedTuple):
    """A node, and the command that prints its report."""

    name: str
    command: tuple[str, ...]
    is_sent: bool = False
    """It reads the collector from its input: :data:`RECEIVE`."""


class Answers(NamedTuple):
    """What came of the nodes."""

    reports: list[NodeReport]
    failed: list[tuple[str, str]]
    """Nodes without a report, and why."""


def here(flags: Sequence[str]) -> list[Place]:
    """This node."""
    return [Place(os.uname().nodename, (*own_python(*COLLECTOR), "--report", "-", "--alone", *flags))]


def by_ssh(hosts: Iterable[str], flags: Sequence[str], remote: str | None) -> list[Place]:
    """Hosts by ssh, which asks for no password.

    Raises:
        NodeError: a name is none of a host.
    """
    names = [name for name in hosts if name]
    if bad := next((name for name in names if name.startswith("-")), None):
        raise NodeError(f"{bad!r} is no host")
    options = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "-o", "StrictHostKeyChecking=accept-new")
    command, is_sent = _remote(flags, remote)
    return [Place(name, (*options, name, shlex.join(command)), is_sent) for name in names]


def by_slurm(job: str, flags: Sequence[str], remote: str | None) -> list[Place]:
    """The nodes of a Slurm job, each by a step of its own that shares the job's resources.

    Raises:
        NodeError: Slurm does not know the job.
    """
    if not job.replace("_", "").replace("+", "").isalnum():
        raise NodeError(f"{job!r} is no number of a Slurm job")
    listed = _listed("squeue", "--noheader", "--jobs", job, "--states", "running", "--format", "%N").split()
    if not listed:
        raise NodeError(f"Slurm job {job} does not run")
    names = _listed("scontrol", "show", "hostnames", listed[0]).split()
    step = ("srun", "--overlap", "--jobid", job, "--nodes", "1", "--ntasks", "1", "--quiet")
    command, is_sent = _remote(flags, remote)
    return [Place(name, (*step, "--nodelist", name, *command), is_sent) for name in names]


def by_kubernetes(selector: str, namespace: str | None, flags: Sequence[str], remote: str | None) -> list[Place]:
    """The pods that a selector chooses.

    Raises:
        NodeError: there are none, or kubectl fails.
    """
    within = ("--namespace", namespace) if namespace else ()
    which = (f"--selector={selector}", "--field-selector=status.phase=Running", "--output", "name")
    pods = _listed("kubectl", "get", "pods", *within, *which).split()
    if not pods:
        raise NodeError(f"no pod with the labels {selector} is running")
    command, is_sent = _remote(flags, remote, "python3", "rankwatch diagnose")
    with_input = ("--stdin",) if is_sent else ()
    ask = ("kubectl", "exec", *with_input, *within)
    return [Place(pod.removeprefix("pod/"), (*ask, pod, "--", *command), is_sent) for pod in pods]


def ask(places: Sequence[Place], seconds: float) -> Answers:
    """Ask all nodes at once, each within its time; ``seconds``: that their looks take."""
    with contextlib.ExitStack() as stack:
        sent = os.devnull
        if any(place.is_sent for place in places):
            sent = stack.enter_context(tempfile.NamedTemporaryFile(prefix="rankwatch-")).name
            _write_collector(sent)
        pool = stack.enter_context(ThreadPoolExecutor(min(_at_once(), max(1, len(places))), "rankwatch-node"))
        found = list(pool.map(lambda place: _answer(place, sent, seconds + ANSWER_SECONDS), places))
    answers = Answers([], [])
    for place, (report, why) in zip(places, found, strict=True):
        if report is None:
            answers.failed.append((place.name, why))
        else:
            answers.reports.append(report)
    return answers


def from_files(names: Sequence[str]) -> Answers:
    """The reports in files, one a line; ``-`` is standard input."""
    answers = Answers([], [])
    for name in names:
        try:
            with contextlib.ExitStack() as stack:
                file = sys.stdin.buffer if name == "-" else stack.enter_context(_opened(name))
                found = False
                while line := file.readline(LARGEST + 1):
                    if line.strip():
                        found = True
                        answers.reports.append(_read(line))
                if not found:
                    raise ValueError("it is empty")
        except (OSError, ValueError) as error:
            answers.failed.append((name, one_line(str(getattr(error, "strerror", None) or error), 200)))
    return answers


def _opened(name: str) -> BinaryIO:
    """A file, or a pipe that somebody has opened for writing, as ``<(ssh ...)`` is and a planted one is not."""
    file = opened(Path(name), pipe=True)
    os.set_blocking(file.fileno(), True)
    return file


def _remote(
    flags: Sequence[str], remote: str | None, python: str | None = None, installed: str | None = None
) -> tuple[list[str], bool]:
    """The command of the collector on another node, and whether it is to be sent there.

    Args:
        flags: of the collector.
        remote: what the user calls the command there; None: that is not said.
        python: the interpreter there; None: this one, at the same path.
        installed: what the command is called there if it is installed; None: this Python at the same path runs it.
    """
    if remote is None and interpreter.archive is not None:
        return isolated_python(RECEIVE, *COLLECTOR, "--report", "-", *flags, python=python), True
    if (remote := remote or installed) is None:
        return [*own_python(*COLLECTOR), "--report", "-", *flags], False
    return [*shlex.split(remote), "--report", "-", *flags], False


def _write_collector(path: str) -> None:
    """The file that this command runs from, without what only the verdict needs."""
    assert interpreter.archive is not None
    with zipfile.ZipFile(interpreter.archive) as whole, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as part:
        for name in whole.namelist():
            if not name.startswith(VERDICT_ONLY):
                part.writestr(name, whole.read(name))


def _at_once() -> int:
    """How many nodes are asked at once, with as many open files as this process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES * AT_ONCE + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return max(1, min(AT_ONCE, (soft - 128) // FILES))
    return AT_ONCE


def _answer(place: Place, sent: str, seconds: float) -> tuple[NodeReport | None, str]:
    until = time.monotonic() + seconds
    with (
        open(sent if place.is_sent else os.devnull, "rb") as given,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        try:
            process = subprocess.Popen(place.command, stdin=given, stdout=out, stderr=err, start_new_session=True)
        except OSError as error:
            return None, f"{place.command[0]}: {error.strerror or error}"
        while (code := _ended(process)) is None:
            size = os.fstat(out.fileno()).st_size + os.fstat(err.fileno()).st_size
            if size <= 2 * LARGEST and time.monotonic() < until:
                continue
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            # One that is stuck in the kernel does not end: nobody waits for it.
            threading.Thread(target=process.wait, daemon=True).start()
            return None, "its answer is no report: it is too large" if size > LARGEST else "it did not answer in time"
        out.seek(0)
        err.seek(0)
        said = err.read(4000).decode(errors="replace").strip().splitlines()
        if code != 0:
            return None, one_line(said[-1], 200) if said else f"the collector ended with code {code}"
        try:
            printed = out.read(LARGEST + 1)  # a login may say something first
            return _read(printed.rstrip().rpartition(b"\n")[2] if len(printed) <= LARGEST else printed), ""
        except ValueError as error:
            return None, one_line(f"its answer is no report: {error}", 200)


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    """Its exit code; None: it did not end within a moment. A thousand are awaited without a look at each."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return process.poll()
    try:
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        waiting.poll(1000 * LOOK_SECONDS)
    finally:
        os.close(descriptor)
    return process.poll()


def _read(text: bytes) -> NodeReport:
    if len(text) > LARGEST:
        raise ValueError("it is too large")
    data = decoded(text)
    stacks = _without_frames(data)
    report = read(NodeReport, data)
    ranks = (
        replace(rank, stack=replace(rank.stack, frames=frames))
        for rank, frames in zip(report.ranks, stacks, strict=True)
    )
    return replace(report, ranks=tuple(ranks))


def _without_frames(data: Any) -> list[tuple[Frame, ...]]:
    """Take the main threads' stacks out of a report: thousands of ranks have few, each of which is read once."""
    try:
        return [_frames(tuple(tuple(f.items()) for f in rank["stack"].pop("frames", ()))) for rank in data["ranks"]]
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"its ranks have wrong values: {error!r}") from None


@lru_cache(maxsize=4096)
def _frames(frames: tuple[tuple[tuple[str, Any], ...], ...]) -> tuple[Frame, ...]:
    return tuple(read(Frame, dict(frame)) for frame in frames)


def _listed(*command: str) -> str:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIST_SECONDS, check=False)
    except FileNotFoundError:
        raise NodeError(f"{command[0]} is not installed here") from None
    except subprocess.TimeoutExpired:
        raise NodeError(f"{command[0]} did not answer in {LIST_SECONDS:g} s") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise NodeError(one_line(f"{command[0]}: {said[-1] if said else f'code {done.returncode}'}", 200))
    return done.stdout.decode(errors="replace")
