// Theme: dark, light, or that of the system. Colours are defined in CSS; canvas code reads them from there.

import { signal } from "@preact/signals";

export const THEMES = ["auto", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

const KEY = "rankwatch.theme";

export const theme = signal<Theme>((localStorage.getItem(KEY) as Theme | null) ?? "auto");
/** Incremented whenever colours may have changed. */
export const repaint = signal(0);

const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
const printing = matchMedia("print");

export function startTheme(): void {
  apply();
  systemIsDark.addEventListener("change", apply);
  printing.addEventListener("change", apply);
}

export function chooseTheme(chosen: Theme): void {
  theme.value = chosen;
  localStorage.setItem(KEY, chosen);
  apply();
}

function apply(): void {
  const system = systemIsDark.matches ? "dark" : "light";
  const chosen = theme.value === "auto" ? system : theme.value;
  document.documentElement.dataset.theme = printing.matches ? "light" : chosen;
  repaint.value++;
}

export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
