"""The GPUs of one host over all jobs: the ranks on each, its reading, and the faults of its ranks that jobs still hold.

A GPU is known by the UUID that a rank reports, else by the local rank: ranks of two jobs with one local rank then count
as ranks of one GPU, as they are on hosts of which each job has all GPUs.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rankwatch.cli.formatting import count
from rankwatch.contract.enums import Cause, CulpritClass
from rankwatch_monitor.core.hang import proof
from rankwatch_monitor.core.hang.verdict import Culprit
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.straggler.findings import Straggler, slow_in
from rankwatch_monitor.core.views import responses

UUID_SHOWN: Final = 12
"""Characters of a UUID in a sentence."""
_FAULTS: Final[Mapping[CulpritClass, tuple[str, str]]] = {
    CulpritClass.DEAD: ("crash", "crashes"),
    CulpritClass.WRONG_RESULT: ("wrong result", "wrong results"),
    CulpritClass.HOST_SILENT: ("silent", "silent"),
    CulpritClass.STRAGGLER: ("slow", "slow"),
}
OF_HOST: Final = (CulpritClass.HOST_SILENT, CulpritClass.STRAGGLER)
"""Not of one GPU, or counted as a slow rank."""
_NO_HANG: Final = (CulpritClass.DEAD, CulpritClass.WRONG_RESULT, CulpritClass.DEVICE_OR_NETWORK)
_INPUT: Final = re.compile(r"(^|_)(load|read|fetch|next)|data_?(set|load|iter)|get_batch|collate", re.IGNORECASE)
"""Functions that read input, by their names."""


Fault = tuple[Incident, Culprit]


@dataclass(slots=True)
class Gpu:
    """One GPU of a host."""

    number: int
    """The local rank of its ranks; -1: not known."""
    uuid: str
    faults: list[Fault] = field(default_factory=list)
    """Confirmed incidents whose culprit ran on it."""
    suspected: list[Fault] = field(default_factory=list)
    """Incidents that are not confirmed, whose suspect runs on it."""
    slow: list[tuple[str, Straggler]] = field(default_factory=list)
    """Ranks whose computation was slow on it, each with its job: input and host-side work are not the GPU's."""
    ranks: list[responses.GpuRank] = field(default_factory=list)
    """Ranks that run on it now: job, name of the job, rank, process and state."""
    reading: responses.Device | None = None
    """The newest of its ranks' readings."""
    slow_now: list[responses.GpuSlow] = field(default_factory=list)
    """Ranks on it that are slow now: job, name of the job, rank, since when, whether by the GPU, and in words."""

    @property
    def name(self) -> str:
        """``GPU 5``; where it is known by its UUID alone, ``GPU GPU-5c1f09ab``."""
        return f"GPU {self.number}" if self.number >= 0 else f"GPU {self.uuid[:UUID_SHOWN]}"

    @property
    def jobs(self) -> set[str]:
        """Jobs with a fault on it."""
        return {incident.job_id for incident, _ in self.faults} | {job for job, _ in self.slow}

    @property
    def weight(self) -> int:
        """How many faults there were on it; a slow rank counts once for each job."""
        return len(self.faults) + len({job for job, _ in self.slow})

    @property
    def selector(self) -> str:
        """What ``nvidia-smi -i`` takes: a UUID counts devices as the driver does, whatever a job makes visible."""
        return self.uuid or str(self.number)

    @property
    def faulty_ranks(self) -> list[int]:
        """The ranks of its faults, each once."""
        return list(dict.fromkeys([c.rank for _, c in self.faults] + [slow.rank for _, slow in self.slow]))

    @property
    def of_ranks(self) -> str:
        """``rank 5``, the rank of all its faults; several: the first of them, and how many more."""
        first, *others = self.faulty_ranks
        if len(others) > 1:
            return f"ranks {first} and {len(others)} more"
        return f"ranks {first} and {others[0]}" if others else f"rank {first}"

    @property
    def hangs(self) -> list[Fault]:
        """The hangs, if most of its faults are: what hangs is a rank, and the GPU need not be the cause."""
        found = [fault for fault in self.faults if fault[1].kind not in _NO_HANG]
        return found if 2 * len(found) > self.weight else []

    @property
    def place(self) -> str:
        """What its faults have in common: ``GPU 5, rank 5``; of hangs ``rank 13 in load_batch``."""
        if not self.hangs:
            return f"{self.name}, {self.of_ranks}"
        function = common_function(self.hangs)
        return f"{self.of_ranks} in {function}" if function else self.of_ranks

    @property
    def finding(self) -> str:
        """``GPU 5, rank 5: 5 crashes in 2 jobs, slow in 1``; of hangs ``rank 13 in load_batch: 2 hangs in 2 jobs``."""
        return f"{self.place}: {self.history()}"

    def on_host(self) -> str:
        """The same beside its name, of hangs ``rank 13 in load_batch (not the GPU): 2 hangs in 2 jobs``."""
        if not self.hangs:
            return self.history()
        elsewhere = " (not the GPU)" if reads_input(common_function(self.hangs)) else ""
        return f"{self.place}{elsewhere}: {self.history()}{also_suspected(self.suspected)}"

    def history(self, *, other: bool = False) -> str:
        """``5 crashes in 2 jobs, slow in 1``; ``other``: in ``2 other jobs``; empty: nothing is known of it."""
        counts: dict[tuple[str, str], list[str]] = {}
        job = "other job" if other else "job"
        for incident, culprit in self.faults:
            counts.setdefault(fault_words(culprit.kind), []).append(incident.job_id)
        parts = [
            f"{len(jobs)} {one if len(jobs) == 1 else many} in {count(len(set(jobs)), job)}"
            for (one, many), jobs in sorted(counts.items(), key=lambda item: -len(item[1]))
        ]
        if slow := {job for job, _ in self.slow}:
            parts.append(f"slow in {len(slow) if parts else count(len(slow), job)}")
        return ", ".join(parts)

    def to_json(self) -> responses.NodeGpu:
        """For the API."""
        return {
            "name": self.name,
            "local_rank": self.number if self.number >= 0 else None,
            "uuid": self.uuid or None,
            "faults": len(self.faults),
            "slow": len({job for job, _ in self.slow}),
            "history": self.on_host(),
            "ranks": self.ranks,
            "slow_now": self.slow_now,
            "reading": self.reading,
        }


def also_suspected(faults: Sequence[Fault]) -> str:
    """``, 1 suspected``, after the faults that are confirmed; empty: none is."""
    return f", {len(faults)} suspected" if faults else ""


def common_function(hangs: Iterable[Fault]) -> str:
    """The function in which most of the ranks hang; empty: no stack shows one."""
    frames = (proof.own_frame(culprit.rank, incident.stacks.groups()) for incident, culprit in hangs)
    functions = Counter(frame.function for frame in frames if frame is not None)
    return functions.most_common(1)[0][0] if functions else ""


def reads_input(function: str) -> bool:
    """Whether a function reads input, by its name."""
    return _INPUT.search(function) is not None


def fault_words(kind: CulpritClass) -> tuple[str, str]:
    """What one fault of a kind is called, and several."""
    return _FAULTS.get(kind, ("hang", "hangs"))


def slow_by_host(jobs: Iterable[Job], since: float = -math.inf) -> dict[str, list[tuple[Job, Straggler]]]:
    """The slow ranks that jobs still hold, by host; ``since``: those that became slow from then on (unix seconds)."""
    found: dict[str, list[tuple[Job, Straggler]]] = {}
    for job in jobs:
        for each in () if job.rehearses else job.performance.stragglers:
            if each.since >= since:
                found.setdefault(each.host, []).append((job, each))
    return found


def gpus_of(
    host: str,
    named: Iterable[Incident],
    slow: Iterable[tuple[Job, Straggler]],
    parts: Sequence[responses.NodeJob] = (),
    suspected: Iterable[Fault] = (),
) -> list[Gpu]:
    """The GPUs of a host that a rank runs on or that a fault names, the one with the most faults first.

    Args:
        named: the incidents that name it.
        slow: the slow ranks on it, of :func:`slow_by_host`.
        parts: what each job runs there now, as in the view of a node.
        suspected: suspects on it, of incidents that are not confirmed.
    """
    found: dict[str, Gpu] = {}

    def at(number: int, uuid: str) -> Gpu | None:
        if number < 0 and not uuid:
            return None
        gpu = found.setdefault(uuid or str(number), Gpu(number, uuid))
        gpu.number = gpu.number if gpu.number >= 0 else number
        return gpu

    for part in parts:
        for row in () if part["over"] else part["ranks"]:
            if (gpu := at(-1 if row["local_rank"] is None else row["local_rank"], row["uuid"] or "")) is not None:
                job_id, name, rank = part["job"], part["verdict"]["name"], row["rank"]
                gpu.ranks.append({"job": job_id, "name": name, "rank": rank, "pid": row["pid"], "state": row["state"]})
                gpu.reading = max(filter(None, (row["device"], gpu.reading)), key=_read_at, default=None)
                if row["straggler"] is not None:
                    gpu.slow_now.append(_slow_now(job_id, name, rank, row["straggler"]))
    for incident in named:
        for culprit in incident.culprits:
            if culprit.host != host or culprit.kind in OF_HOST:
                continue
            if (gpu := at(culprit.local_rank, culprit.device)) is not None:
                gpu.faults.append((incident, culprit))
    for job, each in slow:
        if each.cause is Cause.COMPUTE and (gpu := at(*_place(job, each))) is not None:
            gpu.slow.append((job.id, each))
    waiting, shared = list(suspected), Counter(gpu.number for gpu in found.values())
    for gpu in found.values():
        gpu.suspected = [each for each in waiting if each[1].gpu_key in {gpu.uuid, str(gpu.number)}]
        if gpu.uuid and shared[gpu.number] > 1:  # local ranks of jobs that see different GPUs
            gpu.number = -1
    return sorted(found.values(), key=lambda gpu: (-gpu.weight, gpu.number, gpu.uuid))


def standing_out(gpus: Sequence[Gpu]) -> Gpu | None:
    """The GPU with several faults and more than any other; None: there is none. ``gpus``: the most faults first."""
    if not gpus or gpus[0].weight < 2 or (len(gpus) > 1 and gpus[1].weight == gpus[0].weight):
        return None
    return gpus[0]


def _slow_now(job: str, name: str, rank: int, slow: responses.SlowNow) -> responses.GpuSlow:
    cause = slow["cause"]
    elsewhere = " (not the GPU)" if cause in (Cause.DATA, Cause.HOST) else ""
    text = f"rank {rank} is slow{slow_in(cause)}{elsewhere}"
    by_gpu = cause is Cause.COMPUTE
    return {"job": job, "name": name, "rank": rank, "since": slow["since"], "by_gpu": by_gpu, "text": text}


def _read_at(reading: responses.Device) -> float:
    return reading["at"] or -math.inf


def _place(job: Job, slow: Straggler) -> tuple[int, str]:
    """The local rank of a slow rank and the UUID of its device, from the key of its device; -1 and "": not known."""
    device = slow.device.partition(" ")[0]
    before, _, number = device.rpartition("/")
    if before == slow.host and number.isdecimal():
        return int(number), ""
    columns, rank = job.columns, slow.rank
    if rank < len(columns) and columns.hosts[rank] == slow.host and columns.devices[rank] == device:
        return int(columns.local_rank_R[rank]), device
    return -1, device
