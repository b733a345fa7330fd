// What an order costs in steps, highlighted where training may begin again from the start.

import { asOf } from "../api/connection";
import { type Known, loss } from "../logic/checkpoint";

export const Loss = ({ what, job }: { what: Parameters<typeof loss>[0]; job: Known }) => <small class={job.checkpoint === null ? "all-lost" : undefined}>{loss(what, job, asOf.value)}</small>;
