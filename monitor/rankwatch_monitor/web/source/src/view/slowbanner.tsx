// A slow rank as the first thing on the page of its job, above the tabs: since when, in what, who waits, and what is done about it.

import type { JobSummary, Performance } from "../api/types";
import { asOf } from "../api/connection";
import { slowActionWords, slowSentence } from "../logic/stragglers";
import { WhatToDoSlow } from "./nextaction";

/** `state`: the monitor's own sentence, where no measurement explains it; `todo`: whether what to do stands here. */
export function SlowBanner({ job, performance, state, todo }: { job: JobSummary; performance: Performance; state: string; todo: boolean }) {
  const first = performance.stragglers[0]!;
  return (
    <section class="verdict slow" aria-label="Slow rank">
      <p class="now">{slowSentence(performance, job.reason, asOf.value) ?? state}</p>
      <p class="sequel">Action: {slowActionWords(first)}</p>
      {todo && performance.next_action && <WhatToDoSlow job={job} next={performance.next_action} reason={job.headline || job.reason} />}
    </section>
  );
}
