// How a job trains: a step and its parts, what the script logged last, the range of its GPUs.

import type { JobSummary, Vitals } from "../api/types";
import { asOf } from "../api/connection";
import { goesOn, momentWords } from "../logic/lastword";
import { vitalFacts } from "../logic/vitals";
import { Facts } from "./facts";

/** `drawn`: logged values with a chart, whose newest figures stand there. */
export function VitalSigns({ job, vitals, drawn }: { job: JobSummary; vitals: Vitals | null; drawn: readonly string[] }) {
  if (vitals === null || !job.instrumented) return null;
  const facts = vitalFacts(vitals, drawn);
  const logs = Object.keys(vitals.logged).length > 0;
  if (facts.length === 0 && !goesOn(job)) return null;
  return (
    <section class="vitals">
      <h2>Training {momentWords(job, asOf.value)}{vitals.step && <> <small>the newest window</small></>}</h2>
      <Facts kind="facts" facts={facts} />
      {!logs && goesOn(job) && <p class="note">The script logs no loss and no throughput: <a href="/manual/page.html#charts">how to log them</a>.</p>}
    </section>
  );
}
