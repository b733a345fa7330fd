"""What ``rankwatch diagnose`` has seen of one node: its collector prints it as JSON, and the verdict is made of it.

The collector runs on each node of a job, by ssh or a scheduler, and may be of another version than the reader.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rankwatch.contract.messages import Frame, RankLog, RankStack
from rankwatch.contract.nccl_ras import RasReport


class Hindrance(StrEnum):
    """Why a node could not be seen as a whole."""

    NO_PY_SPY = "no_py_spy"
    """The program is not installed, so that no Python stack is known."""
    NOT_TRACED = "not_traced"
    """The kernel refuses to read the memory of these processes: no stacks, no waits."""
    NO_SYSTEM_CALLS = "no_system_calls"
    """It does not tell which system call a thread is in, so that waits are not known."""
    OTHER_USERS = "other_users"
    """There are Python processes of other users, whose environment this user may not read."""
    TOO_LARGE = "too_large"
    """There is so much to say of these processes that it was cut, or that they were left out."""
    HIDDEN = "hidden"
    """Processes of other users are not listed (``hidepid``)."""
    NO_GPU_READINGS = "no_gpu_readings"
    """There is a driver of NVIDIA, and NVML reads nothing."""
    NO_KERNEL_LOG = "no_kernel_log"
    """The kernel's log may not be read, so that XIDs from before the first look are not known."""
    NOT_READ = "not_read"
    """What these processes have in their memory could not be read in time: whether they are ranks is not known."""
    NO_NATIVE_FRAMES = "no_native_frames"
    """They were asked for, and these processes do not run, or could not be read within the time they may be stopped."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What could not be read, and of which processes."""

    kind: Hindrance
    pids: tuple[int, ...] = ()
    detail: str = ""
    """In the words of the program that failed."""


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """Another thread than the main one that runs Python."""

    name: str
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Gpu:
    """The GPU of a rank, by NVML: the last reading."""

    name: str
    utilization: float | None = None
    """0 to 1: the mean of the readings."""
    memory_used: float | None = None
    memory_total: float | None = None
    """Bytes."""
    power: float | None = None
    """Watts."""
    clock: float | None = None
    clock_limit: float | None = None
    """Hertz."""
    throttled: tuple[str, ...] = ()
    xids: tuple[int, ...] = ()
    """What the driver has reported of it since the rank was started."""
    numa_node: int | None = None
    """The part of the memory that it is attached to."""


@dataclass(frozen=True, slots=True)
class Profiled:
    """A stack that samples have found."""

    frames: tuple[int, ...]
    """Innermost first, by their places in :attr:`Profile.frames`."""
    samples: int


@dataclass(frozen=True, slots=True)
class Profile:
    """Where a rank's main thread spends its time. Shares are of the whole time, 0 to 1; None: not known."""

    frames: tuple[Frame, ...]
    slices: tuple[tuple[Profiled, ...], ...]
    """Consecutive parts of the time."""
    running: float | None = None
    """On a CPU."""
    ready: float | None = None
    """Ready to run, and no CPU was free."""
    throttled: float | None = None
    """Stopped by the CPU quota of its control group."""
    faults: float | None = None
    """Pages a second that were read from a disk: swapped out, or of a mapped file."""
    numa_nodes: tuple[tuple[int, float], ...] = ()
    """Parts of the memory beside whose CPUs the main thread was seen, and how often; only where there are several."""


@dataclass(frozen=True, slots=True)
class Called:
    """The arguments of the collective or message in which a rank stands."""

    of_all: bool = False
    """They name no process group: it is one of all ranks."""
    group: str = ""
    """The variable of the script that holds the process group; empty: not known."""
    place: int = -1
    size: int = 0
    """The rank's place in the process group, and its size, as they stand where this version of torch has them: to be
    held against those of calls of all ranks."""
    peer: int = -1
    """The rank whose message it waits for, or that takes its message; -1: any, or not known."""


@dataclass(frozen=True, slots=True)
class RankProcess:
    """What is known of a rank's process without a look at what it does."""

    pid: int
    job: str
    """The same for all ranks of a user's job: the run's id, or the address of its store."""
    rank: int
    world_size: int = 0
    """0: unknown."""
    local_rank: int = -1
    local_world_size: int = 0
    attempt: int = 0
    """How often the ranks were restarted before this process was started."""
    max_restarts: int = -1
    """-1: unknown."""
    age: float = 0.0
    """Seconds since its process was started."""
    launcher: str = ""
    """The program that started it: ``torchrun``, ``srun``; empty: unknown."""
    launcher_pid: int = 0
    """Of :attr:`launcher`; 0: unknown."""
    guessed: bool = False
    """Nothing tells its number: ranks of this node are numbered in the order of their start."""
    user: int = -1
    """Number of the process's user: what another one calls by the same name is another job. -1: unknown."""
    slurm_job: str = ""
    """The Slurm job that it is part of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRank(RankProcess):
    """One rank, after the last look at it."""

    stack: RankStack
    """Of its main thread, with what several looks at its processes show."""
    threads: tuple[ThreadStack, ...] = ()
    log: RankLog | None = None
    """The end of its output, where that is a file."""
    gpu: Gpu | None = None
    profile: Profile | None = None
    called: Called | None = None
    """What it stands in, where all ranks of the node stand; None: not known."""
    native: tuple[Frame, ...] = ()
    """Of its main thread, with those of libraries, where they were asked for; line 0."""


@dataclass(frozen=True, slots=True)
class SeenExit:
    """The process of a rank ended while it was looked at, or had ended before."""

    job: str
    rank: int
    pid: int = 0
    attempt: int = 0
    age: float | None = None
    """Seconds since then; None: it had ended before the first look."""
    code: int | None = None
    """The exit code, or minus the signal; None: only its parent knows."""
    message: str = ""
    """The first line of its exception."""
    user: int = -1


@dataclass(frozen=True, slots=True)
class SeenNccl:
    """What NCCL itself reported of a job, by a rank of this node."""

    job: str
    report: RasReport
    user: int = -1


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What the collector has seen of one node."""

    host: str
    at: float
    """Unix seconds of the last look, by the node's own clock."""
    seconds: float
    """From the first look to the last."""
    ranks: tuple[SeenRank, ...] = ()
    exits: tuple[SeenExit, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()
    nccl: tuple[SeenNccl, ...] = ()
    version: int = 1
