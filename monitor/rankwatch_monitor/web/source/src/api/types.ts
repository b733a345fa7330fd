// Made by `python scripts/reference.py` of the OpenAPI description; a test fails when it is outdated.

/** Actions on an incident, by policy or on request of a person. */
export type Action = "log" | "capture" | "restart" | "restart_excluding_node" | "save_and_stop" | "stop";

/** The one advice about a job, which list, page, terminal and messages show. */ export interface Advice {
  /** The row of the playbook. */ rule: string;
  /** It is about slow ranks, or a slow job. */ slow: boolean;
  /** In one line: the first step, or what is awaited until when. */ text: string;
  /** No person is needed now. */ waits: boolean;
  /** In their order; while it waits, what can be looked at meanwhile. */ steps: Step[];
  /** When what is awaited is due. */ until: number | null;
  /** What is to be done if it has not come by then. */ otherwise: Step | null;
  /** The likeliest first. */ orders: Order[];
  /** The steps advise the first order. */ proposed: boolean;
  /** When the first order is to be given: `if it stays slow`; empty: now. */ condition: string;
  /** What a restart loses stands beside it. */ weighs_restart: boolean;
  notes: string[];
  /** What follows from each output of the first command. */ alternatives: string[];
  /** The node that it is about; empty: none, or several. */ host: string;
  /** Page and section of the manual. */ runbook: string;
}

/** What a token or a session allows; `none`: the monitor has no tokens. */
export interface Allowed { scope: "ingest" | "read" | "control"; name: string; }

/** What makes a straggler slow: the part that explains most of its excess. */
export type Cause = "data" | "host" | "compute" | "communication" | "unexplained";

/** The result of one check. */ export type CheckState = "passed" | "failed" | "skipped";

/** The last one that is known. */ export interface Checkpoint {
  /** After which step; null: the script counts none. */ step: number | null;
  at: number;
  /** An attempt loaded it: `step` is not only the least that it can be. */ exact: boolean;
}

/** What else changed then. */ export interface Circumstance { kind: string; sentence: string; before: unknown; after: unknown; }

/** A clause; `warns`: of steps that may not be saved. */ export interface Clause { text: string; warns: boolean; }

/** The event `clock`: the time of the monitor, and when it last evaluated its jobs. */
export interface Clock { now: number; judged: number | null; }

/** What the process groups of a job move. */
export interface CommunicationView { at: number | null; step: number | null; operations: OperationView[]; omitted: number; }

/** The windows that were compared. */ export interface Compared {
  /** Before and since. */ windows: [number, number];
  low: number;
  high: number;
  visible: number | null;
}

/** What takes another time than before. */ export interface Contributor {
  kind: string;
  name: string;
  before: number;
  after: number;
  share: number;
  part: string;
  /** The rank on which a section grew while it did not on all. */ rank: number | null;
  /** The sentence on the change names it. */ stated: boolean;
  /** What it is, without figures. */ words: string;
  sentence: string;
}

/** Seconds that an incident costs; `since`: it grows by the clock, null: it is final. */
export interface Cost { seconds: number; since: number | null; }

/** How a crash began: the first error of each rank by time, the ranks that only lost their peer folded. */ export interface CrashHead {
  errors: FirstError[];
  lost_peer: number[];
  /** How many lost their peer; empty: none. */ text: string;
}

export interface Culprit { rank: number; host: string; class: CulpritClass; reason: string; }

/** Why a rank is to blame. */
export type CulpritClass = "dead" | "stopped" | "gil_held" | "host_silent" | "never_started" | "behind" | "device_or_network" | "straggler" | "wrong_result";

/** What a device reported last. Bytes, degrees Celsius, watts, hertz. */ export interface Device {
  /** 0 to 1. */ utilization: number | null;
  memory_used: number | null;
  memory_total: number | null;
  temperature: number | null;
  power: number | null;
  power_limit: number | null;
  clock: number | null;
  clock_limit: number | null;
  throttled: string[];
  errors: Record<string, number>;
  /** When it was received. */ at: number | null;
}

/** What happened over all jobs since a moment. */
export interface Digest { since: number; until: number; summary: string; lines: DigestLine[]; notes: DigestNote[]; }

/** One sentence. */ export interface DigestLine {
  kind: string;
  text: string;
  links: DigestLink[];
  /** Links that are left out. */ more: number;
}

/** Leads to an incident, a job or a node; what does not apply is empty. */
export interface DigestLink { text: string; job: string; incident: string; host: string; at: number | null; }

/** What is left out, and the moment from which the record reaches. */ export interface DigestNote { text: string; at: number; }

export type Dimension = "data" | "tensor" | "pipeline" | "expert";

/** Why a rank that the newest window shows late is not named. */ export type Doubt = "few_windows" | "noise" | "turns" | "fast_peer";

/** What was observed of a section. */ export interface Durations { finished: number; longest: number; first: number | null; }

/** How an incident ended. */
export type Ended = "went_on" | "recovered" | "superseded" | "ranks_ended" | "job_ended" | "launched_again" | "limit_changed" | "heard" | "detection_off" | "captured" | "handled" | "not_carried_out" | "unseen";

/** The smallest and the largest. */ export interface Extent { min: number | null; max: number | null; }

/** Why the job as a whole loses time; see `diagnosis`. */ export interface Finding {
  verdict: StragglerVerdict;
  cause: Cause;
  /** One sentence; empty while the job is healthy. */ reason: string;
  since: number | null;
  /** The stragglers of a worker verdict, the ranks of a stage, the ranks that are often behind. */ ranks: number[];
  /** Fraction of the step that is lost. */ share: number;
  /** The node all of whose ranks are slow; of a stage the node that may as well be the reason. */ host: string;
  /** The label of the rack, switch or NVLink domain that all slow nodes, and few others, are of. */ place: string;
}

/** The first error of one rank, or of several with the same text. */ export interface FirstError {
  /** The one that raised it first is the first. */ ranks: number[];
  /** Of the first. */ host: string;
  text: string;
  place: string;
  /** When the first raised it; null: unknown. */ at: number | null;
}

/** The events of the stream of all jobs, by name. */ export interface FleetEvents { jobs?: Jobs; clock?: Clock; }

/** Dumps of torch's flight recorder that are kept with an incident. */ export interface FlightDumps {
  ranks: number[];
  /** As they are stored, compressed. */ bytes: number;
  /** Where they are read: a ZIP archive with a file of JSON for each rank. */ path: string;
}

/** How a job's time was spent. */ export interface Goodput {
  ratio: number | null;
  /** `rank 21`: for which ranks the others waited; empty: for none. */ waited_for: string;
  notes: string[];
  seconds: number;
  window: Window;
  buckets: Record<string, number>;
  /** The newest first. */ incidents: LedgerEntry[];
}

/** A rank that runs on a GPU. */ export interface GpuRank { job: string; name: string; rank: number; pid: number | null; state: RankState; }

/** A rank on a GPU that is slow now, by whatever cause. */
export interface GpuSlow { job: string; name: string; rank: number; since: number; by_gpu: boolean; text: string; }

/** One byte a rank as base64. */ export interface GridBytes { look: string; unknown: number; bytes: string; }

/** The event `grid`: a byte a rank as base64, an index into `legend`. */
export interface GridEvent { attempt: number; world_size: number; states: string; legend: RankState[]; iterations: Extent; }

/** Ranks with equal progress in one process group, by the sequence numbers of its collectives. */ export interface GroupProgress {
  group: string;
  /** Of the newest collective that the ranks have entered. */ operation: string;
  enqueued: number;
  /** -1: none. */ completed: number;
  ranks: number[];
}

/** Without `brief` a sample has all that is kept of it. */ export interface History { samples: HistorySample[]; }

/** One evaluated window of a job, or several merged into one, with `brief`. */ export interface HistorySample {
  at: number;
  attempt: number;
  /** -1: not known. */ iteration: number;
  seconds: number;
  step: number;
  step_max: number;
  /** Seconds by part, medians over ranks; empty: no step was profiled. */ parts: Record<string, number>;
  /** Seconds of the communication in which the median rank waits for the slowest; null: not measured. */ waiting: number | null;
  device?: SampleDevice | null;
  section?: SampleSection | null;
  slowest?: SampleSlowest | null;
  /** Bus bandwidth by process group, in bytes a second; of at most 16 groups. */ bandwidths?: Record<string, number>;
}

export type HostState = "suspect" | "may be down" | "partly silent" | "up" | "idle";

/** What to do about a node, with commands to run there and on any machine of the cluster. */ export interface HostTodo {
  text: string;
  here: string[];
  anywhere: string[];
  /** Anywhere, too: what keeps further jobs from the host; empty: its scheduler is not known. */ drain: string[];
  /** What the last of the host's commands is about, `rank 13 of gpt-7`; empty: no process. */ process: string;
}

/** The most frequent first. */ export interface Hosts { hosts: NamedHost[]; }

/** An incident. */ export interface Incident {
  id: string;
  job_id: string;
  kind: VerdictKind;
  attempt: number;
  opened_at: number;
  closed_at: number | null;
  culprits: Culprit[];
  affected: number[];
  /** In a few words: `rank 3 hung in load_batch`. */ label: string;
  /** At most 90 characters. */ headline: string;
  /** The headline with room for 160 characters. */ title: string;
  /** What `reason` states and `title` does not; empty: nothing. */ detail: string;
  /** The same without what the fields state: for how long, and past which limit, a rank had stood when detected. */ sequel: string;
  of_place: OfPlace | null;
  /** Of an incident that is over only in its detail. */ of_host: OfHost | null;
  reason: string;
  section: string | null;
  limit: number | null;
  /** Where a limit comes from that may be configured or learned. */ limit_source: LimitSource | null;
  elapsed: number | null;
  action: Action;
  action_reason: string;
  /** Why nothing is done, or nothing that the policy wants. */ withheld: Withheld | null;
  exclude: string[];
  phase: Phase;
  /** False: a suspicion, raised by a limit that was learned or loaded instead of configured. */ confirmed: boolean;
  /** Evidence is on its way: reason and culprits may change. */ provisional: boolean;
  /** Of a suspicion: what several looks at its ranks showed; null: nothing yet. */ proof: Proof | null;
  proof_reason: string;
  waits: RankWait[];
  /** When a suspicion is acted on if it still holds; null: no time ends it, or it is confirmed. */ acts_at: number | null;
  /** Seconds that a restart would lose. */ restart_cost: number | null;
  /** Earlier attempts that stood at the same place. */ attempts_here: number;
  outcome: string;
  ended: Ended | null;
  timeline: Timeline;
  phases: PhaseRow[];
  cost: Cost;
  place: IncidentPlace | null;
  /** Seconds of the lost steps. */ lost_steps_s: number | null;
  steps_lost: number | null;
  /** The last step that any rank completed in its attempt. */ furthest_iteration: number | null;
  /** Nodes that failed a check while it was open. */ node_checks: NodeChecked[];
}

/** One incident with its grouped stacks. */ export interface IncidentDetail extends Incident {
  logs: ShownLog[];
  advice: Advice | null;
  /** Null: no rank is known to have raised an error or to have been killed. */ crash: CrashHead | null;
  stack_groups: StackGroup[];
  stack_errors: StackError[];
  collectives: GroupProgress[];
  /** Null: there are none, or no longer. */ flight_dumps: FlightDumps | null;
  /** Where NCCL could be asked (2.24 and newer): a second witness. */ nccl: NcclAnswer[];
}

/** Where the first culprit is; `function` empty: no stack of it was captured. */
export interface IncidentPlace { function: string; file: string; line: number; section: string | null; }

/** The incidents of a job, the newest first. */ export interface Incidents { incidents: Incident[]; }

/** One job. */ export interface JobDetail extends JobSummary {
  policy: Record<string, unknown>;
  timeouts: Timeout[];
  nodes: Launcher[];
  vitals: Vitals;
  /** How it trains, or has trained; empty of one in trouble. */ account: Clause[];
  /** Where a save of the last steps of a finished job may stand. */ unsaved_log: Place | null;
  sections: Record<string, Durations>;
  dropped: Record<string, number>;
  stale_reports: number;
}

/** A job of another monitor on the same database; `monitor` is null while none holds it. */ export interface JobElsewhere {
  id: string;
  name: string;
  state: JobState;
  reason: string;
  world_size: number;
  ranks_reporting: null;
  attempt: number;
  started_at: number;
  goodput: null;
  monitor: string | null;
}

/** The events of one job's stream, by name. */
export interface JobEvents { job?: JobSummary; grid?: GridEvent; incident?: Incident; performance?: Performance; clock?: Clock; }

/** A job. */ export interface JobName { id: string; name: string; }

/** State of a job: the one word for it in API, page, terminal, metrics and messages. */
export type JobState = "starting" | "running" | "suspected" | "slow" | "no step" | "hung" | "restarting" | "stopping" | "finished" | "failed" | "stopped" | "lost";

/** A job in the list. */ export interface JobSummary extends Verdict {
  id: string;
  world_size: number;
  ranks_reporting: number;
  attempt: number;
  checkpoint: Checkpoint | null;
  /** Zero while no step completes. */ iterations_per_second: number | null;
  /** While no step completes: how long one usually took. */ step_seconds: number | null;
  started_at: number;
  /** What stands beside goodput, in words. */ goodput_notes: string[];
  /** Of these: how much of it is lost waiting for slow ranks; empty: nothing. */ waited: string;
  /** Of a finished job: the steps of which no save is known, in words; empty: none. */ unsaved: string;
  /** While an attempt after an incident has completed no step: the furthest step before. */ iteration_before: number | null;
  /** Of a lost job: when the last message of any rank or launcher arrived. */ last_heard: number | null;
  instrumented: boolean;
  observe_only: boolean;
  open_stragglers: number;
  incidents: number;
  /** Of a failed job: why no restart followed; empty: not stated. */ no_restart: string;
  repeated: Repeated | null;
  restarts: number;
  max_restarts: number;
  nodes_by_role: Partial<Record<NodeRole, number>>;
  /** Of a job that another monitor on the same database may hold by now: always null. */ monitor?: string | null;
}

/** The newest first. */ export interface Jobs { jobs: (JobSummary | JobElsewhere)[]; }

/** One kernel over all ranks; seconds of one call. */ export interface KernelView {
  name: string;
  share: number;
  ranks: number;
  median: number;
  tail: number | null;
  fastest: number;
  slowest_rank: number;
  slowest_host: string;
  slowest: number;
  relative: number | null;
  change: number | null;
  slower_since: number | null;
  trend: (number | null)[];
  slowest_trend: (number | null)[];
  slowest_ranks: (number | null)[];
  uneven_since: number | null;
  straggler: number | null;
}

/** The costliest kernels of a job. */ export interface KernelsView {
  at: number | null;
  since: number | null;
  spacing: number;
  reason: string;
  sources: SourceView[];
  points: number[];
  kernels: KernelView[];
  omitted: number;
  compute: number | null;
  step: number | null;
  straggler: number | null;
}

/** The last incident about a host; `since`: when its trouble began. */
export interface LastNamed { job: string; incident: string; opened_at: number; since: number; headline: string; }

/** A rank that the newest window shows late by more than matters, and that is not named yet. */ export interface LateRank {
  rank: number;
  host: string;
  /** Windows that show it so, of the last `of`. */ slow: number;
  needed: number;
  of: number;
  /** As of the newest window. */ share: number;
  /** Unix seconds at which the first of these windows began. */ since: number;
  doubt: Doubt;
  /** Evidence grows: more than one window, and no other reason is known. */ suspected: boolean;
}

/** One launcher and its role in the job. */ export interface Launcher {
  node: string;
  host: string;
  launcher_pid: number;
  local_world_size: number;
  /** Nodes without which no attempt starts. */ min_nodes: number | null;
  last_seen: number;
  last_seen_age: number;
  attempt: number;
  ranks: number[];
  role: NodeRole;
  role_reason: string;
  /** Why the node was given up as lost; null: it is not lost. */ lost: string | null;
  /** Where its node is: labels, the widest first. */ topology: string[];
  facts: Record<string, string>;
  checks: NodeCheck[];
  /** Why its node takes no part, by its checks; empty: it passes them, or they are switched off. */ unfit: string;
  /** How the launcher ended; null: it still runs. */ ended: string | null;
  ended_reason: string;
}

/** Little-endian 16-bit words as base64, by dimension. */ export interface Layout {
  unknown: number;
  /** Only dimensions that ranks have reported. */ coordinates: Partial<Record<Dimension, string>>;
  /** What the grid can be coloured by. */ looks: string[];
}

/** What an incident took. */ export interface LedgerEntry {
  id: string;
  kind: VerdictKind;
  opened_at: number;
  phases: PhaseRow[];
  cost: Cost;
  lost_steps_s: number | null;
  steps_lost: number | null;
  outcome: string;
}

/** Where a limit in force comes from. */ export type LimitSource = "configured" | "default" | "loaded" | "learned" | "first_time";

/** GPU time that an incident costs: `seconds` of so many `gpus`; `since`: it grows by the clock. */ export interface Lost {
  seconds: number;
  since: number | null;
  gpus: number;
  /** Thrown away by its restart. */ steps: number | null;
}

/** A host that incidents have named. */ export interface NamedHost {
  host: string;
  incidents: number;
  counted: string;
  jobs: string[];
  /** `GPU 5, rank 5: 5 crashes in 2 jobs`, if one has more faults than the others. */ gpu: string | null;
  last: LastNamed;
}

/** What NCCL itself answered about the job's communicators when a launcher asked it. */ export interface NcclAnswer {
  node: string;
  host: string;
  /** Of NCCL. */ version: string;
  /** Ranks that others wait for, by this answer alone. */ accused: number[];
  witness: Witness;
  /** Whom it accuses, beside whom the incident blames, in one sentence. */ text: string;
  /** The answer. */ lines: string[];
}

/** What follows by itself: `text` and a countdown to `due`, `restart in` 0:43; without one `text` alone. */
export interface NextAct { text: string; due: number | null; }

/** The advice about a job; `remaining`: without the node, null: it cannot be left out now. */
export interface NodeAdvice { job: string; name: string; advice: Advice; remaining: Remaining | null; }

/** Result of one check of a node. */ export interface NodeCheck {
  name: string;
  state: CheckState;
  /** Null: it passed. */ reason: string | null;
  evidence: Record<string, string>;
  /** Empty: it passed. */ text: string;
}

/** A node that failed a check. */ export interface NodeChecked extends NodeCheck { node: string; host: string; }

/** One node with what all jobs run there. */ export interface NodeDetail {
  host: string;
  /** What points to the node, or to one GPU of it. */ verdict: string;
  state: HostState;
  /** In how many jobs it is heard; empty: none runs there. */ presence: string;
  /** Null: nothing points to it. */ todo: HostTodo | null;
  commands: string[];
  /** Of each job with an open incident about it or a slow rank on it, or that failed by it. */ of_jobs: NodeAdvice[];
  jobs: NodeJob[];
  incidents: NodeIncident[];
  /** Confirmed incidents of which it is a culprit. */ named_by: number;
  /** `4 (1 suspected, 1 silent)`. */ counted: string;
  /** The one with the most faults first. */ gpus: NodeGpu[];
}

/** A GPU of a node. */ export interface NodeGpu {
  name: string;
  local_rank: number | null;
  uuid: string | null;
  /** Confirmed incidents. */ faults: number;
  /** Jobs in which it was slow. */ slow: number;
  /** `5 crashes in 2 jobs, slow in 1`; empty: none. */ history: string;
  ranks: GpuRank[];
  slow_now: GpuSlow[];
  reading: Device | null;
}

/** An incident about a node. */ export interface NodeIncident extends LastNamed {
  kind: VerdictKind;
  closed_at: number | null;
  /** From when to when it cost time; null: it still does. */ until: number | null;
  outcome: string;
  /** Whether the node is its culprit, its suspect, or quiet while it is open. */ named_as: "culprit" | "suspect" | "quiet";
}

/** What a job runs on a node. */ export interface NodeJob {
  job: string;
  verdict: Verdict;
  over: boolean;
  attempt: number;
  total_ranks: number;
  ranks: PlacedRank[];
  launchers: PlacedLauncher[];
}

/** All nodes of all jobs. */ export interface NodeMap {
  /** Meaning of the state codes; the last one stands for no ranks. */ legend: string[];
  jobs: JobName[];
  total: number;
  /** Ranks that are slow now by host; only hosts with any. */ slow: Record<string, number>;
  /** The ids of the jobs of these ranks. */ slow_jobs: Record<string, string[]>;
  /** The ids of the jobs of the worst ranks, of hosts in trouble. */ worst_jobs: Record<string, string[]>;
  /** Name, state code of the worst rank, ranks, incidents that named it, places of its jobs in `jobs`. */
  hosts: [string, number, number, number, number[]][];
}

/** Role of a launcher in its job. */ export type NodeRole = "active" | "spare" | "parked";

/** What incidents of all jobs show of the host of an incident's first culprit, or of one that is quiet. */ export interface OfHost {
  host: string;
  /** `host-1 was named in 3 incidents of 2 jobs in 24 h, this one included.`; empty: not repeatedly. */ text: string;
  /** Of an incident that is over: what to look at on the host; empty: nothing. */ suspect: string;
}

/** The rack, switch or NVLink domain that all nodes of an incident's culprits are of, and few others. */ export interface OfPlace {
  /** `switch=s2`. */ label: string;
  nodes: number;
  /** Nodes of the job there. */ of: number;
  text: string;
}

/** The incidents about the costliest straggler's host in a day, as a sentence. */
export interface OfSlowHost { host: string; text: string; }

/** The collectives of one operation in one process group, in the last profiled step; bandwidths in bytes/s. */
export interface OperationView {
  group: string;
  operation: string;
  ranks: number;
  hosts: string[];
  calls: number;
  seconds: number;
  bytes: number;
  largest: number;
  algorithm: number | null;
  bus: number | null;
  peers: number | null;
  best: number | null;
  slow: boolean;
}

/** An order that a person may give now, with the words of its button. */ export interface Order {
  action: Action;
  words: string;
  /** Their nodes are left out. */ ranks: number[];
  /** The same nodes, as far as they are known. */ hosts: string[];
}

/** The incident that stands for an order. */ export interface Ordered { incident_id: string; }

/** A rank whose log could not be fetched. */ export interface OutputGap {
  rank: number;
  host: string;
  /** Why, as a code. */ gap: string;
  path: string;
  /** Why, as a clause. */ text: string;
  /** What shows the log. */ place: Place;
}

/** A part of what one rank printed. */ export interface OutputLog {
  rank: number;
  host: string;
  /** `stdout`, `stderr`, or `output`: both, as they were printed. */ stream: string;
  /** Of the whole log, on that host. */ path: string;
  lines: string[];
  /** Bytes at the beginning that are no longer kept. */ first: number;
  begin: number;
  /** Where the part begins and ends, in bytes. */ end: number;
  /** Bytes that were printed so far. */ size: number;
}

/** A score over all ranks. */ export interface Overall { min: number; median: number; max: number; }

/** Seconds of one part of the step before and after, and its share in the change of the step. */
export interface PartChange { part: string; before: number; after: number; share: number; }

/** The event `performance` of a job's stream. */ export interface Performance extends Scores {
  open: number;
  /** Null: there were none. */ of_host: OfSlowHost | null;
  ended: Straggler[];
  /** One byte a rank as base64, in units of 1/200; 255: not known. */ grid: Record<string, string>;
}

/** Phase of an incident; the transitions are in :mod:`.incident.state_machine`. */
export type Phase = "detected" | "capturing" | "confirming" | "acting" | "recovering" | "closed";

/** A phase of an incident; `end`: null while it goes on. */ export interface PhaseRow {
  name: string;
  begin: number;
  end: number | null;
  /** What ends it: the field of the timeline, else `closed`, `given_up`, `stopped`, `last_heard`, or the state in which the job ended. */
  mark: string;
  /** Seconds of the detection in which a limit was waited for. */ limit: number | null;
}

/** Where a log is: what shows it, on `host` or anywhere in the cluster; empty: not known. */ export interface Place {
  command: string;
  host: string;
  /** What to know before it is read, in a sentence; empty: nothing. */ note: string;
  /** The run is not known: the command shows the newest in its folder. */ newest: boolean;
}

/** A launcher on the page of a node. */ export interface PlacedLauncher extends Launcher {
  /** Messages that are due since its last one are missing. */ silent: boolean;
}

/** A rank on the page of a node. */ export interface PlacedRank extends RankReport {
  /** Null: it is not slow. */ straggler: SlowNow | null;
  device: Device | null;
  uuid: string | null;
}

/** Every setting of a policy, and what each action does. */
export interface PolicySchema { settings: Setting[]; actions: Partial<Record<Action, string>>; }

/** What several looks at a suspected rank showed of it; the position is its code in columns over ranks. */
export type Proof = "undecided" | "busy" | "still" | "waiting" | "stopped" | "uninterruptible" | "spinning" | "stalled" | "may_end" | "debugged" | "suspended" | "transport";

/** Hosts that may be down: nothing is received of them, while others wait. */ export interface QuietHost {
  hosts: string[];
  ranks: number[];
  /** The last message of any of their ranks or launchers. */ since: number;
  /** Seconds until an incident names them; null: never. */ limit: number | null;
  /** Other jobs that are heard from each of these hosts, so that they are up; 0: one of them may be down. */ other_jobs: number;
  headline: string;
}

/** The shown steps of a rank. */ export interface RankLane { rank: number; host: string; steps: RankStep[]; }

/** What ranks printed in one attempt, as their launchers answered. */ export interface RankOutput {
  job_id: string;
  attempt: number;
  /** The newest attempt of the job. */ newest: number;
  /** The job has ended. */ ended: boolean;
  logs: OutputLog[];
  gaps: OutputGap[];
  /** Of ranks with a gap: what an incident of the attempt holds of them. */ recorded: ShownLog[];
  /** Ranks of the attempt that were not asked for. */ left_out: number;
  /** Where the next request goes on. */ after: string;
}

/** One rank. */ export interface RankReport {
  rank: number;
  local_rank: number | null;
  host: string;
  pid: number | null;
  state: RankState;
  iteration: number | null;
  progress: number | null;
  heartbeat_age: number | null;
  report_age: number | null;
  open_sections: Record<string, number>;
  /** In which it hangs or waits; null: that is not known, or it does neither. */ function: string | null;
  idle: number | null;
  scores: Record<string, number>;
  reason: string;
}

/** The scores of a rank. */ export interface RankScores {
  rank: number;
  host: string;
  gpu_relative: number | null;
  gpu_individual: number | null;
  gpu_robust: number | null;
  /** Seconds per step that the other ranks wait for this rank; negative: it waits for them. */ lateness: number | null;
  lateness_share: number | null;
  sections: Record<string, Record<string, number | null>>;
}

/** State of a rank, as far as it is known. The position is the byte that the live grid sends. */
export type RankState = "unseen" | "running" | "waiting" | "hung" | "silent" | "stopped" | "dead" | "finished" | "suspected" | "ended";

/** One step of a rank. */ export interface RankStep {
  iteration: number;
  /** By the clock of its host. */ began: number;
  seconds: number;
  /** Number of the section, depth, seconds since the step's beginning, seconds it took. */ spans: [number, number, number, number][];
  /** In collectives, while nothing was computed: seconds since the step's beginning, seconds; null: not measured. */
  waits: [number, number][] | null;
}

/** What a rank waits for that does not wait for its peers. */ export interface RankWait {
  rank: number;
  kind: WaitKind;
  target: string;
  /** Until it ends, where that is known. */ seconds: number | null;
  through: string;
}

/** All ranks of a job, in their order. */ export interface Ranks { ranks: RankReport[]; }

/** What a job has left without some nodes. */ export interface Remaining {
  nodes: number;
  of: number;
  spares: number;
  /** Nodes without which no attempt starts; 0: unknown. */ min_nodes: number;
  sentence: string;
}

/** The crash with which a job failed, if the same one came before. */ export interface Repeated {
  rank: number;
  host: string;
  times: number;
  seconds: number;
  cost: number;
  lost_steps_s: number;
  steps_lost: number;
  step: number | null;
  same_step: string | null;
  text: string;
}

/** Clocks in hertz and temperatures over the ranks. */ export interface SampleDevice {
  clock: number | null;
  clock_min: number | null;
  temperature: number | null;
  throttled: Record<string, number>;
  clock_rank: number | null;
  temperature_rank: number | null;
  temperature_median: number | null;
}

/** A section's seconds, and the rank with the most. */
export interface SampleSection { median: number; max: number; worst: number; calls: number; }

/** Of the rank with the most own work: its seconds, those beyond the median rank's, and its seconds by part. */
export interface SampleSlowest { rank: number; work: number; late: number; parts: Record<string, number>; }

/** What a rank is compared with. */ export type ScoreReference = "robust" | "fastest";

/** Scores and open stragglers. */ export interface Scores {
  /** When the scores were made; null: there are none yet. */ at: number | null;
  /** When the kernel timings that the GPU scores are made of were reported; null: none were. */ gpu_at: number | null;
  /** That stragglers are detected against. */ reference: ScoreReference;
  processing_seconds: number | null;
  /** Over all ranks, by score; null: no rank has it. */ overall: Record<string, Overall | null>;
  /** The rank with the lowest score, by score; null: no rank has it. */ lowest: Record<string, number | null>;
  ranks: RankScores[];
  /** Open ones, the costliest first. */ stragglers: Straggler[];
  /** The verdict. */ finding: Finding;
  /** It, then all else that was found, by cost. */ findings: Finding[];
  late: LateRank | null;
  /** What throttles the GPU of the costliest straggler; null: nothing. */ throttled: Throttle | null;
  cost_gpu_hours: number;
  /** What the costliest straggler costs by the hour, and of what; empty: not known. */ cost_rate: string;
}

/** Sections of chosen ranks in their last sampled steps. */ export interface SectionTimeline {
  attempt: number;
  /** What the steps show, in a sentence; empty: no steps are shown. */ finding: string;
  /** What its figures are of, and the job's own figure beside them. */ basis: string;
  /** Iterations of which any of the ranks has spans. */ sampled: number[];
  /** Those of them whose time in collectives is known. */ profiled: number[];
  /** Why it may be unknown. */ no_waits: string;
  /** Why there are no sections, then what to check; empty: there are. */ no_sections: string[];
  sections: string[];
  ranks_known: number;
  ranks: RankLane[];
}

/** Definition of one policy setting. */ export interface Setting {
  name: string;
  kind: SettingKind;
  choices: string[];
  /** Null switches it off. */ optional: boolean;
  default: boolean | number | string | Record<string, number | null> | null;
  unit: string;
  meaning: string;
}

export type SettingKind = "switch" | "choice" | "whole" | "number" | "share" | "text" | "seconds_by_name";

/** The end of a log of a rank that failed, or that there is none. */ export interface ShownLog {
  rank: number;
  host: string;
  /** `stderr` or `stdout`; empty: nothing was received. */ stream: string;
  path: string;
  lines: string[];
  /** `Log of rank 1`, `Log of all ranks`, on its host. */ title: string;
  /** What the lines are, or why there are none. */ text: string;
  place: Place;
}

/** How slow a rank is now. */
export interface SlowNow { share: number | null; score: number | null; since: number; reason: string; cause: Cause; }

/** A rank that is or was slow in the time that is explained. */ export interface SlowSpan {
  rank: number;
  host: string;
  since: number;
  ended: number | null;
  /** Seconds of a step before it; null: not known. */ step_before: number | null;
  cause: string;
  sentence: string;
}

/** Ranks whose kernel timings come from one source. */ export interface SourceView { source: string; reason: string; ranks: number; }

/** Peak and points of each job that had a speed in that time. */
export interface Sparklines { until: number; seconds: number; unknown: number; largest: number; jobs: Record<string, [number, string]>; }

/** A rank without a stack. */ export interface StackError { rank: number; error: string; process_state: string; }

/** One frame of a stack. */ export interface StackFrame {
  function: string;
  file: string;
  line: number;
  /** It is of the training script and its own modules. */ of_script: boolean;
}

/** Ranks with the same stack. */ export interface StackGroup {
  ranks: number[];
  label: string;
  frames: StackFrame[];
  is_culprit: boolean;
  waits: boolean;
  process_state: string;
  /** `traceback`: of the exception that ended the process, which is in `note`. */ method: string;
  note: string;
}

/** It with its sentence. */ export interface StatedLate extends LateRank { sentence: string; }

/** What to do; `command` is run on `host`, without one anywhere in the cluster. */ export interface Step {
  text: string;
  command: string;
  host: string;
  /** How the output of the command is to be read; empty: it is plain. */ note: string;
  /** The rank whose log it reads; null: it reads no log. */ reads: number | null;
}

/** A step and its parts, medians over the ranks. */
export interface StepParts { seconds: number; parts: Record<string, number>; waiting: number | null; }

/** A rank that is slow by its own fault, from the first slow window until it is as fast as its peers again. Written by `Performance` only. */
export interface Straggler {
  id: string;
  rank: number;
  host: string;
  device: string;
  cause: Cause;
  /** By which it was found. */ reference: ScoreReference;
  /** One sentence; log, API, page, report and incident show the same. */ reason: string;
  /** Unix seconds at which the first slow window began. */ since: number;
  /** Unix seconds of the last slow window. */ seen: number;
  attempt: number;
  /** It was slow from the first windows of its attempt. */ always: boolean;
  ended: number | null;
  /** GPU score by its reference: relative or robust. */ score: number | null;
  /** Seconds of each step for which the other ranks wait. */ lateness: number | null;
  /** Lateness as a fraction of the step. */ share: number | null;
  /** Ranks that wait for it. */ waiting: number | null;
  /** The section that holds most of what it takes longer for; null: none does. */ section: string | null;
  /** Seconds of each step it spends on the cause. */ own: number | null;
  /** Seconds its peers spend on it: their median. */ peers: number | null;
  step_before: number | null;
  /** Seconds of a step in the minutes before it was slow, and in the last ones since; null: not known. */ step_since: number | null;
  /** The part of the windows in which it is slow, where it is not in most of them; lateness and share are of all. */ often: number | null;
  cost_gpu_hours: number;
  action: Action;
  /** Empty: not decided yet. */ action_reason: string;
}

/** What slows a job down. */
export type StragglerVerdict = "healthy" | "suspected" | "worker" | "stage" | "workload" | "link" | "unexplained" | "no_step";

/** Open ones, the costliest first, then those that ended. */ export interface Stragglers { stragglers: Straggler[]; }

/** A throttled GPU. */ export interface Throttle {
  rank: number;
  /** `GPU 5`. */ gpu: string;
  reasons: string[];
  words: string;
  since: number;
  /** `88 °C, 1.20 of 1.98 GHz`; may be empty. */ readings: string;
}

/** Unix seconds of each transition: when it happened, not when it was noticed; None: not yet, or never. */ export interface Timeline {
  /** When the trouble began: the section was entered, the last heartbeat sent, the process ended. */ since: number | null;
  detected: number | null;
  decided: number | null;
  captured: number | null;
  restarted: number | null;
  first_step: number | null;
}

/** One limit with its source; seconds. */ export interface Timeout {
  /** `section`, or what else has a limit: `heartbeat`, `silence`. */ what: string;
  section: string | null;
  configured: number | null;
  learned: number | null;
  loaded: number | null;
  in_force: number | null;
  /** Null: no limit. */ source: LimitSource | null;
}

export type Tone = "bad" | "waits" | "warns" | "calm" | "over";

/** A score over the ranks; `rank`: the one of the minimum. */
export interface Trend { min: (number | null)[]; median: (number | null)[]; max: (number | null)[]; rank: (number | null)[]; }

/** Points over time, as columns. */ export interface Trends {
  at: number[];
  attempt: (number | null)[];
  /** Those with points in this time, the oldest first. */ attempts: number[];
  /** The last completed step. */ iteration: (number | null)[];
  goodput: (number | null)[];
  goodput_window: (number | null)[];
  /** Steps per second. */ speed: (number | null)[];
  scores: Record<string, Trend>;
  /** What the training script logged, by name. */ logged: Record<string, (number | null)[]>;
  /** How many values of a name were NaN or infinite; only names with any. */ non_finite: Record<string, (number | null)[]>;
}

/** What is stated of a job at one moment: made once, printed by all, derived by none. */ export interface Verdict {
  name: string;
  state: JobState;
  /** `bad`: a person is needed; `waits`: what is needed follows by itself; `warns`: it trains, with a loss. */ tone: Tone;
  /** The state in at most 90 characters; empty of a job that simply runs. */ headline: string;
  /** The same in at most 160; never empty. */ title: string;
  reason: string;
  /** When its trouble began, or it ended; null: it is well. */ since: number | null;
  /** When its open incident was detected, or the one with which it failed. */ detected: number | null;
  elapsed: number | null;
  /** Of that incident: seconds that had passed, and which of them its limit allows. */ limit: number | null;
  place: IncidentPlace | null;
  next: NextAct | null;
  /** Ranks for which no step completes. */ idle: number;
  lost: Lost | null;
  /** The last step that the newest attempt completed. */ iteration: number | null;
  goodput: number | null;
  /** Of a job that stands: steps that were thrown away and not done again. */ steps_lost: number | null;
  /** Of a job that stands: those after its last checkpoint. */ steps_at_risk: number | null;
  /** `loses up to 39 steps`; empty: not known. */ restart_loses: string;
  /** What a person should do, or what happens by itself; null: nothing. */ advice: Advice | null;
  quiet_host: QuietHost | null;
  /** Cause of lost time. */ verdict: StragglerVerdict;
  open_incidents: number;
  ended_at: number | null;
}

/** What was found wrong with a rank. */
export type VerdictKind = "never_started" | "heartbeat_overrun" | "section_overrun" | "out_of_section_overrun" | "silent" | "process_exited" | "node_lost" | "stalled" | "straggler" | "wrong_result" | "restarted_in_process" | "ordered";

/** How a job trains now. */ export interface Vitals {
  step: StepParts | null;
  /** The last values that the script logged, by name; null: not finite. */ logged: Record<string, number | null>;
}

/** What a thread waits for, as the kernel and its stack show it, and with that whether the wait ends by itself. */
export type WaitKind = "thread" | "timed" | "child" | "file_lock" | "socket" | "pipe" | "event" | "terminal" | "debugger" | "storage" | "device" | "peers" | "stopped" | "running" | "unknown";

/** Explanation of a change of the step time. */ export interface Why {
  kind: "change" | "drift" | "unsure" | "steady" | "unknown";
  sentence: string;
  since: number | null;
  before: number | null;
  /** Seconds of a step before and since. */ after: number | null;
  factor: number | null;
  cause: string;
  parts: PartChange[];
  contributors: Contributor[];
  circumstances: Circumstance[];
  /** Where the same seconds, or some of them, are seen too: sentences. */ seen: string[];
  slow: SlowSpan[];
  /** The sentence names them. */ states_slow: boolean;
  /** Null: too few. */ compared: Compared | null;
  late: StatedLate | null;
}

/** Goodput of the last hour; `seconds`: how much of it is accounted for. */
export interface Window { seconds: number; ratio: number | null; }

/** Why nothing is done about an incident, or nothing that the policy wants. */
export type Withheld = "no_launcher" | "observe_only" | "policy" | "no_restart" | "refused";

/** How an answer of NCCL stands to an incident. */ export type Witness = "agrees" | "others" | "nobody";
