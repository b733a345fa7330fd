// The next action of a person about a job, as a link to where it is taken: the order, the node, or the page of the job.

import type { JobSummary } from "../api/types";
import { orderOf } from "../logic/nextaction";
import { jobAddress, nodeAddress } from "../logic/route";
import { prepared } from "./selection";

/** `why`: the reason of the order, which a person may change. */
export function NextAction({ job, todo, why }: { job: string; todo: NonNullable<JobSummary["todo"]>; why: string }) {
  const order = orderOf(todo, why);
  const address = order !== null ? jobAddress(job, "control") : todo.host !== "" ? nodeAddress(todo.host) : jobAddress(job);
  return <>Next: <a href={address} onClick={() => order !== null && (prepared.value = order)}>{todo.text}</a></>;
}
