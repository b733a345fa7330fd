// What an order costs in steps, highlighted where training may begin again from the start.

import type { JobSummary } from "../api/types";
import { loss } from "../logic/checkpoint";

export const Loss = ({ what, job }: { what: Parameters<typeof loss>[0]; job: JobSummary }) => <small class={job.checkpoint === null ? "all-lost" : undefined}>{loss(what, job)}</small>;
