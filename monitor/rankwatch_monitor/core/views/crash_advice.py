"""What the error of a crash points to, and what to look at first: one table for failed jobs, crashes and nodes.

===========  ==========================================  ===========================================================
class        errors                                      look first at
===========  ==========================================  ===========================================================
kernel       device-side assert, illegal memory access   the batch: data or code, with ``CUDA_LAUNCH_BLOCKING=1``
device       ECC, Xid, uncorrectable, off the bus, and   the GPU
             CUDA errors that name nothing else
gpu memory   CUDA out of memory                          what holds the GPU's memory
host memory  killed by SIGKILL, cannot allocate          what the kernel ended for memory
network      NCCL, Gloo, connections                     the network, and the rank that failed first
other        any                                         the traceback
===========  ==========================================  ===========================================================
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from rankwatch.cli.formatting import uncapital
from rankwatch_monitor.core.cause import Exited
from rankwatch_monitor.core.hang.verdict import Culprit
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.views import host_commands


class ErrorClass(StrEnum):
    """What an error points to."""

    KERNEL = "kernel"
    DEVICE = "device"
    GPU_MEMORY = "gpu memory"
    HOST_MEMORY = "host memory"
    NETWORK = "network"
    OTHER = "other"


_CLASSES: Final = tuple(
    (each, re.compile(pattern, re.IGNORECASE))
    for each, pattern in (
        (ErrorClass.KERNEL, r"device-side assert|illegal memory access|misaligned address"),
        (ErrorClass.DEVICE, r"\becc\b|\bxid\b|uncorrectable|fell off the bus|gpu is lost|unhandled cuda error"),
        (ErrorClass.GPU_MEMORY, r"(cuda|hip|gpu|device).*out of memory|outofmemoryerror"),
        (ErrorClass.HOST_MEMORY, r"cannot allocate memory|memoryerror|out of memory|oom-kill"),
        (ErrorClass.NETWORK, r"\bnccl|\bgloo\b|connection (reset|refused|closed)|socket|network is unreachable"),
        (ErrorClass.DEVICE, r"\b(cuda|hip)(blas|dnn)? (error|failure)|\bcu(blas|dnn).*(error|failed)"),
    )
)
"""The first that matches: an ECC error that NCCL reports is one of the GPU."""
_SIGKILL: Final = 9
BLOCKING: Final = "CUDA_LAUNCH_BLOCKING=1"
_AGAIN: Final = f"Run again with {BLOCKING}"
_ORIGIN: Final = {
    ErrorClass.KERNEL: "a kernel raises this error for an index out of range or a bad label, which is data or code",
    ErrorClass.NETWORK: "a rank that failed earlier causes this error too",
}


def error_class(ended: Exited) -> ErrorClass:
    """What a crash points to, by its signal, else by the text of its error."""
    if ended.code == -_SIGKILL:
        return ErrorClass.HOST_MEMORY
    error = ended.message
    return next((each for each, pattern in _CLASSES if pattern.search(error)), ErrorClass.OTHER)


class Passed(NamedTuple):
    """A step after which others crashed, and an attempt that got past it: its batch alone is not the cause."""

    step: int
    attempt: int
    reached: int
    """The last step that the attempt is known to have completed."""

    @property
    def text(self) -> str:
        """``attempt 1 passed step 614 and reached 638``."""
        return f"attempt {self.attempt} passed step {self.step:,} and reached {self.reached:,}"


class Crash(NamedTuple):
    """One crash, or several alike, as far as the advice needs it."""

    ended: Exited
    rank: int
    host: str
    gpu: str
    """As in sentences, ``GPU 5``; empty: not known."""
    selector: str
    """The GPU as ``nvidia-smi -i`` takes it; empty: not known."""
    step: int | None
    """The last step that any rank completed before it."""
    passed: Passed | None = None
    """The attempt of the same job that got past this step; None: none is known."""


class Look(NamedTuple):
    """What to look at first."""

    points_to: ErrorClass
    brief: str
    """A clause."""
    more: str
    """Why, from its punctuation on, without a period; empty: it is plain."""
    commands: tuple[str, ...]
    host: str
    """Of the crash, where the commands are run; empty: not known."""
    passed: Passed | None = None
    """The attempt that got past the step of the crash, as in :class:`Crash`."""
    again: bool = False
    """The job is run again to see it."""

    @property
    def host_first(self) -> bool:
        """Whether its host is left out before the batch is looked at, since a bad batch does not explain the crash."""
        return self.points_to is ErrorClass.KERNEL and self.passed is not None

    @property
    def clause(self) -> str:
        """What to do, as a clause."""
        return f"{_AGAIN} and {uncapital(self.brief)}" if self.again else self.brief

    @property
    def text(self) -> str:
        """The same with its reason, without a period."""
        return self.clause + self.more


def look(crash: Crash) -> Look:
    """What to look at first after a crash."""
    found = error_class(crash.ended)
    brief, more, commands = _look(found, crash)
    again = found is ErrorClass.KERNEL and crash.passed is None
    return Look(found, brief, more, commands, crash.host, crash.passed, again)


def _look(found: ErrorClass, crash: Crash) -> tuple[str, str, tuple[str, ...]]:
    gpu, on = crash.gpu or f"the GPU of rank {crash.rank}", f" on {crash.host}" if crash.host else ""
    host = crash.host or f"the host of rank {crash.rank}"
    match found:
        case ErrorClass.KERNEL if crash.passed is not None:
            return _AGAIN, f": {crash.passed.text}, so a bad batch there alone does not explain it", ()
        case ErrorClass.KERNEL:
            batch = "the failing batch" if crash.step is None else f"the batch after step {crash.step:,}"
            return f"Look at {batch}", f": {_ORIGIN[found]}", ()
        case ErrorClass.DEVICE:
            return f"Check {gpu}{on} for errors", "", (host_commands.gpu(crash.selector), host_commands.xid())
        case ErrorClass.GPU_MEMORY:
            brief = f"See what holds the memory of {gpu}{on}, or make a step of rank {crash.rank} smaller"
            return brief, "", (host_commands.gpu_memory(crash.selector),)
        case ErrorClass.HOST_MEMORY:
            return f"See whether {host} ran out of memory", "", (host_commands.host_memory(),)
        case ErrorClass.NETWORK:
            return f"Look at the network of {host}", f": {_ORIGIN[found]}", (host_commands.links(),)
        case ErrorClass.OTHER:
            after = "" if crash.step is None else f" around step {crash.step:,}"
            return f"Read the traceback of rank {crash.rank}{after}", "", ()


def crash_of(culprit: Culprit, incident: Incident, others: Iterable[Incident]) -> Crash:
    """The crash of a culprit of an incident; ``others``: incidents that may be of the same job."""
    local, step = culprit.local_rank, incident.furthest_iteration
    gpu, selector = (f"GPU {local}", culprit.device or str(local)) if local >= 0 else ("", culprit.device)
    passed = _passed(step, (each for each in others if each.job_id == incident.job_id))
    ended = culprit.cause if isinstance(culprit.cause, Exited) else Exited(0)
    return Crash(ended, culprit.rank, culprit.host, gpu, selector, step, passed)


def _passed(step: int | None, incidents: Iterable[Incident]) -> Passed | None:
    """The first attempt that got past a step, by the incidents of its job; None: none is known."""
    if step is None:
        return None
    reached = ((each.attempt, each.furthest_iteration or 0) for each in incidents)
    return next((Passed(step, attempt, last) for attempt, last in reached if last > step), None)


def next_failure(crash: Crash, elsewhere: str) -> str:
    """What to do after a further crash; ``elsewhere``: what the job's other hosts then show; empty: it has none."""
    if elsewhere:
        return f"If it crashes again, restart without {crash.host}: {elsewhere}."
    return f"If it crashes again: {uncapital(look(crash).text)}."


def separating(rank: int, host: str, recurs: str = "fails", *, kernel: bool = False) -> str:
    """What a run without a host shows, as a clause.

    Args:
        host: the host that is left out.
        recurs: what the rank does again.
        kernel: a kernel fails, so that its traceback names a later call.
    """
    call = f", and set {BLOCKING} to see the failing call" if kernel else ""
    return f"if rank {rank} {recurs} again, suspect data or code{call}; if not, {host}"


class SameStep(NamedTuple):
    """Crashes that came after one step."""

    step: int
    times: int
    total: int
    """All crashes, those after other steps as well."""
    passed: Passed | None = None
    """An attempt that got past the step; None: none is known, so that they point to data or code."""

    @property
    def text(self) -> str:
        """``3 of 4 crashes after step 614; attempt 1 passed step 614 and reached 638``."""
        which = f"all {self.total}" if self.times == self.total else f"{self.times} of {self.total}"
        text = f"{which} crashes after step {self.step:,}"
        return text if self.passed is None else f"{text}; {self.passed.text}"


def same_step(crashes: Sequence[Incident], incidents: Iterable[Incident]) -> SameStep | None:
    """The step after which most of several crashes came; None: there is none. ``incidents``: all of the job."""
    steps: Iterable[int] = (each.furthest_iteration for each in crashes if each.furthest_iteration is not None)
    step, times = next(iter(Counter(steps).most_common(1)), (0, 0))
    return (
        SameStep(step, times, len(crashes), _passed(step, incidents))
        if times > 1 and 2 * times > len(crashes)
        else None
    )
