// The state in the title and icon of the browser tab.

import type { JobState } from "../api/types";
import { JOB_SHAPES } from "./marks";
import { colour } from "./theme";

export function showInTab(state: JobState | null, title: string): void {
  document.title = title === "" ? "Rankwatch" : `${title} · Rankwatch`;
  const icon = document.querySelector<HTMLLinkElement>('link[rel="icon"]');
  if (!icon) return;
  const fill = colour(`job-${(state ?? "starting").replace(" ", "-")}`);
  const svg = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><path fill="${fill}" fill-rule="evenodd" d="${JOB_SHAPES[state ?? "starting"]}"/></svg>`;
  icon.href = `data:image/svg+xml,${encodeURIComponent(svg)}`;
}
