// Goodput: a bar of all time by what it went into.

import type { Goodput, JobSummary } from "../api/types";
import { inWords, slices, windowDiffers, windowName } from "../logic/goodput";
import { percent, wholeDuration } from "../logic/text";

export function GoodputSection({ job, goodput }: { job: JobSummary; goodput: Goodput | null }) {
  if (goodput === null) return null;
  const found = slices(goodput.buckets, goodput.waited_for);
  return (
    <section class="goodput">
      <h2>Goodput <b>{percent(job.goodput)}</b> <small>{[windowDiffers(goodput) && `${windowName(goodput.window.seconds)}: ${percent(goodput.window.ratio)}`, ...job.goodput_notes].filter(Boolean).join(", ")}</small></h2>
      <div class="track" role="img" aria-label={`Time by purpose: ${inWords(found)}.`}>
        {found.map(({ bucket, share }) => (
          // A floor of 0.4 % keeps seconds visible next to days.
          <i key={bucket} data-bucket={bucket} style={{ flexGrow: Math.max(share, 0.004) }} />
        ))}
      </div>
      <ul class="buckets" aria-label="Time by purpose">
        {found.map(({ bucket, name, seconds, share }) => (
          <li key={bucket} data-bucket={bucket}>
            <i aria-hidden="true" />
            <span>{name}</span> <b>{wholeDuration(seconds)}</b> <small>{percent(share)}</small>
          </li>
        ))}
      </ul>
    </section>
  );
}
