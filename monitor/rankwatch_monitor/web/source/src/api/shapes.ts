// What the monitor sends, as this page uses it. Times are unix seconds, ages and durations are seconds.

export type JobState = "starting" | "running" | "hung" | "recovering" | "finished" | "failed" | "stopped" | "lost";
export type RankState = "unseen" | "running" | "waiting" | "hung" | "silent" | "stopped" | "dead" | "finished";

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
  iteration: number | null;
  iterations_per_second: number | null;
  instrumented: boolean;
  observe_only: boolean;
  open_incidents: number;
  incidents: number;
  reason: string;
  restarts: number;
  max_restarts: number;
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
  idle: number | null;
  reason: string;
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
  reason: string;
  section: string | null;
  limit: number | null;
  elapsed: number | null;
  action: string;
  action_reason: string;
  phase: string;
  outcome: string;
  timeline: Timeline;
  steps_lost: number | null;
}

export interface Frame {
  function: string;
  file: string;
  line: number;
}

export interface StackGroup {
  ranks: number[];
  label: string;
  frames: Frame[];
  is_culprit: boolean;
  process_state: string;
}

export interface IncidentDetail extends Incident {
  stack_groups: StackGroup[];
  stack_errors: { rank: number; error: string }[];
}
