// What happened since a chosen moment: one grey line beside the heading, which opens to one list by time.

import { get } from "../api/client";
import type { Digest, DigestLink } from "../api/types";
import { asOf } from "../api/connection";
import { usePolled } from "../live/poll";
import { events, span } from "../logic/fleet";
import { fleetAddress, HOURS, incidentAddress, jobAddress, nodeAddress } from "../logic/route";
import { clock } from "../logic/text";
import { Folded } from "./folded";

const EVERY_MS = 30_000;

export function DigestSection({ hours }: { hours: number }) {
  const digest = usePolled(EVERY_MS, (ended) => get<Digest>(`/digest?last=${hours * 3600}`, ended, { optional: true }), [hours]);
  if (digest === null) return null;
  return (
    <Folded name="digest" title={<>The last {span(hours)}: {digest.summary}</>} open={hours !== HOURS[0]}>
      <label class="span">
        Digest of{" "}
        <select value={hours} onChange={(event) => (location.hash = fleetAddress(Number(event.currentTarget.value)))}>
          {[...HOURS].sort((a, b) => a - b).map((each) => <option key={each} value={each}>the last {span(each)}</option>)}
        </select>
      </label>
      {digest.notes.map((note) => <p key={note.text} class="note">{note.text} (From {clock(note.at, asOf.value)} on.)</p>)}
      <ul>
        {events(digest, asOf.value).map(({ time, text, link }) => <li key={`${time} ${text}`}><time>{time}</time> {link === null ? text : <a href={address(link)}>{text}</a>}</li>)}
      </ul>
    </Folded>
  );
}

function address({ job, incident, host }: DigestLink): string {
  if (host) return nodeAddress(host);
  return incident ? incidentAddress(job, incident) : jobAddress(job);
}
