// Device readings in words.

import type { Device } from "../api/types";
import { range, words } from "./text";

const GIB = 2 ** 30;

/**
 * "62 °C, 98 % busy, 71.2 of 79.6 GiB, 640 W, throttled: thermal" of one device, "61–64 °C, …" of several; empty if nothing was
 * reported. What throttles, and errors, are those of the first.
 */
export function deviceFacts(...found: readonly (Device | null | undefined)[]): string {
  const devices = found.filter((each) => each != null);
  const first = devices[0];
  if (!first) return "";
  const total = range(devices.map((each) => each.memory_total), (bytes) => (bytes / GIB).toFixed(1));
  const figures = [
    [devices.map((each) => each.temperature), (value: number) => String(Math.round(value)), " °C"],
    [devices.map((each) => each.utilization), (value: number) => String(Math.round(value * 100)), " % busy"],
    [devices.map((each) => each.memory_used), (value: number) => (value / GIB).toFixed(1), total === "" ? " GiB" : ` of ${total} GiB`],
    [devices.map((each) => each.power), (value: number) => String(Math.round(value)), " W"],
  ] as const;
  return [
    ...figures.map(([values, text, unit]) => {
      const shown = range(values, text);
      return shown === "" ? "" : shown + unit;
    }),
    first.throttled.length === 0 ? "" : `throttled: ${first.throttled.map(words).join(", ")}`,
    ...Object.entries(first.errors).filter(([, number]) => number > 0).map(([name, number]) => `${words(name)} ${number}`),
  ].filter(Boolean).join(", ");
}
