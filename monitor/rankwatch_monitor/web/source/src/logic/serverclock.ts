// The monitor's clock, read from its `clock` events and continued by the browser's monotonic clock.

import type { Clock } from "../api/types";

/** Silence after which the monitor counts as frozen or cut off. It sends a clock event at least every 2 s. */
export const SILENT_MS = 4500;
/** Age of the last evaluation after which its results count as outdated. */
const NOT_EVALUATED_S = 10;

export interface Stale {
  /** Unix seconds that the figures refer to. */
  since: number;
  /** The monitor answers, but does not evaluate jobs. */
  answering: boolean;
}

/** All `ms` are milliseconds of a monotonic clock. */
export class ServerClock {
  private origin: { now: number; ms: number; judged: number | null } | null = null;
  private aliveMs = 0;
  private newest = 0;

  get known(): boolean {
    return this.origin !== null;
  }

  /** Take a clock event. */
  take({ now, judged }: Clock, ms: number): void {
    this.origin = { now, ms, judged };
    this.alive(ms);
  }

  /** Something was received of the monitor. */
  alive(ms: number): void {
    this.aliveMs = Math.max(this.aliveMs, ms);
  }

  /** A new connection was made: its clock may be behind that of the monitor before. */
  restart(ms: number): void {
    this.newest = 0;
    this.alive(ms);
  }

  /** Expect no more clock events until the next one. */
  forget(): void {
    this.origin = null;
    this.newest = 0;
  }

  /** Unix seconds by the monitor's clock; never runs backwards within a connection. */
  at(ms: number): number {
    const { now, ms: then } = this.origin!;
    return (this.newest = Math.max(this.newest, now + (ms - then) / 1000));
  }

  /** Whether the figures are outdated, and since when; null: they are current, or nothing was sent yet. */
  stale(ms: number): Stale | null {
    if (this.origin === null) return null;
    const { now, ms: then, judged } = this.origin;
    if (ms - this.aliveMs >= SILENT_MS) return { since: now + Math.max(0, this.aliveMs - then) / 1000, answering: false };
    if (judged !== null && now - judged >= NOT_EVALUATED_S) return { since: judged, answering: true };
    return null;
  }
}
