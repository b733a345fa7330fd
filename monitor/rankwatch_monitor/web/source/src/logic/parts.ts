// The colours of what a step and a run consist of: one for each part, in the timeline, the charts and the bar of goodput.

/** The name of each part's colour in CSS, without its dashes. */
export const PARTS = {
  compute: "part-compute",
  backward: "part-compute-deep",
  optimizer: "part-compute-pale",
  host: "part-host",
  data: "part-data",
  communication: "part-communication",
  waiting: "part-waiting",
  checkpoint: "part-checkpoint",
  evaluation: "part-evaluation",
} as const;

/** The section of a whole step lies behind what it consists of. */
const STEP = "part-step";
/** Sections of computation are shades of one colour. */
const SECTIONS: readonly (readonly [RegExp, string])[] = [
  [/^(train_?)?step$/, STEP],
  [/checkpoint|ckpt|^save/, PARTS.checkpoint],
  [/^eval|^valid/, PARTS.evaluation],
  [/data|loader|batch|^input|^fetch/, PARTS.data],
  [/all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|barrier|sync|comm|collective|^send|^recv/, PARTS.communication],
  [/backward|bwd/, PARTS.backward],
  [/optim|update|zero_grad|clip/, PARTS.optimizer],
  [/forward|fwd|loss|model|compute/, PARTS.compute],
];
/** Of sections whose names state no part, in turn. */
const OTHERS = ["series-6", "series-7", "series-9"];

/** The colour of a section by its name; `index` tells those apart whose names state no part. */
export function sectionTone(name: string, index: number): string {
  const known = SECTIONS.find(([pattern]) => pattern.test(name.toLowerCase()));
  return known?.[1] ?? OTHERS[index % OTHERS.length]!;
}
