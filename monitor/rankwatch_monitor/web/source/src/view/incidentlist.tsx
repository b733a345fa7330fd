// All incidents of the job: since when, reason, action, downtime.

import { signal } from "@preact/signals";
import type { Incident, JobSummary } from "../api/types";
import { asOf } from "../api/connection";
import { placeWords, repeats, titleOf, wasTaken } from "../logic/incidents";
import { noIncidentWords } from "../logic/lastword";
import { costText, detectedWords } from "../logic/phases";
import { incidentAddress } from "../logic/route";
import { unconfirmedEnd } from "../logic/suspicion";
import { clock, plural, words } from "../logic/text";

const FEW = 8;
const all = signal(false);

export function IncidentList({ job, incidents, shown }: { job: JobSummary; incidents: readonly Incident[]; shown: string | null }) {
  if (incidents.length === 0) {
    return (
      <section class="ledger">
        <h2>Incidents</h2>
        <p class="note">{noIncidentWords(job, asOf.value)}</p>
      </section>
    );
  }
  const groups = repeats(incidents, (each) => titleOf(job, each, asOf.value));
  const visible = all.value ? incidents : incidents.slice(0, FEW);
  const began = (incident: Incident) => clock(incident.timeline.since ?? incident.opened_at, asOf.value);
  return (
    <section class="ledger">
      <h2>
        Incidents <small>{incidents.length}</small>
      </h2>
      <ul>
        {groups.filter(([newest]) => visible.includes(newest!)).map((same) => {
          const [newest, oldest] = [same[0]!, same.at(-1)!];
          const several = newest !== oldest;
          const why = <span class="why">{titleOf(job, newest, asOf.value)}</span>;
          return (
            <li key={oldest.id} class={unconfirmedEnd(newest) === null ? undefined : "passing"}>
              {several && <p>{why} <span class="note">{same.length} times, {began(oldest)} to {began(newest)}</span></p>}
              {same.filter((each) => visible.includes(each)).map((incident) => (
                <a key={incident.id} href={incidentAddress(job.id, incident.id)} aria-current={incident.id === shown ? "true" : undefined}>
                  <time>{began(incident)}</time>
                  {!several && why}
                  <small>{facts(job, incident)}</small>
                </a>
              ))}
            </li>
          );
        })}
      </ul>
      {visible.length < incidents.length && (
        <button type="button" class="quiet" onClick={() => (all.value = true)}>
          Show all {incidents.length}
        </button>
      )}
    </section>
  );
}

function facts(job: JobSummary, incident: Incident): string {
  return [
    unconfirmedEnd(incident) ?? (incident.closed_at !== null ? (wasTaken(incident, job.ended_at) ? words(incident.action) : "no action") : incident.confirmed ? "open" : "suspected"),
    detectedWords(incident.timeline.since ?? incident.opened_at, incident.opened_at, asOf.value),
    costText(incident, asOf.value),
    incident.steps_lost === null ? null : `${plural(incident.steps_lost, "step")} lost`,
    job.attempt > 1 ? placeWords(incident) : null,
  ].filter(Boolean).join(" · ");
}
