"""Types of the API's responses. The OpenAPI description and the page's ``types.ts`` are made from them.

Views return them, so that mypy checks every field; the dataclasses among them are records that views compute with.
Times are unix seconds, ages and durations are seconds; null: not known, where nothing else is stated.
``python scripts/reference.py`` writes ``types.ts``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NotRequired

# Of the standard library's ones pydantic takes those of Python 3.12 and later only.
from typing_extensions import TypeAliasType, TypedDict

from rankwatch.contract.enums import (
    Action,
    Cause,
    CulpritClass,
    JobState,
    LimitSource,
    NodeRole,
    Proof,
    RankState,
    ScoreReference,
    StragglerVerdict,
    VerdictKind,
    WaitKind,
)
from rankwatch.contract.node_checks import CheckState
from rankwatch_monitor.core import cause
from rankwatch_monitor.core.incident_record import Ended, Phase, Timeline, Withheld, Witness
from rankwatch_monitor.core.regression.attribution import PartChange
from rankwatch_monitor.core.regression.explain import SlowSpan
from rankwatch_monitor.core.slow_cause import LateRank
from rankwatch_monitor.core.straggler.findings import Finding, Straggler

# Named types of the description.
Dimension = TypeAliasType("Dimension", Literal["data", "tensor", "pipeline", "expert"])
Tone = TypeAliasType("Tone", Literal["bad", "waits", "warns", "calm", "over"])
HostState = TypeAliasType("HostState", Literal["suspect", "may be down", "partly silent", "up", "idle"])
SettingKind = TypeAliasType(
    "SettingKind", Literal["switch", "choice", "whole", "number", "share", "text", "seconds_by_name"]
)
SettingValue = TypeAliasType("SettingValue", bool | int | float | str | dict[str, float | None] | None)

# Advice ---------------------------------------------------------------------------------------------------------------


class Step(TypedDict):
    """What to do; ``command`` is run on ``host``, without one anywhere in the cluster."""

    text: str
    command: str
    host: str
    note: str
    """How the output of the command is to be read; empty: it is plain."""
    reads: int | None
    """The rank whose log it reads; null: it reads no log."""


@dataclass(frozen=True, slots=True)
class Order:
    """An order that a person may give now, with the words of its button."""

    action: Action
    words: str
    ranks: tuple[int, ...] = ()
    """Their nodes are left out."""
    hosts: tuple[str, ...] = ()
    """The same nodes, as far as they are known."""


class Advice(TypedDict):
    """The one advice about a job, which list, page, terminal and messages show."""

    rule: str
    """The row of the playbook."""
    slow: bool
    """It is about slow ranks, or a slow job."""
    text: str
    """In one line: the first step, or what is awaited until when."""
    waits: bool
    """No person is needed now."""
    steps: list[Step]
    """In their order; while it waits, what can be looked at meanwhile."""
    until: float | None
    """When what is awaited is due."""
    otherwise: Step | None
    """What is to be done if it has not come by then."""
    orders: list[Order]
    """The likeliest first."""
    proposed: bool
    """The steps advise the first order."""
    condition: str
    """When the first order is to be given: ``if it stays slow``; empty: now."""
    weighs_restart: bool
    """What a restart loses stands beside it."""
    notes: list[str]
    alternatives: list[str]
    """What follows from each output of the first command."""
    host: str
    """The node that it is about; empty: none, or several."""
    runbook: str
    """Page and section of the manual."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a log is: what shows it, on ``host`` or anywhere in the cluster; empty: not known."""

    command: str = ""
    host: str = ""
    note: str = ""
    """What to know before it is read, in a sentence; empty: nothing."""
    newest: bool = False
    """The run is not known: the command shows the newest in its folder."""


# Jobs -----------------------------------------------------------------------------------------------------------------


class Checkpoint(TypedDict):
    """The last one that is known."""

    step: int | None
    """After which step; null: the script counts none."""
    at: float
    exact: bool
    """An attempt loaded it: ``step`` is not only the least that it can be."""


class Repeated(TypedDict):
    """The crash with which a job failed, if the same one came before."""

    rank: int
    host: str
    times: int
    seconds: float
    cost: float
    lost_steps_s: float
    steps_lost: int
    step: int | None
    same_step: str | None
    text: str


class QuietHost(TypedDict):
    """Hosts that may be down: nothing is received of them, while others wait."""

    hosts: list[str]
    ranks: list[int]
    since: float
    """The last message of any of their ranks or launchers."""
    limit: float | None
    """Seconds until an incident names them; null: never."""
    other_jobs: int
    """Other jobs that are heard from each of these hosts, so that they are up; 0: one of them may be down."""
    headline: str


class NextAct(TypedDict):
    """What follows by itself: ``text`` and a countdown to ``due``, ``restart in`` 0:43; without one ``text`` alone."""

    text: str
    due: float | None


class Lost(TypedDict):
    """GPU time that an incident costs: ``seconds`` of so many ``gpus``; ``since``: it grows by the clock."""

    seconds: float
    since: float | None
    gpus: int
    steps: int | None
    """Thrown away by its restart."""


class Verdict(TypedDict):
    """What is stated of a job at one moment: made once, printed by all, derived by none."""

    name: str
    state: JobState
    tone: Tone
    """``bad``: a person is needed; ``waits``: what is needed follows by itself; ``warns``: it trains, with a loss."""
    headline: str
    """The state in at most 90 characters; empty of a job that simply runs."""
    title: str
    """The same in at most 160; never empty."""
    reason: str
    since: float | None
    """When its trouble began, or it ended; null: it is well."""
    detected: float | None
    """When its open incident was detected, or the one with which it failed."""
    elapsed: float | None
    limit: float | None
    """Of that incident: seconds that had passed, and which of them its limit allows."""
    place: IncidentPlace | None
    next: NextAct | None
    idle: int
    """Ranks for which no step completes."""
    lost: Lost | None
    iteration: int | None
    """The last step that the newest attempt completed."""
    goodput: float | None
    steps_lost: int | None
    """Of a job that stands: steps that were thrown away and not done again."""
    steps_at_risk: int | None
    """Of a job that stands: those after its last checkpoint."""
    restart_loses: str
    """``loses up to 39 steps``; empty: not known."""
    advice: Advice | None
    """What a person should do, or what happens by itself; null: nothing."""
    quiet_host: QuietHost | None
    verdict: StragglerVerdict
    """Cause of lost time."""
    open_incidents: int
    ended_at: float | None


class JobSummary(Verdict):
    """A job in the list."""

    id: str
    world_size: int
    ranks_reporting: int
    attempt: int
    checkpoint: Checkpoint | None
    iterations_per_second: float | None
    """Zero while no step completes."""
    step_seconds: float | None
    """While no step completes: how long one usually took."""
    started_at: float
    goodput_notes: list[str]
    """What stands beside goodput, in words."""
    waited: str
    """Of these: how much of it is lost waiting for slow ranks; empty: nothing."""
    unsaved: str
    """Of a finished job: the steps of which no save is known, in words; empty: none."""
    iteration_before: int | None
    """While an attempt after an incident has completed no step: the furthest step before."""
    last_heard: float | None
    """Of a lost job: when the last message of any rank or launcher arrived."""
    instrumented: bool
    observe_only: bool
    open_stragglers: int
    incidents: int
    no_restart: str
    """Of a failed job: why no restart followed; empty: not stated."""
    repeated: Repeated | None
    restarts: int
    max_restarts: int
    nodes_by_role: dict[NodeRole, int]
    monitor: NotRequired[str | None]
    """Of a job that another monitor on the same database may hold by now: always null."""


class JobElsewhere(TypedDict):
    """A job of another monitor on the same database; ``monitor`` is null while none holds it."""

    id: str
    name: str
    state: JobState
    reason: str
    world_size: int
    ranks_reporting: None
    attempt: int
    started_at: float
    goodput: None
    monitor: str | None


class Jobs(TypedDict):
    """The newest first."""

    jobs: list[JobSummary | JobElsewhere]


class Timeout(TypedDict):
    """One limit with its source; seconds."""

    what: str
    """``section``, or what else has a limit: ``heartbeat``, ``silence``."""
    section: str | None
    configured: float | None
    learned: float | None
    loaded: float | None
    in_force: float | None
    source: LimitSource | None
    """Null: no limit."""


class NodeCheck(TypedDict):
    """Result of one check of a node."""

    name: str
    state: CheckState
    reason: str | None
    """Null: it passed."""
    evidence: dict[str, str]
    text: str
    """Empty: it passed."""


class NodeChecked(NodeCheck):
    """A node that failed a check."""

    node: str
    host: str


class Launcher(TypedDict):
    """One launcher and its role in the job."""

    node: str
    host: str
    launcher_pid: int
    local_world_size: int
    min_nodes: int | None
    """Nodes without which no attempt starts."""
    last_seen: float
    last_seen_age: float
    attempt: int
    ranks: list[int]
    role: NodeRole
    role_reason: str
    lost: str | None
    """Why the node was given up as lost; null: it is not lost."""
    topology: list[str]
    """Where its node is: labels, the widest first."""
    facts: dict[str, str]
    checks: list[NodeCheck]
    unfit: str
    """Why its node takes no part, by its checks; empty: it passes them, or they are switched off."""
    ended: str | None
    """How the launcher ended; null: it still runs."""
    ended_reason: str


class StepParts(TypedDict):
    """A step and its parts, medians over the ranks."""

    seconds: float
    parts: dict[str, float]
    waiting: float | None


class Vitals(TypedDict):
    """How a job trains now."""

    step: StepParts | None
    logged: dict[str, float | None]
    """The last values that the script logged, by name; null: not finite."""


class Durations(TypedDict):
    """What was observed of a section."""

    finished: int
    longest: float
    first: float | None


class Clause(TypedDict):
    """A clause; ``warns``: of steps that may not be saved."""

    text: str
    warns: bool


class JobDetail(JobSummary):
    """One job."""

    policy: dict[str, Any]
    timeouts: list[Timeout]
    nodes: list[Launcher]
    vitals: Vitals
    account: list[Clause]
    """How it trains, or has trained; empty of one in trouble."""
    unsaved_log: Place | None
    """Where a save of the last steps of a finished job may stand."""
    sections: dict[str, Durations]
    dropped: dict[str, int]
    stale_reports: int


class RankReport(TypedDict):
    """One rank."""

    rank: int
    local_rank: int | None
    host: str
    pid: int | None
    state: RankState
    iteration: int | None
    progress: int | None
    heartbeat_age: float | None
    report_age: float | None
    open_sections: dict[str, float]
    function: str | None
    """In which it hangs or waits; null: that is not known, or it does neither."""
    idle: float | None
    scores: dict[str, float]
    reason: str


class Ranks(TypedDict):
    """All ranks of a job, in their order."""

    ranks: list[RankReport]


class Window(TypedDict):
    """Goodput of the last hour; ``seconds``: how much of it is accounted for."""

    seconds: float
    ratio: float | None


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """A phase of an incident; ``end``: null while it goes on."""

    name: str
    begin: float
    end: float | None
    mark: str
    """What ends it: the field of the timeline, else ``closed``, ``given_up``, ``stopped``, ``last_heard``, or the state
    in which the job ended."""
    limit: float | None = None
    """Seconds of the detection in which a limit was waited for."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds that an incident costs; ``since``: it grows by the clock, null: it is final."""

    seconds: float
    since: float | None


class LedgerEntry(TypedDict):
    """What an incident took."""

    id: str
    kind: VerdictKind
    opened_at: float
    phases: list[PhaseRow]
    cost: Cost
    lost_steps_s: float | None
    steps_lost: int | None
    outcome: str


class Goodput(TypedDict):
    """How a job's time was spent."""

    ratio: float | None
    waited_for: str
    """``rank 21``: for which ranks the others waited; empty: for none."""
    notes: list[str]
    seconds: float
    window: Window
    buckets: dict[str, float]
    incidents: list[LedgerEntry]
    """The newest first."""


# Incidents ------------------------------------------------------------------------------------------------------------


Culprit = TypedDict("Culprit", {"rank": int, "host": str, "class": CulpritClass, "reason": str, "cause": cause.Cause})
"""A rank to blame."""


class RankWait(TypedDict):
    """What a rank waits for that does not wait for its peers."""

    rank: int
    kind: WaitKind
    target: str
    seconds: float | None
    """Until it ends, where that is known."""
    through: str


class IncidentPlace(TypedDict):
    """Where the first culprit is; ``function`` empty: no stack of it was captured."""

    function: str
    file: str
    line: int
    section: str | None


class OfHost(TypedDict):
    """What incidents of all jobs show of the host of an incident's first culprit, or of one that is quiet."""

    host: str
    text: str
    """``host-1 was named in 3 incidents of 2 jobs in 24 h, this one included.``; empty: not repeatedly."""
    suspect: str
    """Of an incident that is over: what to look at on the host; empty: nothing."""


class OfPlace(TypedDict):
    """The rack, switch or NVLink domain that all nodes of an incident's culprits are of, and few others."""

    label: str
    """``switch=s2``."""
    nodes: int
    of: int
    """Nodes of the job there."""
    text: str


class Incident(TypedDict):
    """An incident."""

    id: str
    job_id: str
    kind: VerdictKind
    attempt: int
    opened_at: float
    closed_at: float | None
    culprits: list[Culprit]
    affected: list[int]
    label: str
    """In a few words: ``rank 3 hung in load_batch``."""
    headline: str
    """At most 90 characters."""
    title: str
    """The headline with room for 160 characters."""
    detail: str
    """What ``reason`` states and ``title`` does not; empty: nothing."""
    sequel: str
    """The same without what the fields state: for how long, and past which limit, a rank had stood when detected."""
    of_place: OfPlace | None
    of_host: OfHost | None
    """Of an incident that is over only in its detail."""
    reason: str
    section: str | None
    limit: float | None
    limit_source: LimitSource | None
    """Where a limit comes from that may be configured or learned."""
    elapsed: float | None
    action: Action
    action_reason: str
    withheld: Withheld | None
    """Why nothing is done, or nothing that the policy wants."""
    exclude: list[str]
    phase: Phase
    confirmed: bool
    """False: a suspicion, raised by a limit that was learned or loaded instead of configured."""
    provisional: bool
    """Evidence is on its way: reason and culprits may change."""
    proof: Proof | None
    """Of a suspicion: what several looks at its ranks showed; null: nothing yet."""
    proof_reason: str
    waits: list[RankWait]
    acts_at: float | None
    """When a suspicion is acted on if it still holds; null: no time ends it, or it is confirmed."""
    restart_cost: float | None
    """Seconds that a restart would lose."""
    attempts_here: int
    """Earlier attempts that stood at the same place."""
    outcome: str
    ended: Ended | None
    timeline: Timeline
    phases: list[PhaseRow]
    cost: Cost
    place: IncidentPlace | None
    lost_steps_s: float | None
    """Seconds of the lost steps."""
    steps_lost: int | None
    furthest_iteration: int | None
    """The last step that any rank completed in its attempt."""
    node_checks: list[NodeChecked]
    """Nodes that failed a check while it was open."""


class Incidents(TypedDict):
    """The incidents of a job, the newest first."""

    incidents: list[Incident]


class StackFrame(TypedDict):
    """One frame of a stack."""

    function: str
    file: str
    line: int
    of_script: bool
    """It is of the training script and its own modules."""


class StackGroup(TypedDict):
    """Ranks with the same stack."""

    ranks: list[int]
    label: str
    frames: list[StackFrame]
    is_culprit: bool
    waits: bool
    process_state: str
    method: str
    """``traceback``: of the exception that ended the process, which is in ``note``."""
    note: str


class GroupProgress(TypedDict):
    """Ranks with equal progress in one process group, by the sequence numbers of its collectives."""

    group: str
    operation: str
    """Of the newest collective that the ranks have entered."""
    enqueued: int
    completed: int
    """-1: none."""
    ranks: list[int]


class StackError(TypedDict):
    """A rank without a stack."""

    rank: int
    error: str
    process_state: str


@dataclass(frozen=True, slots=True)
class ShownLog:
    """The end of a log of a rank that failed, or that there is none."""

    rank: int
    host: str
    stream: str
    """``stderr`` or ``stdout``; empty: nothing was received."""
    path: str
    lines: tuple[str, ...]
    title: str
    """``Log of rank 1``, ``Log of all ranks``, on its host."""
    text: str
    """What the lines are, or why there are none."""
    place: Place


class NcclAnswer(TypedDict):
    """What NCCL itself answered about the job's communicators when a launcher asked it."""

    node: str
    host: str
    version: str
    """Of NCCL."""
    accused: list[int]
    """Ranks that others wait for, by this answer alone."""
    witness: Witness
    text: str
    """Whom it accuses, beside whom the incident blames, in one sentence."""
    lines: list[str]
    """The answer."""


class FlightDumps(TypedDict):
    """Dumps of torch's flight recorder that are kept with an incident."""

    ranks: list[int]
    bytes: int
    """As they are stored, compressed."""
    path: str
    """Where they are read: a ZIP archive with a file of JSON for each rank."""


class FirstError(TypedDict):
    """The first error of one rank, or of several with the same text."""

    ranks: list[int]
    """The one that raised it first is the first."""
    host: str
    """Of the first."""
    text: str
    place: str
    at: float | None
    """When the first raised it; null: unknown."""


class CrashHead(TypedDict):
    """How a crash began: the first error of each rank by time, the ranks that only lost their peer folded."""

    errors: list[FirstError]
    lost_peer: list[int]
    text: str
    """How many lost their peer; empty: none."""


class OutputLog(TypedDict):
    """A part of what one rank printed."""

    rank: int
    host: str
    stream: str
    """``stdout``, ``stderr``, or ``output``: both, as they were printed."""
    path: str
    """Of the whole log, on that host."""
    lines: list[str]
    first: int
    """Bytes at the beginning that are no longer kept."""
    begin: int
    end: int
    """Where the part begins and ends, in bytes."""
    size: int
    """Bytes that were printed so far."""


class OutputGap(TypedDict):
    """A rank whose log could not be fetched."""

    rank: int
    host: str
    gap: str
    """Why, as a code."""
    path: str
    text: str
    """Why, as a clause."""
    place: Place
    """What shows the log."""


class RankOutput(TypedDict):
    """What ranks printed in one attempt, as their launchers answered."""

    job_id: str
    attempt: int
    newest: int
    """The newest attempt of the job."""
    ended: bool
    """The job has ended."""
    logs: list[OutputLog]
    gaps: list[OutputGap]
    recorded: list[ShownLog]
    """Of ranks with a gap: what an incident of the attempt holds of them."""
    left_out: int
    """Ranks of the attempt that were not asked for."""
    after: str
    """Where the next request goes on."""


class IncidentDetail(Incident):
    """One incident with its grouped stacks."""

    logs: list[ShownLog]
    advice: Advice | None
    crash: CrashHead | None
    """Null: no rank is known to have raised an error or to have been killed."""
    stack_groups: list[StackGroup]
    stack_errors: list[StackError]
    collectives: list[GroupProgress]
    flight_dumps: FlightDumps | None
    """Null: there are none, or no longer."""
    nccl: list[NcclAnswer]
    """Where NCCL could be asked (2.24 and newer): a second witness."""


# Performance ----------------------------------------------------------------------------------------------------------


class Throttle(TypedDict):
    """A throttled GPU."""

    rank: int
    gpu: str
    """``GPU 5``."""
    reasons: list[str]
    words: str
    since: float
    readings: str
    """``88 °C, 1.20 of 1.98 GHz``; may be empty."""


class Overall(TypedDict):
    """A score over all ranks."""

    min: float
    median: float
    max: float


class RankScores(TypedDict):
    """The scores of a rank."""

    rank: int
    host: str
    gpu_relative: float | None
    gpu_individual: float | None
    gpu_robust: float | None
    lateness: float | None
    """Seconds per step that the other ranks wait for this rank; negative: it waits for them."""
    lateness_share: float | None
    sections: dict[str, dict[str, float | None]]


@dataclass(frozen=True, slots=True)
class StatedLate(LateRank):
    """It with its sentence."""

    sentence: str


class Scores(TypedDict):
    """Scores and open stragglers."""

    at: float | None
    """When the scores were made; null: there are none yet."""
    gpu_at: float | None
    """When the kernel timings that the GPU scores are made of were reported; null: none were."""
    reference: ScoreReference
    """That stragglers are detected against."""
    processing_seconds: float | None
    overall: dict[str, Overall | None]
    """Over all ranks, by score; null: no rank has it."""
    lowest: dict[str, int | None]
    """The rank with the lowest score, by score; null: no rank has it."""
    ranks: list[RankScores]
    stragglers: list[Straggler]
    """Open ones, the costliest first."""
    finding: Finding
    """The verdict."""
    findings: list[Finding]
    """It, then all else that was found, by cost."""
    late: LateRank | None
    throttled: Throttle | None
    """What throttles the GPU of the costliest straggler; null: nothing."""
    cost_gpu_hours: float
    cost_rate: str
    """What the costliest straggler costs by the hour, and of what; empty: not known."""


class OfSlowHost(TypedDict):
    """The incidents about the costliest straggler's host in a day, as a sentence."""

    host: str
    text: str


class Live(Scores):
    """The worst ranks only; ``stragglers`` is truncated, and ``open`` their total number."""

    open: int
    of_host: OfSlowHost | None
    """Null: there were none."""
    ended: list[Straggler]


class Performance(Live):
    """The event ``performance`` of a job's stream."""

    grid: dict[str, str]
    """One byte a rank as base64, in units of 1/200; 255: not known."""


class Stragglers(TypedDict):
    """Open ones, the costliest first, then those that ended."""

    stragglers: list[Straggler]


class Extent(TypedDict):
    """The smallest and the largest."""

    min: int | None
    max: int | None


class GridEvent(TypedDict):
    """The event ``grid``: a byte a rank as base64, an index into ``legend``."""

    attempt: int
    world_size: int
    states: str
    legend: list[RankState]
    iterations: Extent


class Clock(TypedDict):
    """The event ``clock``: the time of the monitor, and when it last evaluated its jobs."""

    now: float
    judged: float | None


class JobEvents(TypedDict, total=False):
    """The events of one job's stream, by name."""

    job: JobSummary
    grid: GridEvent
    incident: Incident
    performance: Performance
    clock: Clock


class FleetEvents(TypedDict, total=False):
    """The events of the stream of all jobs, by name."""

    jobs: Jobs
    clock: Clock


class GridBytes(TypedDict):
    """One byte a rank as base64."""

    look: str
    unknown: int
    bytes: str


class Layout(TypedDict):
    """Little-endian 16-bit words as base64, by dimension."""

    unknown: int
    coordinates: dict[Dimension, str]
    """Only dimensions that ranks have reported."""
    looks: list[str]
    """What the grid can be coloured by."""


class Sparklines(TypedDict):
    """Peak and points of each job that had a speed in that time."""

    until: int
    seconds: int
    unknown: int
    largest: int
    jobs: dict[str, tuple[float, str]]


class SampleDevice(TypedDict):
    """Clocks in hertz and temperatures over the ranks."""

    clock: float | None
    clock_min: float | None
    temperature: float | None
    throttled: dict[str, int]
    clock_rank: int | None
    temperature_rank: int | None
    temperature_median: float | None


class SampleSection(TypedDict):
    """A section's seconds, and the rank with the most."""

    median: float
    max: float
    worst: int
    calls: float


class SampleSlowest(TypedDict):
    """Of the rank with the most own work: its seconds, those beyond the median rank's, and its seconds by part."""

    rank: int
    work: float
    late: float
    parts: dict[str, float]


class HistorySample(TypedDict):
    """One evaluated window of a job, or several merged into one, with ``brief``."""

    at: float
    attempt: int
    iteration: int
    """-1: not known."""
    seconds: float
    step: float
    step_max: float
    parts: dict[str, float]
    """Seconds by part, medians over ranks; empty: no step was profiled."""
    waiting: float | None
    """Seconds of the communication in which the median rank waits for the slowest; null: not measured."""
    device: NotRequired[SampleDevice | None]
    section: NotRequired[SampleSection | None]
    slowest: NotRequired[SampleSlowest | None]
    bandwidths: NotRequired[dict[str, float]]
    """Bus bandwidth by process group, in bytes a second; of at most 16 groups."""


class History(TypedDict):
    """Without ``brief`` a sample has all that is kept of it."""

    samples: list[HistorySample]


class Contributor(TypedDict):
    """What takes another time than before."""

    kind: str
    name: str
    before: float
    after: float
    share: float
    part: str
    rank: int | None
    """The rank on which a section grew while it did not on all."""
    stated: bool
    """The sentence on the change names it."""
    words: str
    """What it is, without figures."""
    sentence: str


class Circumstance(TypedDict):
    """What else changed then."""

    kind: str
    sentence: str
    before: Any
    after: Any


class Compared(TypedDict):
    """The windows that were compared."""

    windows: tuple[int, int]
    """Before and since."""
    low: float
    high: float
    visible: float | None


class Why(TypedDict):
    """Explanation of a change of the step time."""

    kind: Literal["change", "drift", "unsure", "steady", "unknown"]
    sentence: str
    since: float | None
    before: float | None
    after: float | None
    """Seconds of a step before and since."""
    factor: float | None
    cause: str
    parts: list[PartChange]
    contributors: list[Contributor]
    circumstances: list[Circumstance]
    seen: list[str]
    """Where the same seconds, or some of them, are seen too: sentences."""
    slow: list[SlowSpan]
    states_slow: bool
    """The sentence names them."""
    compared: Compared | None
    """Null: too few."""
    late: StatedLate | None


Column = list[float | None]


class Trend(TypedDict):
    """A score over the ranks; ``rank``: the one of the minimum."""

    min: Column
    median: Column
    max: Column
    rank: list[int | None]


class Trends(TypedDict):
    """Points over time, as columns."""

    at: list[float]
    attempt: list[int | None]
    attempts: list[int]
    """Those with points in this time, the oldest first."""
    iteration: list[int | None]
    """The last completed step."""
    goodput: Column
    goodput_window: Column
    speed: Column
    """Steps per second."""
    scores: dict[str, Trend]
    logged: dict[str, Column]
    """What the training script logged, by name."""
    non_finite: dict[str, Column]
    """How many values of a name were NaN or infinite; only names with any."""


class RankStep(TypedDict):
    """One step of a rank."""

    iteration: int
    began: float
    """By the clock of its host."""
    seconds: float
    spans: list[tuple[int, int, float, float]]
    """Number of the section, depth, seconds since the step's beginning, seconds it took."""
    waits: list[tuple[float, float]] | None
    """In collectives, while nothing was computed: seconds since the step's beginning, seconds; null: not measured."""


class RankLane(TypedDict):
    """The shown steps of a rank."""

    rank: int
    host: str
    steps: list[RankStep]


class SectionTimeline(TypedDict):
    """Sections of chosen ranks in their last sampled steps."""

    attempt: int
    finding: str
    """What the steps show, in a sentence; empty: no steps are shown."""
    basis: str
    """What its figures are of, and the job's own figure beside them."""
    sampled: list[int]
    """Iterations of which any of the ranks has spans."""
    profiled: list[int]
    """Those of them whose time in collectives is known."""
    no_waits: str
    """Why it may be unknown."""
    no_sections: list[str]
    """Why there are no sections, then what to check; empty: there are."""
    sections: list[str]
    ranks_known: int
    ranks: list[RankLane]


# Policy and access ----------------------------------------------------------------------------------------------------


class Setting(TypedDict):
    """Definition of one policy setting."""

    name: str
    kind: SettingKind
    choices: list[str]
    optional: bool
    """Null switches it off."""
    default: bool | int | float | str | dict[str, float | None] | None
    unit: str
    meaning: str


class PolicySchema(TypedDict):
    """Every setting of a policy, and what each action does."""

    settings: list[Setting]
    actions: dict[Action, str]


class Ordered(TypedDict):
    """The incident that stands for an order."""

    incident_id: str


class Allowed(TypedDict):
    """What a token or a session allows; ``none``: the monitor has no tokens."""

    scope: Literal["ingest", "read", "control"]
    name: str


# Nodes -----------------------------------------------------------------------------------------------------


class LastNamed(TypedDict):
    """The last incident about a host; ``since``: when its trouble began."""

    job: str
    incident: str
    opened_at: float
    since: float
    headline: str


class NamedHost(TypedDict):
    """A host that incidents have named."""

    host: str
    incidents: int
    counted: str
    jobs: list[str]
    gpu: str | None
    """``GPU 5, rank 5: 5 crashes in 2 jobs``, if one has more faults than the others."""
    last: LastNamed


class Hosts(TypedDict):
    """The most frequent first."""

    hosts: list[NamedHost]


class JobName(TypedDict):
    """A job."""

    id: str
    name: str


class NodeMap(TypedDict):
    """All nodes of all jobs."""

    legend: list[str]
    """Meaning of the state codes; the last one stands for no ranks."""
    jobs: list[JobName]
    total: int
    slow: dict[str, int]
    """Ranks that are slow now by host; only hosts with any."""
    slow_jobs: dict[str, list[str]]
    """The ids of the jobs of these ranks."""
    worst_jobs: dict[str, list[str]]
    """The ids of the jobs of the worst ranks, of hosts in trouble."""
    hosts: list[tuple[str, int, int, int, list[int]]]
    """Name, state code of the worst rank, ranks, incidents that named it, places of its jobs in ``jobs``."""


class Device(TypedDict):
    """What a device reported last. Bytes, degrees Celsius, watts, hertz."""

    utilization: float | None
    """0 to 1."""
    memory_used: float | None
    memory_total: float | None
    temperature: float | None
    power: float | None
    power_limit: float | None
    clock: float | None
    clock_limit: float | None
    throttled: list[str]
    errors: dict[str, int]
    at: float | None
    """When it was received."""


class SlowNow(TypedDict):
    """How slow a rank is now."""

    share: float | None
    score: float | None
    since: float
    reason: str
    cause: Cause


class PlacedRank(RankReport):
    """A rank on the page of a node."""

    straggler: SlowNow | None
    """Null: it is not slow."""
    device: Device | None
    uuid: str | None


class PlacedLauncher(Launcher):
    """A launcher on the page of a node."""

    silent: bool
    """Messages that are due since its last one are missing."""


class NodeJob(TypedDict):
    """What a job runs on a node."""

    job: str
    verdict: Verdict
    over: bool
    attempt: int
    total_ranks: int
    ranks: list[PlacedRank]
    launchers: list[PlacedLauncher]


class NodeIncident(TypedDict):
    """An incident about a node."""

    job: str
    incident: str
    kind: VerdictKind
    opened_at: float
    closed_at: float | None
    since: float
    until: float | None
    """From when to when it cost time; null: it still does."""
    headline: str
    outcome: str
    named_as: Literal["culprit", "suspect", "quiet"]
    """Whether the node is its culprit, its suspect, or quiet while it is open."""


@dataclass(frozen=True, slots=True)
class HostTodo:
    """What to do about a node, with commands to run there and on any machine of the cluster."""

    text: str
    here: tuple[str, ...] = ()
    anywhere: tuple[str, ...] = ()
    drain: tuple[str, ...] = ()
    """Anywhere, too: what keeps further jobs from the host; empty: its scheduler is not known."""
    process: str = ""
    """What the last of the host's commands is about, ``rank 13 of gpt-7``; empty: no process."""


class GpuRank(TypedDict):
    """A rank that runs on a GPU."""

    job: str
    name: str
    rank: int
    pid: int | None
    state: RankState


class GpuSlow(TypedDict):
    """A rank on a GPU that is slow now, by whatever cause."""

    job: str
    name: str
    rank: int
    since: float
    by_gpu: bool
    text: str


class NodeGpu(TypedDict):
    """A GPU of a node."""

    name: str
    local_rank: int | None
    uuid: str | None
    faults: int
    """Confirmed incidents."""
    slow: int
    """Jobs in which it was slow."""
    history: str
    """``5 crashes in 2 jobs, slow in 1``; empty: none."""
    ranks: list[GpuRank]
    slow_now: list[GpuSlow]
    reading: Device | None


class Remaining(TypedDict):
    """What a job has left without some nodes."""

    nodes: int
    of: int
    spares: int
    min_nodes: int
    """Nodes without which no attempt starts; 0: unknown."""
    sentence: str


class NodeAdvice(TypedDict):
    """The advice about a job; ``remaining``: without the node, null: it cannot be left out now."""

    job: str
    name: str
    advice: Advice
    remaining: Remaining | None


class NodeDetail(TypedDict):
    """One node with what all jobs run there."""

    host: str
    verdict: str
    """What points to the node, or to one GPU of it."""
    state: HostState
    presence: str
    """In how many jobs it is heard; empty: none runs there."""
    todo: HostTodo | None
    """Null: nothing points to it."""
    commands: list[str]
    of_jobs: list[NodeAdvice]
    """Of each job with an open incident about it or a slow rank on it, or that failed by it."""
    jobs: list[NodeJob]
    incidents: list[NodeIncident]
    named_by: int
    """Confirmed incidents of which it is a culprit."""
    counted: str
    """``4 (1 suspected, 1 silent)``."""
    gpus: list[NodeGpu]
    """The one with the most faults first."""


# Digest ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DigestLink:
    """Leads to an incident, a job or a node; what does not apply is empty."""

    text: str
    job: str = ""
    incident: str = ""
    host: str = ""
    at: float | None = None


class DigestLine(TypedDict):
    """One sentence."""

    kind: str
    text: str
    links: list[DigestLink]
    more: int
    """Links that are left out."""


class DigestNote(TypedDict):
    """What is left out, and the moment from which the record reaches."""

    text: str
    at: float


class Digest(TypedDict):
    """What happened over all jobs since a moment."""

    since: float
    until: float
    summary: str
    lines: list[DigestLine]
    notes: list[DigestNote]
