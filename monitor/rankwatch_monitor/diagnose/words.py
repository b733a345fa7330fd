"""What is said of a job that nobody watched, beyond what the core's words say of every job."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple, assert_never

from rankwatch.cli.formatting import capital, count, duration, whole_percent
from rankwatch.cli.formatting import ranks as as_ranges
from rankwatch.contract.diagnosis import Gpu, Hindrance, Obstacle, SeenExit, SeenRank
from rankwatch.contract.enums import Proof, WaitKind
from rankwatch_monitor.core.cause import Detection, Exited, Shown, Site, Unnamed
from rankwatch_monitor.core.views.advice.record import Advice, Step
from rankwatch_monitor.core.words import sentence
from rankwatch_monitor.core.words.causes import at, place, unnamed
from rankwatch_monitor.core.words.sentence import Named
from rankwatch_monitor.diagnose.slow import Late, Row, Slowness

NOT_WATCHED: Final = "nobody watches this job"
TOO_LARGE: Final = "with the others here it claims more ranks than any job has; '--job NAME' looks at one alone"
MAX_PLACES: Final = 3


class Place(NamedTuple):
    """A call in which ranks wait for their peers."""

    function: str
    site: Site | None
    of_all: bool
    """Its arguments name no process group."""
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        """``ranks 0-2 in barrier() of all ranks called at train.py:41``."""
        of_all, called = (
            " of all ranks" if self.of_all else "",
            "" if self.site is None else f" called at {at(self.site)}",
        )
        return f"{named_ranks(self.ranks)} in {self.function}(){of_all}{called}"


def named_ranks(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0-2, 4``."""
    return f"rank{'' if len(ranks) == 1 else 's'} {as_ranges(ranks)}"


def hangs(culprits: Named, why_none: Unnamed | None, seen: Shown | None) -> str:
    """A hang that is proven."""
    proof = "" if seen is None else f" {sentence.shown(seen)}"
    if culprits:
        return sentence.also_to_blame("The job hangs", culprits) + proof
    none = "" if why_none is None else f": {''.join(unnamed(why_none))}"
    return f"The job hangs{none}.{proof}"


def healthy(ranks: int, world_size: int, seconds: float, working: int) -> str:
    """All ranks move."""
    who = "The rank moves" if ranks == 1 == world_size else f"All {ranks} ranks move"
    who = f"{count(ranks, 'rank')} of {world_size} was looked at, and moves" if ranks == 1 < world_size else who
    who = f"{ranks} of {world_size} ranks were looked at, and all of them move" if 1 < ranks < world_size else who
    works = f", and {working} used a processor" if working else ""
    return f"{who}: in {seconds:.1f} s none stood in a call that waits for its peers{works}."


def late(found: Sequence[Late], host: str, seconds: float, unseen: Sequence[int]) -> str:
    """Ranks for which the others wait."""
    first, others = found[0], [each.rank for each in found[1:]]
    text = (
        f"The job waits for rank {first.rank}{sentence.on(host)}: in {seconds:.0f} s it was in calls that wait for its "
        f"peers {whole_percent(first.waits.own)} of the time, its peers {whole_percent(first.waits.peers)}."
    )
    if first.rows:
        text += f" It spends {_more(first.rows[0])}."
    for name, measure, shown in (
        ("waits for a CPU", first.ready, first.lacks_cpu),
        ("is stopped by its CPU quota", first.throttled, first.is_throttled),
    ):
        if shown and measure is not None:
            text += f" It {name} {whole_percent(measure.own)} of the time (its peers {whole_percent(measure.peers)})."
    if first.reads_pages and first.faults is not None:
        text += f" It reads {first.faults.own:.0f} pages a second from a disk (its peers {first.faults.peers:.0f})."
    if first.is_remote and first.remote is not None:
        shares = f"{whole_percent(first.remote.own)} of the time (its peers {whole_percent(first.remote.peers)})"
        text += f" It runs on CPUs that are not those of its GPU's NUMA node {shares}."
    if first.is_clocked_down and first.clock is not None:
        text += f" Its GPU's clock is {first.clock.own / 1e6:.0f} MHz (its peers' {first.clock.peers / 1e6:.0f} MHz)."
    text += f" They wait for {named_ranks(others)}, too." if others else ""
    return text + (
        f" {capital(named_ranks(unseen))} {'was' if len(unseen) == 1 else 'were'} not seen." if unseen else ""
    )


def none_late(found: Slowness) -> str:
    """No rank is waited for all the time."""
    low, high = min(found.waits.values()), max(found.waits.values())
    same = whole_percent(low) == whole_percent(high)
    shares = whole_percent(low) if same else f"{whole_percent(low)} to {whole_percent(high)}"
    return f"No rank was late throughout: each waited for its peers {shares} of the time."


def row(found: Row) -> str:
    """Where a rank is, and whether it waits there."""
    return f"{'waits for its peers' if found.spot.waits else 'is'}{place(found.spot.site)}"


def make_faster(found: Late, host: str) -> Advice:
    """What to do about a late rank."""
    if found.is_throttled:
        step = Step(f"Raise the CPU quota of rank {found.rank}", ": its control group stops it", host=host)
    elif found.lacks_cpu:
        what = ": other processes use the CPUs of the rank"
        step = Step("See what else runs there", what, "top -b -n 1 -o %CPU", host)
    elif found.reads_pages:
        step = Step("See who uses the memory there", ": the rank reads pages from a disk", "free -h", host)
    elif found.is_remote:
        what = ": it runs far from its GPU; bind each rank to the CPUs of its GPU's NUMA node"
        step = Step("See which CPUs belong to which GPU", what, "nvidia-smi topo -m", host)
    elif found.is_clocked_down:
        step = Step("See why its GPU is slow", ": heat, power, or a limit", "nvidia-smi -q -d CLOCK,PERFORMANCE", host)
    else:
        where = place(found.rows[0].spot.site) if found.rows else ""
        step = Step(f"Look at what rank {found.rank} does{where}", ": its peers wait for that", "", host)
    return Advice("slow", (step,))


def end_it(rank: SeenRank, host: str) -> Step | None:
    """End a job that hangs for good; None: no command is known that does."""
    if rank.slurm_job.isascii() and rank.slurm_job.isdigit():  # it is of an environment, and gets into a command
        return Step("End the job", ": it hangs for good", f"scancel {rank.slurm_job}")
    if rank.launcher_pid > 1:
        return Step("End the job", f" by its {rank.launcher}", f"kill {rank.launcher_pid}", host)
    return None


def go_on(pids: Sequence[int], host: str) -> Step:
    """Wake processes that a signal has stopped."""
    return Step("Let them go on", ": a signal has stopped them", f"kill -CONT {' '.join(map(str, pids[:64]))}", host)


def _more(found: Row) -> str:
    return f"{whole_percent(found.own)}{place(found.spot.site)}, its peers {whole_percent(found.peers)}"


def nothing_seen(ranks: int) -> str:
    """There are ranks, and no stack of any."""
    return f"No stack of {'the rank' if ranks == 1 else f'the {ranks} ranks'} could be read, so nothing can be told."


def all_ended(ranks: int) -> str:
    """Nothing is left to look at, and nothing is known of how it ended."""
    who = "The rank ended" if ranks == 1 else f"All {ranks} ranks ended"
    return f"{who} while the job was looked at, and only its launcher knows how."


def all_stand(ranks: int, places: Sequence[Place], unseen: Sequence[int], seconds: float) -> str:
    """Every rank that was seen waits for its peers."""
    who = "The rank that was looked at waits" if ranks == 1 else f"All {ranks} ranks that were looked at wait"
    where = "; ".join(map(str, places[:MAX_PLACES])) + ("; and more" if len(places) > MAX_PLACES else "")
    text = f"{who} for {'its' if ranks == 1 else 'their'} peers and did not move in {seconds:.1f} s ({where})"
    if unseen:
        return (
            f"{text}; the cause is with {named_ranks(unseen)}, which {'was' if len(unseen) == 1 else 'were'} not seen."
        )
    if len(places) > 1:
        return f"{text}: they are in different calls, so no rank is named."
    return f"{text}: a transfer that takes long, their network or a device, so no rank is named."


def undecided(standing: Sequence[int], moving: Sequence[int], others: Sequence[int], unread: Sequence[int]) -> str:
    """Nothing decides it."""
    parts = []
    if standing:
        parts.append(f"{named_ranks(standing)} wait{'s' if len(standing) == 1 else ''} for their peers")
    if moving:
        parts.append(f"{named_ranks(moving)} move{'s' if len(moving) == 1 else ''}")
    if others := [rank for rank in others if rank not in unread]:
        parts.append(f"{named_ranks(others)} stood at one place, which may be work or a wait")
    if unread:
        parts.append(f"no stack of {named_ranks(unread)} could be read")
    return f"It cannot be told whether the job hangs: {'; '.join(parts) or 'nothing was seen of it'}."


def ends(shown: Proof, wait: WaitKind | None) -> str:
    """Whether what a job waits for ends by itself; empty: that is not known, or plain."""
    match shown:
        case Proof.STILL | Proof.STOPPED | Proof.WAITING:
            return "It does not end by itself."
        case Proof.BUSY:
            return "That may end by itself: an evaluation, a checkpoint and a compilation look like this, too."
        case Proof.MAY_END if wait is WaitKind.TIMED:
            return "A sleep ends by itself, if the program does not begin it again."
        case Proof.MAY_END | Proof.UNINTERRUPTIBLE:
            return "That may end by itself."
        case _:
            return ""


def ended(end: SeenExit) -> Exited | None:
    """The cause, where it is known how a process ended."""
    if end.code is None:
        return Exited(1, end.message) if end.message else None
    return Exited(end.code, end.message)


def crashed(
    found: Detection, cause: Exited | None, more: int, restarts: int, newest: SeenRank | None, *, follows: bool
) -> str:
    """A process ended while it was looked at."""
    rank, host = found.rank, found.host
    if cause is None:
        text = f"The process of rank {rank}{sentence.on(host)} ended first; how, only its launcher knows."
    else:
        text = sentence.sentence(found, [(rank, host, cause)], None)
    if follows:
        text += " It lost its connection to another rank, which had ended before anybody looked."
    if more:
        text += f" {more} more process{'' if more == 1 else 'es'} ended after it."
    if newest is not None and restarts and newest.age < 60:
        text += f" {restarted(restarts, newest.age, newest.launcher)}"
    return text


def restarted(restarts: int, age: float, launcher: str) -> str:
    """The ranks are restarted again and again."""
    who = launcher.capitalize() if launcher else "Their launcher"
    return f"{who} has restarted the ranks {count(restarts, 'time')}, the last time {duration(age)} ago."


def look_again(unseen: Sequence[int], silent: Sequence[str]) -> Advice:
    """What to do while nothing is proven."""
    if silent:
        step = Step(f"See why {', '.join(silent[:3])} did not answer", ": what runs there may be the cause")
    elif unseen:
        step = Step(
            f"Look at {named_ranks(unseen)} too",
            ": run it on their nodes, and read all reports",
            "rankwatch diagnose --hosts HOST,HOST",
        )
    else:
        step = Step("Look again in a minute", ": what still stands there then hangs", "rankwatch diagnose --seconds 60")
    return Advice("look_again", (step,))


def xids(found: Sequence[tuple[int, str, Sequence[int]]]) -> str:
    """What the driver has reported of the GPUs of ranks: rank, host, numbers."""
    parts = [f"rank {rank}{sentence.on(host)} has reported XID {', '.join(map(str, of))}" for rank, host, of in found]
    more = f", and {len(parts) - MAX_PLACES} more" if len(parts) > MAX_PLACES else ""
    return f"The GPU of {'; that of '.join(parts[:MAX_PLACES])}{more}."


def guessed(found: Sequence[tuple[int, int]]) -> str:
    """That nothing tells which rank a process is: rank, process."""
    parts = [f"rank {rank} is process {pid}" for rank, pid in found[:MAX_PLACES]]
    return f"Nothing tells their numbers, so they are numbered in the order of their start: {', '.join(parts)}."


def gpu(rank: int, found: Gpu, peers: Sequence[Gpu]) -> str:
    """The readings of a rank's GPU, beside those of its peers."""
    parts = []
    if found.utilization is not None:
        known = [each.utilization for each in peers if each.utilization is not None]
        beside = f" (its peers' {whole_percent(median(known))})" if known else ""
        parts.append(f"a kernel runs {whole_percent(found.utilization)} of the time{beside}")
    if found.memory_used is not None and found.memory_total:
        parts.append(f"{found.memory_used / 1e9:.0f} of {found.memory_total / 1e9:.0f} GB in use")
    if found.clock is not None:
        known = [each.clock for each in peers if each.clock is not None]
        beside = f" (its peers' {median(known) / 1e6:.0f})" if known else ""
        parts.append(f"clock {found.clock / 1e6:.0f} MHz{beside}")
    if found.throttled:
        parts.append(f"held down by {', '.join(found.throttled)}")
    if found.xids:
        parts.append(f"XID {', '.join(map(str, found.xids))}")
    return f"GPU of rank {rank}{f' ({found.name})' if found.name else ''}: {', '.join(parts) or 'not read'}."


def obstacle(found: Obstacle) -> str:
    """What could not be read, and what would let it."""
    of = f" of {len(found.pids)} process{'es' if len(found.pids) > 1 else ''}" if found.pids else ""
    match found.kind:
        case Hindrance.NO_PY_SPY:
            return "Not seen: stacks, since py-spy is not installed here ('pip install py-spy')."
        case Hindrance.NOT_TRACED:
            return (
                f"Not seen: stacks and waits{of}. Run it as root, in a container with the capability SYS_PTRACE "
                "(docker: --cap-add SYS_PTRACE), or set kernel.yama.ptrace_scope to 0."
            )
        case Hindrance.NO_SYSTEM_CALLS:
            return f"Not seen: what threads{of} wait for; the kernel or sandbox does not tell (as root it may)."
        case Hindrance.OTHER_USERS:
            return f"Not looked at: Python processes of other users ({len(found.pids)}); run as root, it sees all."
        case Hindrance.TOO_LARGE:
            return f"Cut or left out: what was seen{of}, since it is too large for a report."
        case Hindrance.HIDDEN:
            return "Processes of other users are hidden (hidepid); run as root, it sees all."
        case Hindrance.NO_GPU_READINGS:
            return f"Not seen: GPUs{of}: {found.detail.rstrip('.')}."
        case Hindrance.NO_KERNEL_LOG:
            return (
                "Not seen: XIDs from before the first look, since the kernel's log is for root "
                "(docker: --device /dev/kmsg --cap-add SYSLOG)."
            )
        case Hindrance.NOT_READ:
            return f"Not looked at: the memory{of}, which could not be read in time; they may be ranks."
        case Hindrance.NO_NATIVE_FRAMES:
            return f"Not seen: native frames{of}: stopped, or not read within the time they may be stopped for it."
        case _:
            assert_never(found.kind)


def no_ranks(nodes: int, failed: Sequence[tuple[str, str]], obstacles: Sequence[Obstacle]) -> list[str]:
    """Nothing was found on the nodes."""
    where = "here" if nodes == 1 and not failed else f"on {count(nodes, 'node')}"
    made = [
        f"CANNOT TELL: no rank was found {where}: no Python process has a rank in its environment",
        "(RANK and WORLD_SIZE, MPI's, Slurm's), or is one of several with torch below a launcher.",
        "'--pid PID' looks at any process.",
    ]
    made += [f"No report of {host}: {why}." for host, why in failed[:8]]
    return made + [obstacle(each) for each in obstacles[:4]]
