// A device reading in words.

import type { Device } from "../api/types";
import { words } from "./text";

const GIB = 2 ** 30;

/** "62 °C, 98 % busy, 71.2 of 79.6 GiB, 640 W, throttled: thermal"; empty if nothing was reported. */
export function deviceFacts(device: Device | null | undefined): string {
  if (!device) return "";
  const { temperature, utilization, memory_used: used, memory_total: total, power, throttled, errors } = device;
  return [
    temperature === null ? "" : `${Math.round(temperature)} °C`,
    utilization === null ? "" : `${Math.round(utilization * 100)} % busy`,
    used === null ? "" : `${(used / GIB).toFixed(1)}${total === null ? "" : ` of ${(total / GIB).toFixed(1)}`} GiB`,
    power === null ? "" : `${Math.round(power)} W`,
    throttled.length === 0 ? "" : `throttled: ${throttled.map(words).join(", ")}`,
    ...Object.entries(errors).filter(([, number]) => number > 0).map(([name, number]) => `${words(name)} ${number}`),
  ].filter(Boolean).join(", ");
}
