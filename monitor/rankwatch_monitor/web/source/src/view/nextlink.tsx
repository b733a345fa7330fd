// The advice about a job in one line: the next step as a link to where it is taken, or what is waited for.

import type { Advice } from "../api/types";
import { orderOf } from "../logic/nextaction";
import { jobAddress, nodeAddress } from "../logic/route";
import { prepared } from "./selection";

/** `why`: the reason of the order, which a person may change. */
export function NextLine({ job, advice, why }: { job: string; advice: Advice; why: string }) {
  if (advice.waits) return <>{advice.text}</>;
  const order = advice.proposed && advice.condition === "" ? orderOf(advice.orders[0]!, why) : null;
  const address = order !== null ? jobAddress(job, "control") : advice.host !== "" ? nodeAddress(advice.host) : jobAddress(job);
  return <a href={address} onClick={() => order !== null && (prepared.value = order)}>{advice.text}</a>;
}
