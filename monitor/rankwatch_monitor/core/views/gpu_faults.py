"""What the faults on a GPU that stands out point to, by their kind: a place is not a cause.

============  =========================================================================================================
hangs         where the stacks show the rank: storage and data loader, or what that function waits for; without a
              stack nothing is known, and stacks come first
crashes       what their error points to (:mod:`.crash_advice`)
others        the GPU: wrong results, slow computation, processes stuck in the kernel
============  =========================================================================================================

A rank that has the same number in all jobs may be at fault by its part of data or code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from rankwatch.cli.formatting import capital, uncapital
from rankwatch.contract.enums import CulpritClass, RankState
from rankwatch_monitor.core.views import host_commands
from rankwatch_monitor.core.views.crash_advice import ErrorClass, crash_of, look
from rankwatch_monitor.core.views.node_gpus import Fault, Gpu, also_suspected, common_function, reads_input

_STUCK: Final = (RankState.HUNG, RankState.SUSPECTED)
_OF_JOB: Final = (ErrorClass.KERNEL, ErrorClass.GPU_MEMORY, ErrorClass.OTHER)
"""Errors whose advice is about one job, not about the host."""


class Pointer(NamedTuple):
    """What the faults point to."""

    verdict: str
    """A sentence."""
    brief: str
    """What to look at first, as a clause."""
    more: str
    """Why, and what follows, from its punctuation on, without a period."""
    commands: tuple[str, ...]
    """For the host."""
    process: str = ""
    """The process that the last command is about, ``rank 13 of gpt-7``; empty: none."""
    check: tuple[str, str] | None = None
    """Of the GPU, before data or code are looked at, and why; None: nothing points to the GPU first."""
    of_job: bool = False
    """The text is about one job, not about the host."""

    @property
    def text(self) -> str:
        """What to look at first, in sentences."""
        return f"{self.brief}{self.more}."

    @property
    def clause(self) -> str:
        """What to look at first on the host; empty: nothing."""
        return "" if self.of_job else uncapital(self.brief)

    @property
    def of_host(self) -> tuple[str, ...]:
        """The commands that are about no process of one job."""
        return self.commands[:-1] if self.process else self.commands


def pointer(host: str, gpu: Gpu, suspected: Sequence[Fault]) -> Pointer:
    """What the faults on a GPU point to.

    Args:
        suspected: hangs on the host that are not confirmed.
    """
    crashes = [fault for fault in gpu.faults if fault[1].kind is CulpritClass.DEAD]
    lead = f"{gpu.name} of {host}, {gpu.of_ranks}: {gpu.history()}."
    if gpu.hangs:
        places = {gpu.uuid, str(gpu.number)}
        return _of_hangs(host, gpu, gpu.hangs, [each for each in suspected if each[1].gpu_key in places])
    if 2 * len(crashes) > gpu.weight:
        return _of_crashes(host, gpu, crashes, lead)
    xid = (host_commands.xid(),) if crashes else ()
    return Pointer(lead, *_check(host, gpu), (host_commands.gpu(gpu.selector), *xid))


def _of_hangs(host: str, gpu: Gpu, hangs: Sequence[Fault], suspected: Sequence[Fault]) -> Pointer:
    every = [*hangs, *suspected]
    function = common_function(every)
    also = also_suspected(suspected)
    subject, verb = capital(gpu.of_ranks), "hangs" if len(gpu.faulty_ranks) == 1 else "hang"
    if not function:
        found = f"{subject} on {host} {verb}, and no stack shows where: {gpu.history()}{also}."
        unseen = max((i for i, _ in every if i.open), key=lambda i: i.opened_at, default=None)
        of = "the next hang" if unseen is None else unseen.job_id
        where = f": they show where {gpu.of_ranks} {verb}"
        return Pointer(found, f"Capture the stacks of {of} first", where, *_stack(gpu))
    found = f"{subject} on {host} {verb} in {function}: {gpu.history()}{also}."
    reads = reads_input(function)
    place = f"the storage and the data loader of {host}" if reads else f"what {function} waits for"
    stack, process = _stack(gpu)
    commands = (*(host_commands.storage() if reads else ()), *stack)
    return Pointer(found, f"Look at {place}", _same_rank(every), commands, process)


def _of_crashes(host: str, gpu: Gpu, crashes: Sequence[Fault], lead: str) -> Pointer:
    newest, culprit = max(crashes, key=lambda fault: fault[0].opened_at)
    [(cause, times)] = Counter(each.cause for _, each in crashes).most_common(1)
    lead += " The error is the same each time." if times == len(crashes) else ""
    found = look(crash_of(culprit._replace(cause=cause), newest, [each for each, _ in crashes]))
    of_job = found.points_to in _OF_JOB
    brief = f"{newest.job_id}: {found.clause}" if of_job else found.clause
    gpu_commands = (host_commands.gpu(gpu.selector), host_commands.xid())
    match found.points_to:
        case ErrorClass.DEVICE:
            return Pointer(lead, *_check(host, gpu), found.commands)
        case ErrorClass.KERNEL if times == len(crashes) and (several := _jobs_at_different_steps(crashes)):
            brief = f"Check {gpu.name} of {host} for errors"
            why = f": the same error struck it in {several} jobs after different steps"
            none = ", so one bad batch does not explain it. If it has none, run again with CUDA_LAUNCH_BLOCKING=1"
            return Pointer(lead, brief, why + none, gpu_commands, check=(brief, why))
        case ErrorClass.KERNEL:
            more = f"{found.more}. If another rank fails on {gpu.name} too, it is the GPU: check it for errors"
            return Pointer(lead, brief, more, gpu_commands, of_job=True)
    return Pointer(lead, brief, found.more + _same_rank(crashes), found.commands, of_job=of_job)


def _jobs_at_different_steps(crashes: Sequence[Fault]) -> int:
    """The number of jobs, if no step is common to the crashes of all of them; 0: one is, or it is one job."""
    steps: dict[str, set[int | None]] = {}
    for incident, _ in crashes:
        steps.setdefault(incident.job_id, set()).add(incident.furthest_iteration)
    return 0 if len(steps) < 2 or set.intersection(*steps.values()) else len(steps)


def _check(host: str, gpu: Gpu) -> tuple[str, str]:
    again = f"; if it has any, or a job fails on it again, give {host} no further job"
    return f"Check {gpu.name} of {host} for errors", again


def _same_rank(faults: Sequence[Fault]) -> str:
    jobs = {incident.job_id for incident, _ in faults}
    if len(jobs) < 2 or len({culprit.rank for _, culprit in faults}) > 1:
        return ""
    which = "both" if len(jobs) == 2 else f"all {len(jobs)}"
    return f". It is the same rank in {which} jobs: data or code may be the cause too"


def _stack(gpu: Gpu) -> tuple[tuple[str, ...], str]:
    """The command that shows where a rank on the GPU hangs, and which one that is."""
    for each in gpu.ranks:
        if each["state"] in _STUCK and each["pid"]:
            return (host_commands.stack(each["pid"]),), f"rank {each['rank']} of {each['job']}"
    return (), ""
