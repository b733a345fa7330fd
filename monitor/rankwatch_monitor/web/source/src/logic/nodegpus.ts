// The GPUs of a node as rows of a table: those that are alike in one, the ranks on them by state.

import type { NodeDetail, RankState } from "../api/types";
import { grouped } from "./nodes";
import { WORST_FIRST } from "./severity";
import { runs } from "./text";

export type Gpu = NonNullable<NodeDetail["gpus"]>[number];
export type RankOnGpu = Gpu["ranks"][number];

/** Fewer are shown one by one. */
const FEWEST = 3;
/** Degrees Celsius above the middle of the others from which on a GPU is shown by itself. */
const HOTTER = 10;

/** GPUs in their order; in one group those without a fault whose ranks are in the same states, and whose readings are alike. */
export function alikeGpus(gpus: readonly Gpu[]): Gpu[][] {
  const heat = gpus.map(({ reading }) => reading?.temperature).filter((value) => value != null).sort((a, b) => a - b);
  const middle = heat[heat.length >> 1] ?? 0;
  const keyOf = (gpu: Gpu) => {
    const { throttled = [], errors = {}, temperature } = gpu.reading ?? {};
    const alone = gpu.history !== "" || gpu.slow_now?.length || (temperature ?? middle) - middle > HOTTER;
    return JSON.stringify([alone && gpu.name, gpu.ranks.map(({ job, state }) => [job, state]), throttled, errors]);
  };
  return grouped(gpus, keyOf).flatMap(([, same]) => (same.length < FEWEST ? same.map((gpu) => [gpu]) : [same]));
}

/** "GPU 5", "GPUs 0–4, 6". */
export function namesOf(same: readonly Gpu[]): string {
  if (same.length === 1) return same[0]!.name;
  const numbers = same.flatMap(({ local_rank }) => local_rank ?? []);
  return numbers.length === same.length ? `GPUs ${runs(numbers)}` : `${same.length} GPUs`;
}

/** Ranks by state, the worst first. */
export function byState(ranks: readonly RankOnGpu[]): [RankState, RankOnGpu[]][] {
  return WORST_FIRST.map((state): [RankState, RankOnGpu[]] => [state, ranks.filter((each) => each.state === state)]).filter(([, found]) => found.length > 0);
}

/** Whether the first one has several faults, and more than any other. */
export function standsOut([first, second]: readonly Gpu[]): boolean {
  const weight = (gpu: Gpu | undefined) => (gpu ? gpu.faults + gpu.slow : 0);
  return weight(first) > 1 && weight(first) > weight(second);
}

/** A job where several may share a name: by its id. */
export const jobTitle = ({ job, name }: { job: string; name: string }): string => (name === job ? name : job);
