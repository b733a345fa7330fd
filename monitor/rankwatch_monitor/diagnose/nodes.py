"""Gets the reports of nodes: each is printed by the same collector, started here, by ssh, Slurm or Kubernetes.

All nodes are asked at once. One that does not answer within its time is a finding, not a wait.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from typing import Any, BinaryIO, Final, NamedTuple

from rankwatch.contract.diagnosis import NodeReport
from rankwatch.contract.interpreter import own_python
from rankwatch.contract.messages import Frame, read
from rankwatch.contract.text import decoded, one_line

COLLECTOR: Final = ("-m", "rankwatch_launcher.diagnose")
ANSWER_SECONDS: Final = 30.0
"""Seconds that a node may take besides its looks: to connect, to start Python, and to read stacks on a busy machine, or
of processes that make reading slow."""
LIST_SECONDS: Final = 10.0
LARGEST: Final = 16 << 20
"""Bytes of one report."""
AT_ONCE: Final = 64
LOOK_SECONDS: Final = 0.1
"""Between two looks at how much a node has answered: it might fill the disk."""


class NodeError(ValueError):
    """A node, or the list of nodes, cannot be had; the message tells why."""


class Place(NamedTuple):
    """A node, and the command that prints its report."""

    name: str
    command: tuple[str, ...]


class Answers(NamedTuple):
    """What came of the nodes."""

    reports: list[NodeReport]
    failed: list[tuple[str, str]]
    """Nodes without a report, and why."""


def here(flags: Sequence[str]) -> list[Place]:
    """This node."""
    return [Place(os.uname().nodename, (*own_python(*COLLECTOR), "--report", "-", *flags))]


def by_ssh(hosts: Iterable[str], flags: Sequence[str], remote: str | None) -> list[Place]:
    """Hosts by ssh, which asks for no password.

    Raises:
        NodeError: a name is none of a host.
    """
    names = [name for name in hosts if name]
    if bad := next((name for name in names if name.startswith("-")), None):
        raise NodeError(f"{bad!r} is no host")
    options = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "-o", "StrictHostKeyChecking=accept-new")
    return [Place(name, (*options, name, shlex.join(_remote(flags, remote)))) for name in names]


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
    return [Place(name, (*step, "--nodelist", name, *_remote(flags, remote))) for name in names]


def by_kubernetes(selector: str, namespace: str | None, flags: Sequence[str], remote: str | None) -> list[Place]:
    """The pods that a selector chooses.

    Raises:
        NodeError: there are none, or kubectl fails.
    """
    within = ("--namespace", namespace) if namespace else ()
    pods = _listed("kubectl", "get", "pods", *within, f"--selector={selector}", "--output", "name").split()
    if not pods:
        raise NodeError(f"no pod has the labels {selector}")
    command = _remote(flags, remote or "rankwatch diagnose")
    return [Place(pod.removeprefix("pod/"), ("kubectl", "exec", *within, pod, "--", *command)) for pod in pods]


def ask(places: Sequence[Place], seconds: float) -> Answers:
    """Ask all nodes at once, each within its time; ``seconds``: that their looks take."""
    until = time.monotonic() + seconds + ANSWER_SECONDS
    with ThreadPoolExecutor(min(AT_ONCE, max(1, len(places))), "rankwatch-node") as pool:
        found = list(pool.map(lambda place: _answer(place, until), places))
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
    file = os.fdopen(os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb")
    os.set_blocking(file.fileno(), True)
    return file


def _remote(flags: Sequence[str], remote: str | None) -> list[str]:
    """The command of the collector on another node, where by default this Python is at the same path."""
    if remote is None:
        return [*own_python(*COLLECTOR), "--report", "-", *flags]
    return [*shlex.split(remote), "--report", "-", *flags]


def _answer(place: Place, until: float) -> tuple[NodeReport | None, str]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                place.command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
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
            return _read(out.read(LARGEST + 1)), ""
        except ValueError as error:
            return None, one_line(f"its answer is no report: {error}", 200)


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    """Its exit code; None: it did not end within a moment."""
    try:
        return process.wait(LOOK_SECONDS)
    except subprocess.TimeoutExpired:
        return None


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
