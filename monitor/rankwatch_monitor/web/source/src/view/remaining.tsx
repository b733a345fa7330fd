// What a job has left after a restart without some nodes, highlighted where no spare takes their place.

import { type Left, leftWords } from "../logic/policy";

export const Remaining = ({ left }: { left: Left | null | undefined }) => left && <small class={left.spares === 0 ? "no-spare" : undefined}>{leftWords(left)}</small>;
