// What can be handed on of a job or an incident: its address, its stacks, and all of it in a file.

import type { Signal } from "@preact/signals";
import type { Incident, IncidentDetail, JobSummary } from "../api/types";
import { stacksText } from "../logic/export";
import { incidentAddress, jobAddress } from "../logic/route";
import { saveFile } from "./clipboard";
import { Copy } from "./copy";
import { Folded } from "./folded";

export function Share({ job, incident, detail }: { job: JobSummary; incident: Incident | null; detail: Signal<IncidentDetail | null> }) {
  const address = location.origin + location.pathname + (incident === null ? jobAddress(job.id) : incidentAddress(job.id, incident.id));
  const stacks = detail.value === null ? "" : stacksText(detail.value);
  const save = () => saveFile(`${incident?.id ?? job.id}.json`, JSON.stringify({ job, incident: detail.value ?? incident }, null, 2), "application/json");
  return (
    <Folded name="share" title="Share">
      <p class="ways">
        <Copy text={address} label="Copy link" />
        {stacks !== "" && <Copy text={stacks} label="Copy stacks" />}
        <button type="button" onClick={save}>Download all</button>
      </p>
    </Folded>
  );
}
