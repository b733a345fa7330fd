// Types of the API responses, as far as this page reads them. Times are unix seconds, ages and durations are seconds.

/** The one word for a job, which every place shows. */
export type JobState = "starting" | "running" | "suspected" | "slow" | "no step" | "hung" | "restarting" | "stopping" | "finished" | "failed" | "stopped" | "lost";
export type RankState = "unseen" | "running" | "waiting" | "hung" | "silent" | "stopped" | "dead" | "finished" | "suspected" | "ended";

/** Summary of a job. */
export interface JobSummary {
  id: string;
  name: string;
  state: JobState;
  world_size: number;
  ranks_reporting: number;
  attempt: number;
  started_at: number | null;
  ended_at: number | null;
  goodput: number | null;
  /** What stands beside goodput, in words. Absent with older monitors. */
  goodput_notes?: string[];
  /** Of a job that stands: steps that were thrown away and not done again, and those after its last checkpoint. Null: not known. */
  steps_lost?: number | null;
  steps_at_risk?: number | null;
  /** Steps that all restarts threw away, also those done again since. Absent with older monitors. */
  steps_thrown_away?: number;
  iteration: number | null;
  /** While an attempt after an incident has completed no step: the furthest step before. Absent with older monitors. */
  iteration_before?: number | null;
  /** Zero while no step completes; null: unknown. */
  iterations_per_second: number | null;
  /** While no step completes: how long one usually took; null: unknown, or steps complete. Absent with older monitors. */
  step_seconds?: number | null;
  /** When the last message of any rank or launcher arrived. Absent with older monitors. */
  last_heard?: number | null;
  instrumented: boolean;
  observe_only: boolean;
  open_incidents: number;
  open_stragglers?: number;
  incidents: number;
  /** Cause of lost time: "healthy", "worker", "stage", "workload", "link", "unexplained", "no_step". Absent with older monitors. */
  verdict?: string;
  /** The state in at most 90 characters. Absent with older monitors. */
  headline?: string;
  /** Since when it hangs, recovers, is suspected, lost, failed or slow; null: it is not. Absent with older monitors. */
  trouble_since?: number | null;
  /** Since when it is being restarted, in unix seconds; null: it is not. */
  recovering_since?: number | null;
  /** What a person should do, or what happens by itself; null: nothing. */
  advice: Advice | null;
  /** Of a failed job: why no restart followed; empty: not stated. Absent with older monitors. */
  no_restart?: string;
  /** The last one that is known: after which step, null: the script counts none; exact: an attempt loaded it. Absent with older monitors. */
  checkpoint?: { step: number | null; at: number; exact?: boolean } | null;
  /** Of a failed job: the crash with which it ended, if the same one came before; null: it did not. Absent with older monitors. */
  repeated?: { rank: number; host: string; times: number; seconds: number; cost: number; lost_steps_s?: number; steps_lost?: number; step: number | null; text: string } | null;
  /** Hosts that may be down: nothing is received of them, while others wait. Absent with older monitors. */
  quiet_host?: QuietHost | null;
  reason: string;
  restarts: number;
  max_restarts: number;
}

/** `since`: the last message of any of their ranks or launchers; `limit`: seconds until an incident names them, null: never. */
export interface QuietHost {
  hosts: string[];
  ranks: number[];
  since: number;
  limit: number | null;
  /** Other jobs that are heard from each of these hosts, so that they are up; 0: one of them may be down. */
  other_jobs: number;
  /** Which hosts are not heard since when, with their ranks and launchers; times in UTC. */
  headline: string;
}

/** The one advice about a job, which list, page, terminal and messages show. */
export interface Advice {
  /** The row of the playbook. */
  rule: string;
  /** In one line: the first step, or what is awaited until when. */
  text: string;
  /** No person is needed now. */
  waits: boolean;
  /** In their order; while it waits, what can be looked at meanwhile. */
  steps: Step[];
  /** When what is awaited is due, in unix seconds; null: not known. */
  until: number | null;
  /** What is to be done if it has not come by then. */
  otherwise: Step | null;
  /** Orders that may be given now, the likeliest first; `proposed`: the steps advise the first one. */
  orders: Order[];
  proposed: boolean;
  /** When the first one is to be given: "if it stays slow"; empty: now. */
  condition: string;
  /** What a restart loses stands beside it. */
  weighs_restart: boolean;
  notes: string[];
  /** What follows from each output of the first command. */
  alternatives: string[];
  /** The node that it is about; empty: none, or several. */
  host: string;
  /** Page and section of the manual. */
  runbook: string;
}

/** An order with the words of its button; `hosts` are those it leaves out. */
export interface Order {
  action: string;
  words: string;
  ranks: number[];
  hosts: string[];
}

/** A job owned by another monitor on the same database. `monitor` is null while no monitor owns it. */
export interface JobElsewhere extends Pick<JobSummary, "id" | "name" | "state" | "world_size" | "attempt" | "started_at"> {
  monitor: string | null;
}

/** What `GET /jobs/{id}` adds to the summary, as far as this page shows it. */
export interface JobDetail extends JobSummary {
  timeouts: Timeout[];
  /** Absent with older monitors. */
  nodes?: Launcher[];
  /** Absent with older monitors. */
  vitals?: Vitals;
  /** How it trains, or has trained, in clauses; empty of one in trouble. Absent with older monitors. */
  account?: string[];
  /** Where a save of the last steps of a finished job may stand. Absent with older monitors. */
  unsaved_log?: Place | null;
}

/** How a job trains now; null: not known. Seconds, degrees Celsius, hertz; ranges from the smallest to the largest. */
export interface Vitals {
  step: { seconds: number; parts: Record<string, number>; waiting: number | null } | null;
  /** The last values that the script logged, by name. */
  logged: Record<string, number>;
  gpu_temperature: [number, number] | null;
  gpu_clock: [number, number] | null;
}

/** One launcher and its role in the job. */
export interface Launcher {
  node: string;
  host: string;
  ranks: number[];
  role: "active" | "spare" | "parked";
  role_reason: string;
  /** Why the node was given up as lost; null: it is not lost. */
  lost: string | null;
  /** How the launcher ended; null: it still runs. */
  ended: string | null;
  last_seen_age: number;
  /** Time of its last message; absent with older monitors. */
  last_seen?: number;
  /** Nodes without which no attempt starts; absent or null: unknown. */
  min_nodes?: number | null;
  /** Why its node takes no part, by its checks; empty: it passes them, or they are switched off. */
  unfit?: string;
}

export interface Timeout {
  /** "section", or what else has a limit: "heartbeat", "silence". */
  what: string;
  section: string | null;
  configured: number | null;
  learned: number | null;
  loaded: number | null;
  in_force: number | null;
  /** "configured", "learned", "loaded", "first_time"; null: no limit. */
  source: string | null;
}

export interface Goodput {
  ratio: number | null;
  /** Of the last hour; `seconds`: how much of it is accounted for. */
  window: { seconds: number; ratio: number | null };
  /** Seconds by bucket. */
  buckets: Record<string, number>;
  /** "rank 21": for which ranks the others waited. Absent with older monitors. */
  waited_for?: string;
  /** The newest first. */
  incidents: LedgerEntry[];
}

/** Duration of each phase of an incident; null: the phase was not reached. */
/** Seconds that an incident costs; `since`: it grows by the clock, null: it is final. */
export interface Cost {
  seconds: number;
  since: number | null;
}

/** A phase of an incident, in unix seconds; `end`: null while it goes on. */
export interface PhaseRow {
  name: string;
  begin: number;
  end: number | null;
  mark: string;
  limit: number | null;
}

export interface LedgerEntry {
  id: string;
  kind: string;
  opened_at: number;
  phases: PhaseRow[];
  cost: Cost;
  lost_steps_s: number | null;
  steps_lost: number | null;
  outcome: string;
}

export interface RankReport {
  rank: number;
  host: string;
  pid: number | null;
  state: RankState;
  iteration: number | null;
  heartbeat_age: number | null;
  report_age: number | null;
  open_sections: Record<string, number>;
  /** In which a rank hangs or waits; null: that is not known, or it does neither. Absent with older monitors. */
  function?: string | null;
  idle: number | null;
  reason: string;
  /** Performance scores; absent with older monitors. */
  scores?: { gpu_relative?: number; gpu_individual?: number; gpu_robust?: number; lateness_share?: number };
}

export interface Overall {
  min: number;
  median: number;
  max: number;
}

/** The event `performance` of a job's stream: scores and stragglers. */
export interface Performance {
  /** When the scores were made; null: there are none yet. */
  at: number | null;
  /** When the kernel timings that the GPU scores are made of were reported; null: none were. */
  gpu_at: number | null;
  /** Reference that stragglers are detected against: "robust" or "fastest". */
  reference: string;
  processing_seconds: number | null;
  /** Over all ranks, by score; null: no rank has it. */
  overall: Record<string, Overall | null>;
  /** The rank with the lowest score, by score; null: no rank has it. Absent with older monitors. */
  lowest?: Record<string, number | null>;
  /** The worst ranks only. */
  ranks: RankScores[];
  /** Open stragglers, costliest first, truncated; `open` is their total number. */
  stragglers: Straggler[];
  open: number;
  ended: Straggler[];
  finding: Finding;
  /** What throttles the GPU of the costliest straggler; null: nothing. */
  throttled: Throttle | null;
  /** The incidents about the costliest straggler's host in a day, as a sentence; null: there were none. Absent with older monitors. */
  of_host?: { host: string; text: string } | null;
  cost_gpu_hours: number;
  /** What the costliest straggler costs by the hour, and of what; empty: not known. Absent with older monitors. */
  cost_rate?: string;
  /** One byte a rank as base64, in units of 1/200; 255: not known. */
  grid: Record<string, string>;
}

export interface RankScores {
  rank: number;
  host: string;
  gpu_relative: number | null;
  gpu_individual: number | null;
  gpu_robust: number | null;
  /** Seconds per step that the other ranks wait for this rank; negative: it waits for them. */
  lateness: number | null;
  lateness_share: number | null;
}

/** `gpu`: "GPU 5"; `words`: the reasons; `readings`: "88 °C, 1.20 of 1.98 GHz", may be empty. */
export interface Throttle {
  rank: number;
  gpu: string;
  words: string;
  since: number;
  readings: string;
}

export interface Straggler {
  id: string;
  rank: number;
  host: string;
  cause: string;
  reference: string;
  reason: string;
  since: number;
  ended: number | null;
  score: number | null;
  lateness: number | null;
  /** Lateness as a fraction of the step. */
  share: number | null;
  /** The section that holds most of it, and seconds of a step that it and its peers spend on the cause. Absent with older monitors. */
  section?: string | null;
  own?: number | null;
  peers?: number | null;
  cost_gpu_hours: number;
  action: string;
  action_reason: string;
}

/** Why the job loses time. */
export interface Finding {
  verdict: string;
  cause: string;
  reason: string;
  since: number | null;
  ranks: number[];
  share: number;
}

export interface GridEvent {
  attempt: number;
  world_size: number;
  states: string;
  legend: RankState[];
  iterations: { min: number | null; max: number | null };
}

export interface Timeline {
  since: number | null;
  detected: number | null;
  decided: number | null;
  captured: number | null;
  restarted: number | null;
  first_step: number | null;
}

export interface Culprit {
  rank: number;
  host: string;
  class: string;
  reason: string;
}

export interface Incident {
  id: string;
  job_id: string;
  kind: string;
  attempt: number;
  opened_at: number;
  closed_at: number | null;
  culprits: Culprit[];
  affected: number[];
  /** In a few words: "rank 3 hung in load_batch". Absent with older monitors. */
  label?: string;
  /** At most 90 characters. Absent with older monitors. */
  headline?: string;
  /** The headline with room for 160 characters. Absent with older monitors. */
  title?: string;
  /** What `reason` states and `title` does not; empty: nothing. Absent with older monitors. */
  detail?: string;
  /** How often the first culprit's host was named; `suspect`: of an incident that is over, what to look at there. Each may be empty. Of an incident that is over only in its detail. */
  of_host?: { host: string; text: string; suspect: string } | null;
  reason: string;
  section: string | null;
  limit: number | null;
  /** Where a limit comes from that may be configured or learned. Absent with older monitors. */
  limit_source?: string | null;
  elapsed: number | null;
  action: string;
  action_reason: string;
  /** Why nothing is done: "no_launcher", "observe_only", "policy", "no_restart", "refused". */
  withheld: string | null;
  phase: string;
  /** False: a suspicion, raised by a limit that was learned or loaded instead of configured. */
  confirmed: boolean;
  /** Of a suspicion: what several looks at its ranks showed; null: nothing yet. */
  proof: string | null;
  /** What ranks wait for that do not wait for their peers. `seconds`: until it ends, where that is known. This and the next three are absent with older monitors. */
  waits?: { rank: number; kind: string; target: string; seconds: number | null; through: string }[];
  /** When a suspicion is acted on if it still holds; null: no time ends it, or it is confirmed. */
  acts_at?: number | null;
  /** Seconds that a restart would lose; null: not known. */
  restart_cost?: number | null;
  /** Earlier attempts that stood at the same place. */
  attempts_here?: number;
  outcome: string;
  /** How it ended: "went_on", "recovered", "job_ended" ... */
  ended: string | null;
  timeline: Timeline;
  phases: PhaseRow[];
  cost: Cost;
  /** Where the first culprit is; `function` empty: no stack of it was captured. Null: not known. */
  place: { function: string; file: string; line: number; section: string | null } | null;
  /** Seconds of the lost steps. */
  lost_steps_s: number | null;
  steps_lost: number | null;
  /** The last step that any rank completed in its attempt. Absent with older monitors. */
  furthest_iteration?: number | null;
  /** Nodes that failed a check while it was open; absent with older monitors. */
  node_checks?: { node: string; host: string; name: string; text: string }[];
}

export interface Frame {
  function: string;
  file: string;
  line: number;
  /** It is of the training script and its own modules. */
  of_script: boolean;
}

export interface StackGroup {
  ranks: number[];
  label: string;
  frames: Frame[];
  is_culprit: boolean;
  process_state: string;
  /** "traceback": of the exception that ended the process, which is in `note`. */
  method?: string;
  note?: string;
}

/** Ranks with equal progress in one process group, by the sequence numbers of its collectives. */
export interface Collective {
  group: string;
  /** Of the newest collective that the ranks have entered. */
  operation: string;
  enqueued: number;
  /** -1: none. */
  completed: number;
  ranks: number[];
}

export interface IncidentDetail extends Incident {
  stack_groups: StackGroup[];
  stack_errors: { rank: number; error: string; process_state?: string }[];
  /** This one and what follows are absent with older monitors. */
  collectives?: Collective[];
  logs?: RankLog[];
  /** What shows the logs of the ranks that run now. */
  log_place?: Place;
}

/** Where a log is: what shows it, on `host` or anywhere in the cluster; empty: not known. */
export interface Place {
  command: string;
  host: string;
  /** What to know before it is read. This and `newest` are absent with older monitors. */
  note?: string;
  /** The run is not known: the command shows the newest in its folder. */
  newest?: boolean;
}

/** The end of a log of a rank that failed. */
export interface RankLog {
  rank: number;
  host: string;
  /** Empty: nothing was received. */
  stream: string;
  lines: string[];
  title: string;
  /** What the lines are, or why there are none. */
  text: string;
  place: Place;
}

/** One evaluated window of a job, or several merged into one. */
export interface HistorySample {
  at: number;
  attempt?: number;
  /** -1: not known. */
  iteration?: number;
  seconds: number;
  step: number;
  step_max: number;
  /** Seconds by part, medians over ranks; empty: no step was profiled. */
  parts: Record<string, number>;
  /** Seconds of the communication in which the median rank waits for the slowest; null: not measured. Absent with older monitors. */
  waiting?: number | null;
  /** Where they are asked for: clocks in hertz, over the ranks; a section's seconds, and the rank with the most. */
  device?: { clock: number | null; clock_min: number | null; temperature?: number | null; clock_rank?: number | null; temperature_rank?: number | null; temperature_median?: number | null } | null;
  section?: { median: number; max: number; worst: number } | null;
  /** Of the rank with the most own work: its seconds, those beyond the median rank's, and its seconds by part. */
  slowest?: { rank: number; work: number; late: number; parts: Record<string, number> } | null;
}

/** Explanation of a change of the step time. */
export interface Why {
  kind: "change" | "drift" | "unsure" | "steady" | "unknown";
  sentence: string;
  since: number | null;
  /** Seconds of a step before and since. */
  before?: number | null;
  after?: number | null;
  contributors: { sentence: string; share: number; kind?: string; name?: string }[];
  /** What else changed then. */
  circumstances?: { kind: string }[];
  /** Where the same seconds, or some of them, are seen too: sentences. Absent with older monitors. */
  seen?: string[];
  /** The ranks that are or were slow in that time. Absent with older monitors. */
  slow?: { sentence: string }[];
}

/** Points over time, as columns. */
export interface Trends {
  at: number[];
  /** This one and `speed`, `logged` are absent with older monitors. */
  attempt?: (number | null)[];
  /** Those with points in this time, the oldest first. This one, `iteration` and `non_finite` are absent with older monitors. */
  attempts?: number[];
  /** The last completed step. */
  iteration?: (number | null)[];
  /** How many values of a name were NaN or infinite; only names with any. */
  non_finite?: Record<string, (number | null)[]>;
  /** Steps per second. */
  speed?: (number | null)[];
  /** What the training script logged, by name. */
  logged?: Record<string, (number | null)[]>;
  goodput: (number | null)[];
  goodput_window: (number | null)[];
  /** `rank`: the one of the minimum; absent with older monitors. */
  scores: Record<string, { min: (number | null)[]; median: (number | null)[]; max: (number | null)[]; rank?: (number | null)[] }>;
}

/** Sections of chosen ranks in their last sampled steps. */
export interface SectionTimeline {
  attempt: number;
  /** What the steps show, in a sentence; empty: no steps are shown. */
  finding: string;
  /** What its figures are of, and the job's own figure beside them. */
  basis: string;
  /** Iterations of which any of the ranks has spans. */
  sampled: number[];
  /** Those of them whose time in collectives is known. */
  profiled: number[];
  /** Why it may be unknown. */
  no_waits: string;
  /** Why there are no sections, then what to check; empty: there are. */
  no_sections: string[];
  sections: string[];
  ranks_known: number;
  ranks: RankLane[];
}

export interface RankLane {
  rank: number;
  host: string;
  steps: RankStep[];
}

export interface RankStep {
  iteration: number;
  /** Unix seconds by the clock of its host. */
  began: number;
  seconds: number;
  /** Number of the section, depth, seconds since the step's beginning, seconds it took. */
  spans: [section: number, depth: number, start: number, duration: number][];
  /** In collectives, while nothing was computed; null: not measured. */
  waits: [start: number, duration: number][] | null;
}

/** The costliest kernels of a job with their trends. */
export interface Kernels {
  /** Time of the last report. */
  at: number | null;
  /** Where the trends begin; they are not stored. */
  since: number | null;
  /** Seconds that a point of the trends covers. */
  spacing: number;
  /** Why there are no kernels; empty: there are. */
  reason: string;
  sources: { source: string; reason: string; ranks: number }[];
  points: number[];
  /** By total time, the costliest first. */
  kernels: Kernel[];
  omitted: number;
  /** Seconds of a step that the median rank computes, and of the whole step; null: not profiled. Absent with older monitors. */
  compute?: number | null;
  step?: number | null;
  /** The rank that the others wait for longest; null: no rank is slow. Absent with older monitors. */
  straggler?: number | null;
}

/** One kernel over all ranks; seconds of one call. */
export interface Kernel {
  name: string;
  share: number;
  ranks: number;
  median: number;
  tail: number | null;
  /** Median of the fastest rank. Absent with older monitors. */
  fastest?: number | null;
  slowest_rank: number;
  slowest_host: string;
  slowest: number;
  /** The fastest rank's median divided by that of the slowest; null: one rank. */
  relative: number | null;
  /** The median now divided by the usual one; null: too few points. */
  change: number | null;
  slower_since: number | null;
  trend: (number | null)[];
  /** Of the rank that was the slowest at each time, which rank that was, and since when the present one has been. Absent with older monitors. */
  slowest_trend?: (number | null)[];
  slowest_ranks?: (number | null)[];
  uneven_since?: number | null;
  /** Median of the table's straggler. */
  straggler?: number | null;
}

/** Definition of one policy setting. */
export interface Setting {
  name: string;
  kind: "switch" | "choice" | "whole" | "number" | "share" | "text" | "seconds_by_name";
  choices: string[];
  /** Null switches it off. */
  optional: boolean;
  default: SettingValue;
  unit: string;
  meaning: string;
}

export interface PolicySchema {
  settings: Setting[];
  /** What each action does; absent with older monitors. */
  actions?: Record<string, string>;
}

export type SettingValue = boolean | number | string | null | Record<string, number | null>;

/** A host that incidents have named. */
export interface NamedHost {
  host: string;
  incidents: number;
  /** Of 24 h and those that are open: `text` "3 incidents and 1 open suspicion in 4 jobs", `counted` by kind: "3 incidents (2 hangs, 1 silent) and 1 open suspicion". Absent with older monitors. */
  lately?: { incidents: number; suspicions: number; jobs: number; text: string; counted: string };
  /** "GPU 5, rank 5: 5 crashes in 2 jobs", of hangs "rank 13 in load_batch: 2 hangs in 2 jobs", if one has more faults than the others. Absent with older monitors. */
  gpu?: string | null;
  /** `since`: when its trouble began; absent with older monitors. */
  last: { job: string; incident: string; opened_at: number; since?: number; headline: string };
}

/** What a device reported last. */
export interface Device {
  /** 0 to 1. */
  utilization: number | null;
  /** Bytes. */
  memory_used: number | null;
  memory_total: number | null;
  /** Degrees Celsius. */
  temperature: number | null;
  /** Watts. */
  power: number | null;
  throttled: string[];
  errors: Record<string, number>;
  /** When it was received; null: not known. Absent with older monitors. */
  at?: number | null;
}

/** A rank on the page of a node or a group; `groups` are its coordinates in the parallel layout. */
export interface PlacedRank extends RankReport {
  device?: Device | null;
  groups: Partial<Record<Dimension, number>>;
  /** How slow it is now; null: it is not. Absent with older monitors. */
  straggler?: Pick<Straggler, "share" | "score" | "since" | "reason"> | null;
}

export type Dimension = "data" | "tensor" | "pipeline" | "expert";

/** What a job is labelled by, in the list and on the pages of its nodes. */
export type Labelled = Pick<JobSummary, "state" | "reason" | "headline" | "quiet_host" | "verdict" | "open_incidents" | "trouble_since" | "recovering_since" | "ended_at">;

/** What to do; `command` is run on `host`, without one anywhere in the cluster. */
export interface Step extends Place {
  text: string;
}

export interface PlacedLauncher extends Launcher {
  launcher_pid: number;
  ended_reason: string;
  /** Messages that are due since its last one are missing. Absent with older monitors. */
  silent?: boolean;
}

/** One node with what all jobs run there. */
export interface NodeDetail {
  host: string;
  summary: string;
  jobs: (Labelled & {
    job: string;
    name: string;
    over: boolean;
    attempt: number;
    total_ranks: number;
    ranks: PlacedRank[];
    launchers: PlacedLauncher[];
    groups: { dimension: Dimension; number: number; ranks: number }[];
    // What a restart loses; absent with older monitors.
  } & Partial<Pick<JobSummary, "checkpoint" | "iteration" | "steps_lost" | "steps_at_risk" | "iterations_per_second" | "step_seconds" | "goodput" | "started_at">>)[];
  incidents: {
    job: string;
    incident: string;
    kind: string;
    opened_at: number;
    closed_at: number | null;
    /** From when to when it cost time; null: it still does. */
    since: number;
    until: number | null;
    headline: string;
    outcome: string;
    /** Whether the node is its culprit, its suspect, or quiet while it is open. Absent with older monitors. */
    named_as?: "culprit" | "suspect" | "quiet";
  }[];
  /** Confirmed incidents of which it is a culprit. */
  named_by: number;
  /** "4 (1 suspected, 1 silent)". Absent with older monitors. */
  counted?: string;
  /** What points to the node, or to one GPU of it. This and what follows are absent with older monitors. */
  verdict?: string;
  /** In how many jobs it is heard; empty: none runs there. */
  presence?: string;
  /** What to do about it, with commands to run on the node and on any machine of the cluster; null: nothing points to it. */
  todo?: { text: string; here: string[]; anywhere: string[]; drain?: string[]; process?: string } | null;
  /** "suspect", "may be down", "partly silent", "up", "idle". Absent with older monitors. */
  state?: string;
  /** The one with the most faults first. */
  gpus?: {
    name: string;
    uuid: string | null;
    /** Confirmed incidents, and jobs in which it was slow. */
    faults: number;
    slow: number;
    /** "5 crashes in 2 jobs, slow in 1"; empty: none. */
    history: string;
    ranks: { job: string; name: string; rank: number; pid: number | null; state: RankState }[];
    /** Ranks on it that are slow now, by whatever cause. Absent with older monitors. */
    slow_now?: { job: string; name: string; rank: number; since: number; by_gpu: boolean; text: string }[];
    reading: Device | null;
  }[];
  /** The advice about each job with an open incident about it or a slow rank on it, or that failed by it; `remaining`: without the node, null: it cannot be left out now. */
  of_jobs: { job: string; name: string; advice: Advice; remaining: { nodes: number; of: number; spares: number; min_nodes?: number } | null }[];
}

/** One group of the parallel layout. */
export interface GroupDetail {
  job: string;
  name: string;
  dimension: Dimension;
  number: number;
  /** Of the groups of more than one rank. */
  numbers: number[];
  /**
   * Those groups, truncated: the state of the worst rank of each, how many are slow, the furthest step, and in seconds the longest own
   * work of a rank within a step and that step; null: not known.
   */
  beside: { number: number; state: RankState; slow: number; iteration: number | null; work: number | null; step: number | null }[];
  attempt: number;
  total_ranks: number;
  hosts: number;
  iterations: { min: number | null; max: number | null };
  /** What the job is labelled by. */
  label: Labelled;
  advice: JobSummary["advice"];
  /** Whether the group is the cause of what is wrong with the job, and what was measured of a slow rank; the first rank that the others wait for, and the group it is in. */
  standing: { role: "cause" | "waits" | "calm" | "unknown"; text: string; detail?: string; rank: number | null; number: number | null };
  /** How many ranks are in each state. */
  summary: string;
  incident: { id: string; headline: string } | null;
  /** The worst first, truncated. */
  ranks: PlacedRank[];
  collectives: { incident: string | null; at: number | null; rows: Collective[] };
}

/** All nodes of all jobs. */
export interface NodeMap {
  /** Meaning of the state codes; the last one stands for no ranks. */
  legend: string[];
  jobs: { id: string; name: string }[];
  total: number;
  /** Ranks that are slow now by host; only hosts with any. Absent with older monitors. */
  slow?: Record<string, number>;
  /** The ids of the jobs of these ranks. Absent with older monitors. */
  slow_jobs?: Record<string, string[]>;
  /** The ids of the jobs of the worst ranks, of hosts in trouble. Absent with older monitors. */
  worst_jobs?: Record<string, string[]>;
  /** Name, state code of the worst rank, ranks, incidents that named it, places of its jobs in `jobs`. */
  hosts: [host: string, state: number, ranks: number, incidents: number, jobs: number[]][];
}

/** What happened over all jobs since a moment. */
export interface Digest {
  since: number;
  until: number;
  summary: string;
  lines: { kind: string; text: string; links: DigestLink[]; more: number }[];
  /** What is left out, and the moment from which the record reaches. */
  notes: { text: string; at: number }[];
}

/** Leads to an incident, a job or a node; what does not apply is empty. */
export interface DigestLink {
  text: string;
  job: string;
  incident: string;
  host: string;
  at: number | null;
}
