// What happened since a chosen moment, in the monitor's sentences.

import { useEffect, useState } from "preact/hooks";
import { get } from "../api/client";
import type { Digest, DigestLink } from "../api/types";
import { asOf } from "../api/connection";
import { poll } from "../live/poll";
import { fleetAddress, HOURS, incidentAddress, jobAddress, nodeAddress } from "../logic/route";
import { clock, count } from "../logic/text";

const EVERY_MS = 30_000;

export function DigestSection({ hours = HOURS[0] }: { hours?: number | undefined }) {
  const [digest, take] = useState<Digest | null>(null);
  useEffect(() => poll(EVERY_MS, async (ended) => take(await get<Digest>(`/digest?last=${hours * 3600}`, ended, true))), [hours]);
  if (digest === null) return null; // not there yet, or an older monitor
  return (
    <section class="digest" aria-labelledby="digest">
      <h2 id="digest">
        Since {clock(digest.since, asOf.value)} <small>as of {clock(digest.until, asOf.value)}</small>
      </h2>
      <label class="span">
        Digest of{" "}
        <select value={hours} onChange={(event) => (location.hash = fleetAddress(Number(event.currentTarget.value)))}>
          {[...HOURS].sort((a, b) => a - b).map((each) => <option key={each} value={each}>the last {each < 72 ? (each === 1 ? "hour" : `${each} h`) : `${each / 24} days`}</option>)}
        </select>
      </label>
      <p class="sum">{digest.summary}.</p>
      {digest.notes.map((note) => <p key={note.text} class="note">{note.text} (From {clock(note.at, asOf.value)} on.)</p>)}
      {digest.lines.length > 0 && (
        <ul>
          {digest.lines.map((line) => (
            <li key={line.text}>
              {line.text}
              <ul>
                {line.links.map((link) => (
                  <li key={`${link.text} ${link.at}`}>{link.at !== null && <time>{clock(link.at, asOf.value)}</time>} <a href={address(link)}>{link.text}</a></li>
                ))}
                {line.more > 0 && <li class="note">and {count(line.more)} more</li>}
              </ul>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

function address({ job, incident, host }: DigestLink): string {
  if (host) return nodeAddress(host);
  return incident ? incidentAddress(job, incident) : jobAddress(job);
}
