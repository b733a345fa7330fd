// The figures of a job that trains: its step and what it consists of, what its script logs, the range of its GPUs.

import type { Vitals } from "../api/types";
import { figure, ofStep, range } from "./text";

const MOST_LOGGED = 6;
const ORDER: readonly string[] = ["compute", "communication", "waiting", "host", "data"];

/** What a step consists of, the time of waiting apart from that of communication: "compute 131 ms, communication 20 ms". */
export function partsWords({ parts, waiting }: NonNullable<Vitals["step"]>): string {
  const apart: Record<string, number> = waiting === null ? parts : { ...parts, waiting, communication: Math.max(0, (parts.communication ?? 0) - waiting) };
  return Object.entries(apart)
    .sort(([a], [b]) => ORDER.indexOf(a) - ORDER.indexOf(b))
    .map(([name, seconds]) => `${name} ${ofStep(seconds)}`)
    .join(", ");
}

/** As labelled figures, without the values that are `drawn`; what is not known is left out. */
export function vitalFacts({ step, logged, gpu_temperature: temperature, gpu_clock: clock }: Vitals, drawn: readonly string[] = []): { label: string; value: string; note?: string }[] {
  const parts = step === null ? "" : partsWords(step);
  return [
    ...(step === null ? [] : [{ label: "Step time, median rank", value: ofStep(step.seconds), ...(parts && { note: parts }) }]),
    ...Object.entries(logged).filter(([name]) => !drawn.includes(name)).slice(0, MOST_LOGGED).map(([name, value]) => ({ label: name, value: figure(value) })),
    ...(temperature === null ? [] : [{ label: "GPU temperature, all ranks", value: `${range(temperature, (value) => String(Math.round(value)))} °C` }]),
    ...(clock === null ? [] : [{ label: "GPU clock, all ranks", value: `${range(clock, (value) => (value / 1e9).toFixed(2))} GHz` }]),
  ];
}
