// Steps per second. The monitor's own figure where it sends one; else from the steps that this page has seen completed.

import type { JobState, JobSummary } from "../api/types";
import { median } from "./timeline";

/** Without a completed step for this long, or for some median steps if that is longer, the speed is zero. */
const PAUSE_S = 10;
const PAUSE_STEPS = 5;
const MOST = 64;
const STANDING: ReadonlySet<JobState> = new Set<JobState>(["hung", "lost", "finished", "failed", "stopped"]);

/** The steps of one job as they were seen. */
export class Steps {
  private seen: { at: number; step: number }[] = [];

  note(step: number | null, at: number): void {
    const last = this.seen.at(-1);
    if (step === null || step === last?.step) return;
    if (last && step < last.step) this.seen = []; // restarted from a checkpoint
    this.seen.push({ at, step });
    if (this.seen.length > MOST) this.seen.shift();
  }

  /** How long no step has to complete for a speed of zero; `estimate`: of the monitor, until two steps were seen. */
  private pause(estimate: number | null): number {
    const each = this.seen.slice(1).map(({ at, step }, i) => (at - this.seen[i]!.at) / (step - this.seen[i]!.step));
    const step = each.length > 0 ? median(each) : 1 / (estimate ?? 0);
    return Math.max(PAUSE_S, PAUSE_STEPS * step);
  }

  /** Null: too few steps were seen. A burst after a gap counts for the whole gap. */
  rate(now: number, estimate: number | null = null): number | null {
    const last = this.seen.at(-1);
    if (last === undefined) return null;
    const pause = this.pause(estimate);
    if (now - last.at > pause) return 0;
    const first = this.seen.findLast(({ at }) => at <= now - pause) ?? this.seen[0]!;
    return last.at - first.at < 1 ? null : (last.step - first.step) / (last.at - first.at);
  }
}

/** Null: not known. */
export function speedOf(job: JobSummary, steps: Steps, now: number): number | null {
  if (job.steps_per_second !== undefined) return job.steps_per_second;
  if (STANDING.has(job.state)) return 0;
  return steps.rate(now, job.iterations_per_second) ?? job.iterations_per_second;
}
