// Steps per second since the page was opened, with incidents as bands.

import type { Incident, JobSummary } from "../api/types";
import { sampled, samplesOf, speed } from "../live/samples";
import { count, rate } from "../logic/text";
import { Plot } from "./plot";

const HEIGHT = 150;
/** Minimum length of the time axis. */
const SHORTEST_S = 60;

export function RateChart({ job, incidents }: { job: JobSummary; incidents: readonly Incident[] }) {
  void sampled.value; // the samples grow in place
  const samples = samplesOf(job.id);
  const perSecond = speed(job);
  const { value, unit } = rate(perSecond);
  return (
    <section class="speed">
      <h2>
        Steps per second <small>since the page opened</small>
      </h2>
      <Plot
        key={job.id} bare height={HEIGHT} shortest={SHORTEST_S} time={samples.time} incidents={incidents} format={count}
        name={`Line chart of ${samples.time.length} samples; now ${perSecond === null ? "unknown" : `${value} ${unit}`}.`}
        lines={[{ name: "steps per second", tone: "rank-running", fill: "chart-fill", values: samples.rate }]}
      />
    </section>
  );
}
