// All incidents of the job, the newest first: since when, what, and what it cost.

import type { Incident, JobSummary } from "../api/types";
import { asOf } from "../api/connection";
import { placeWords, unconfirmedEnd, wasTaken } from "../logic/incidents";
import { costText } from "../logic/phases";
import { incidentAddress } from "../logic/route";
import { clock, plural, words } from "../logic/text";
import { useFew } from "./table";

const FEW = 8;

export function IncidentList({ job, incidents, shown }: { job: JobSummary; incidents: readonly Incident[]; shown: string | null }) {
  const [visible, more] = useFew(incidents, FEW);
  if (incidents.length === 0) return null;
  return (
    <section class="ledger">
      <h2>
        Incidents <small>{incidents.length}</small>
      </h2>
      <ul>
        {visible.map((incident) => (
          <li key={incident.id} class={unconfirmedEnd(incident) === null ? undefined : "passing"}>
            <a href={incidentAddress(job.id, incident.id)} aria-current={incident.id === shown ? "true" : undefined}>
              <time>{clock(incident.timeline.since ?? incident.opened_at, asOf.value)}</time>
              <span class="why">{incident.title}</span>
              <small>{facts(job, incident)}</small>
            </a>
          </li>
        ))}
      </ul>
      {more}
    </section>
  );
}

function facts(job: JobSummary, incident: Incident): string {
  return [
    unconfirmedEnd(incident) ?? (incident.closed_at !== null ? (wasTaken(incident, job.ended_at) ? words(incident.action) : "no action") : incident.confirmed ? "open" : "suspected"),
    costText(incident, asOf.value),
    incident.steps_lost === null ? null : `${plural(incident.steps_lost, "step")} lost`,
    job.attempt > 1 ? placeWords(incident) : null,
  ].filter(Boolean).join(" · ");
}
