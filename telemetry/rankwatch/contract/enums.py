"""Enumerations shared by ranks, launchers and monitor: states, verdict kinds, culprit classes, actions."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class JobState(StrEnum):
    """State of a job: the one word for it in API, page, terminal, metrics and messages."""

    STARTING = "starting"
    """Known, but no rank has reported progress in this attempt yet."""
    RUNNING = "running"
    SUSPECTED = "suspected"
    """It runs, and a limit that is not configured was passed: it may still make progress."""
    SLOW = "slow"
    """It runs, and loses time to a slow rank, stage or link, or to its workload."""
    NO_STEP = "no step"
    """It runs, and completes no step; no incident is open."""
    HUNG = "hung"
    """An incident is open and no action has been taken yet."""
    RESTARTING = "restarting"
    """A restart was ordered or begun, or follows a crash; no new step has been seen since."""
    STOPPING = "stopping"
    """Its ranks are being stopped: an order is carried out, or no restart follows a crash."""
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"
    """Ended on request of a person or a policy, or by preemption."""
    LOST = "lost"
    """No report of any rank or launcher for longer than the silence limit."""


class RankState(StrEnum):
    """State of a rank, as far as it is known. The position is the byte that the live grid sends."""

    UNSEEN = "unseen"
    """Never reported in this attempt."""
    RUNNING = "running"
    WAITING = "waiting"
    """Past a limit, but only because it waits for another rank."""
    HUNG = "hung"
    """Past a limit, and to blame or not distinguishable from the others."""
    SILENT = "silent"
    STOPPED = "stopped"
    """The process is stopped by a signal or a debugger (state T in /proc)."""
    DEAD = "dead"
    FINISHED = "finished"
    SUSPECTED = "suspected"
    """As hung, but by a limit that is not configured, and not confirmed: it may still make progress."""
    ENDED = "ended"
    """Its job has failed, was stopped, or lost a rank; how its own process ended is not known."""


class VerdictKind(StrEnum):
    """What was found wrong with a rank."""

    NEVER_STARTED = "never_started"
    HEARTBEAT_OVERRUN = "heartbeat_overrun"
    SECTION_OVERRUN = "section_overrun"
    OUT_OF_SECTION_OVERRUN = "out_of_section_overrun"
    SILENT = "silent"
    PROCESS_EXITED = "process_exited"
    NODE_LOST = "node_lost"
    """A launcher and all its ranks stopped reporting together."""
    STALLED = "stalled"
    """The ranks are alive and no step completes. A suspicion that only proof confirms."""
    STRAGGLER = "straggler"
    """A rank made the others wait, and the policy is to act on it; without an action there is no incident."""
    WRONG_RESULT = "wrong_result"
    """A rank has rejected a result of its own (:mod:`rankwatch.rerun`)."""
    RESTARTED_IN_PROCESS = "restarted_in_process"
    """A rank's training function failed and was restarted in the same process (:mod:`rankwatch.inprocess`)."""
    ORDERED = "ordered"
    """Nothing is wrong: an action was requested by a person, and is recorded like any other incident."""


class CulpritClass(StrEnum):
    """Why a rank is to blame."""

    DEAD = "dead"
    STOPPED = "stopped"
    GIL_HELD = "gil_held"
    HOST_SILENT = "host_silent"
    NEVER_STARTED = "never_started"
    BEHIND = "behind"
    """Alive, but behind the others, which wait for it."""
    DEVICE_OR_NETWORK = "device_or_network"
    """Its process is stuck in the kernel: a device, a file system or the network of its node does not answer."""
    STRAGGLER = "straggler"
    """Alive and moving, but slower than its peers, which wait for it in every step."""
    WRONG_RESULT = "wrong_result"
    """It has rejected a result of its own; its reason is the message."""


class WaitKind(StrEnum):
    """What a thread waits for, as the kernel and its stack show it, and with that whether the wait ends by itself."""

    THREAD = "thread"
    """For another thread of its process (a lock, a queue, a join), by which it can be woken and by nothing else. As the
    wait of a rank: no thread and no child of it will."""
    TIMED = "timed"
    """It wakes by itself: a sleep, or a wait with a time limit for nothing else that is known."""
    CHILD = "child"
    FILE_LOCK = "file_lock"
    SOCKET = "socket"
    """For an answer over a socket whose other end is no rank of the job."""
    PIPE = "pipe"
    EVENT = "event"
    """For what anybody may cause: a signal, a change of a file, a semaphore of another process."""
    TERMINAL = "terminal"
    """For input of a person."""
    DEBUGGER = "debugger"
    """A debugger has stopped it."""
    STORAGE = "storage"
    DEVICE = "device"
    PEERS = "peers"
    """For other ranks of the job."""
    STOPPED = "stopped"
    """For a child that is stopped by a signal."""
    RUNNING = "running"
    """It ran while it was looked at."""
    UNKNOWN = "unknown"
    """The kernel does not tell: another architecture, a sandbox, no permission."""


class Proof(StrEnum):
    """What several looks at a suspected rank showed of it; the position is its code in columns over ranks."""

    UNDECIDED = "undecided"
    """Too few looks, or neither of the others: it polls, its processor is taken."""
    BUSY = "busy"
    """Its stack moves, or it or its children burn CPU or move bytes."""
    STILL = "still"
    """It stands outside every call that waits for peers, and nothing in its process or its children will wake it."""
    WAITING = "waiting"
    """It stands still in a call that waits for peers."""
    STOPPED = "stopped"
    """Its process is stopped by a signal (state T)."""
    UNINTERRUPTIBLE = "uninterruptible"
    """It stands still in the kernel (state D): storage or a device may still answer."""
    SPINNING = "spinning"
    """It burns CPU at one place: on a GPU a wait, else after minutes an endless loop."""
    STALLED = "stalled"
    """Of a job, not of a rank: its ranks move and complete no step, for longer than the confirmation window."""
    MAY_END = "may_end"
    """It waits for something that may end by itself: a time, a child, an answer, a lock of another process."""
    DEBUGGED = "debugged"
    """A person has stopped it in a debugger."""
    SUSPENDED = "suspended"
    """Of a job: all its ranks are stopped (state T), as by a scheduler."""
    TRANSPORT = "transport"
    """Of a job: all ranks have entered the same collective, which does not complete."""


class LimitSource(StrEnum):
    """Where a limit in force comes from."""

    CONFIGURED = "configured"
    """Exceeding it is acted on at once."""
    DEFAULT = "default"
    """The policy's default, which no one chose for this job."""
    LOADED = "loaded"
    """Learned in an earlier run and read from its ``ft_state.json``."""
    LEARNED = "learned"
    """Learned in this run."""
    FIRST_TIME = "first_time"
    """The rank has no observed durations yet: the policy's ``first_time_timeout``."""

    @property
    def acts_at_once(self) -> bool:
        """Whether exceeding such a limit needs no confirmation."""
        return self is LimitSource.CONFIGURED


class Action(StrEnum):
    """Actions on an incident, by policy or on request of a person."""

    LOG = "log"
    """Record it, with stacks; a straggler without them."""
    CAPTURE = "capture"
    RESTART = "restart"
    RESTART_EXCLUDING_NODE = "restart_excluding_node"
    """Restart without the nodes of the culprits, or of the ranks that the order names."""
    SAVE_AND_STOP = "save_and_stop"
    STOP = "stop"


RESTARTS: Final = (Action.RESTART, Action.RESTART_EXCLUDING_NODE)
"""Actions that restart the ranks."""


class RankRequestKind(StrEnum):
    """What a rank can request of its launcher."""

    EXCLUDE_NODE = "exclude_node"
    """Restart without the node of this rank."""
    STOP_JOB = "stop_job"
    """Save if possible, and stop."""
    CHANGE_POLICY = "change_policy"
    """Change settings of the job's policy."""
    TELL = "tell"
    """Record a notice: see :class:`NoticeKind`."""


class NoticeKind(StrEnum):
    """Notices of a rank about itself; all but the last are :class:`VerdictKind` too."""

    WRONG_RESULT = "wrong_result"
    """It has rejected a result of its own."""
    RESTARTED_IN_PROCESS = "restarted_in_process"
    """It restarted its training function within the process."""
    LAST_WORDS = "last_words"
    """Why its process is about to end; no incident of its own, but the reason of the exit that follows."""


class NoRestart(StrEnum):
    """Why no restart follows a failure, as a launcher decided it."""

    FAILED_AT_START = "failed_at_start"
    """All ranks failed alike before the first step."""
    SCRIPT_BROKEN = "script_broken"
    """The script cannot be imported."""
    SCRIPT_MISSING = "script_missing"
    RESULT_REJECTED = "result_rejected"
    """A rank rejected a result of its own."""
    RESUME_ELSEWHERE = "resume_elsewhere"
    """A result is to be checked on another node, and there is none, or no restart is left."""
    NO_PROGRESS = "no_progress"
    """Several attempts in a row got no further than an earlier one."""
    DETERMINISTIC = "deterministic"
    """Attempts in a row ended alike at the same step."""
    USED_UP = "used_up"
    """No restart is left."""
    NOT_ALLOWED = "not_allowed"
    """The job may take none."""
    NO_OTHER_NODE = "no_other_node"
    """A node was excluded, and no other one is there."""


class NodeRole(StrEnum):
    """Role of a launcher in its job."""

    ACTIVE = "active"
    """It runs ranks, or is about to."""
    SPARE = "spare"
    """It waits to replace a node."""
    PARKED = "parked"
    """It was excluded, and stays only because it may host the store."""


class DirectiveKind(StrEnum):
    """What the monitor may request of a launcher."""

    CAPTURE = "capture"
    RESTART = "restart"
    SAVE_AND_STOP = "save_and_stop"
    STOP = "stop"
    SETTINGS = "settings"
    """New settings for the slots of the ranks: limits in force, intervals."""
    TELL = "tell"
    """Show an event on the console: a suspicion, a hang that nothing is done about, what is over, a slow rank."""


class ConsoleWord(StrEnum):
    """What a line on a launcher's console is about, in at most seven letters."""

    SUSPECT = "SUSPECT"
    WENT_ON = "WENT ON"
    """A suspicion, or a hang that nothing was done about, ended by itself."""
    HANG = "HANG"
    CRASH = "CRASH"
    RESTART = "RESTART"
    """For another reason than a hang or a crash."""
    BACK = "BACK"
    """The first new step after a restart, or a slow rank that is as fast as its peers again."""
    SLOW = "SLOW"
    SAVE = "SAVE"
    """All ranks are to save and stop."""
    STOP = "STOP"
    DONE = "DONE"
    STOPPED = "STOPPED"
    """The end of a job that was stopped or preempted."""
    FAILED = "FAILED"


class AckState(StrEnum):
    """What became of a directive on one launcher."""

    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"
    SUPERSEDED = "superseded"
    """The launcher is already past the attempt that the directive names."""


class ProcessEventKind(StrEnum):
    """Events of a launcher and of its ranks' processes."""

    STARTED = "started"
    """The rank's process was started; carries rank, local rank and pid."""
    EXITED = "exited"
    """The rank's process ended; carries the exit code or the signal."""
    RESTARTING = "restarting"
    """The launcher stops its ranks to start a new attempt; carries the reason."""
    NODE_LOST = "node_lost"
    """Heartbeats of another node timed out; carries its name as ``lost_node``."""
    STOPPING = "stopping"
    """The ranks were asked to save and stop, by a signal or a rank; carries the reason."""
    NOTICE = "notice"
    """A rank recorded a notice; carries its kind and reason."""
    FINISHED = "finished"
    """All ranks of this launcher ended with exit code 0."""
    FAILED = "failed"
    """The launcher gives up; carries the reason."""
    STOPPED = "stopped"
    """The launcher ended its ranks on request; carries the reason."""


class ProcessState(StrEnum):
    """A rank's process as /proc shows it, reported by its launcher."""

    ALIVE = "alive"
    STOPPED = "stopped"
    UNINTERRUPTIBLE = "uninterruptible"
    EXITED = "exited"
    UNKNOWN = "unknown"


class Part(StrEnum):
    """Parts of a step's time, which add up to it. Also the causes of a straggler."""

    DATA = "data"
    """Waiting for input: in a section for it, or in a data loader."""
    HOST = "host"
    """None of the others: Python, launches, logging, a CPU that was not given."""
    COMPUTE = "compute"
    """Kernels on the device (operators, where there is none), collectives left out."""
    COMMUNICATION = "communication"
    """In collectives that no computation covers: waiting for peers, and the transfer itself."""


class Cause(StrEnum):
    """What makes a straggler slow: the part that explains most of its excess."""

    DATA = "data"
    HOST = "host"
    COMPUTE = "compute"
    COMMUNICATION = "communication"
    UNEXPLAINED = "unexplained"


class StragglerVerdict(StrEnum):
    """What slows a job down."""

    HEALTHY = "healthy"
    SUSPECTED = "suspected"
    """The last windows show a rank late, too few of them, or too uncertainly, to name it."""
    WORKER = "worker"
    """One rank, or the ranks of one node: the others wait for them."""
    STAGE = "stage"
    """A pipeline stage has more work than the others: a property of the job, not of a node."""
    WORKLOAD = "workload"
    """Ranks are slow in turns, as with sequences of different lengths: a property of the job."""
    LINK = "link"
    """All members of a process group are slow in its collectives and none is late: the network between them."""
    UNEXPLAINED = "unexplained"
    NO_STEP = "no_step"
    """No step has completed although the ranks have run for a while: nothing shows that the job trains."""


class ScoreReference(StrEnum):
    """What a rank is compared with."""

    ROBUST = "robust"
    """The middle of its peers, judged against the noise of the job."""
    FASTEST = "fastest"
    """The fastest rank, as nvidia-resiliency-ext defines it."""


class KernelSource(StrEnum):
    """Where kernel timings come from."""

    AUTO = "auto"
    """CUPTI where there is a GPU and the package, torch's operator records where there is no GPU, else none."""
    CUPTI = "cupti"
    KINETO = "kineto"
    """torch's profiler, also on a GPU, where it synchronises the device at the end of each window."""
    OFF = "off"
