// A slow rank as the first thing on the page of its job, above the tabs: in what, who waits, and what is done about it.

import type { JobSummary, Launcher, Performance } from "../api/types";
import { asOf } from "../api/connection";
import { slowFacts } from "../logic/stragglers";
import { Band } from "./band";
import { Facts } from "./facts";
import { WhatToDoSlow } from "./nextaction";
import { OfHost } from "./placelinks";
import { ShareJob } from "./share";

/** `title`: the monitor's own sentence. */
export function SlowBanner({ job, launchers, performance, title, brief }: { job: JobSummary; launchers: readonly Launcher[]; performance: Performance; title: string; brief: boolean }) {
  return (
    <Band kind="slow" label="Slow rank" title={title} brief={brief}>
      {performance.of_host && <OfHost {...performance.of_host} />}
      <div class="beside">
        <WhatToDoSlow job={job} launchers={launchers} reason={job.headline || job.reason} />
        <Facts kind="answers" facts={slowFacts(performance, asOf.value)} />
      </div>
      <ShareJob job={job} />
    </Band>
  );
}
