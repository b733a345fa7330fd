// Which stack frames to show: the training code's own, and where the stacks of groups diverge.

import type { Frame, StackGroup } from "../api/types";

/** A short, distinctive part of a path: package and file of an installed file, else the last two parts. */
export function shortFile(file: string): string {
  const installed = /(?:site|dist)-packages[\\/](.+)$/.exec(file);
  const parts = (installed?.[1] ?? file).split(/[\\/]/);
  if (installed && parts.length > 2) return `${parts[0]}/…/${parts.at(-1)}`;
  return parts.slice(-2).join("/");
}

/** How many of the outermost frames all groups share. */
export function sharedOuter(groups: readonly StackGroup[]): number {
  const stacks = groups.map((group) => group.frames).filter((frames) => frames.length > 0);
  if (stacks.length < 2) return 0;
  // Of the shortest stack at least the innermost frame is shown.
  const shortest = Math.min(...stacks.map((frames) => frames.length)) - 1;
  for (let depth = 0; depth < shortest; depth++) {
    const outer = stacks.map((frames) => frames[frames.length - 1 - depth]!);
    if (!outer.every((frame) => sameLine(frame, outer[0]!))) return depth;
  }
  return shortest;
}

function sameLine(a: Frame, b: Frame): boolean {
  return a.function === b.function && a.file === b.file && a.line === b.line;
}
