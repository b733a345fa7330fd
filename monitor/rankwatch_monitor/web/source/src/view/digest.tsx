// What happened since a chosen moment, in the monitor's sentences: one line, which opens.

import { signal } from "@preact/signals";
import { Fragment } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get } from "../api/client";
import type { Digest, DigestLink } from "../api/types";
import { asOf } from "../api/connection";
import { poll } from "../live/poll";
import { span } from "../logic/fleet";
import { fleetAddress, HOURS, incidentAddress, jobAddress, nodeAddress } from "../logic/route";
import { clock, count } from "../logic/text";

const EVERY_MS = 30_000;

/** Whether the sentences below the summary are shown, also after another page was looked at; null: as the address wants it. */
const opened = signal<boolean | null>(null);

export function DigestSection({ hours = HOURS[0] }: { hours?: number | undefined }) {
  const [digest, take] = useState<Digest | null>(null);
  useEffect(() => poll(EVERY_MS, async (ended) => take(await get<Digest>(`/digest?last=${hours * 3600}`, ended, { optional: true }))), [hours]);
  if (digest === null) return null; // not there yet, or an older monitor
  return (
    <details class="digest" open={opened.value ?? hours !== HOURS[0]} onToggle={(event) => (opened.value = event.currentTarget.open)}>
      <summary>
        <h2>The last {span(hours)}</h2> <span class="sum">{counts(digest.summary)}</span>
      </summary>
      <label class="span">
        Digest of{" "}
        <select value={hours} onChange={(event) => (location.hash = fleetAddress(Number(event.currentTarget.value)))}>
          {[...HOURS].sort((a, b) => a - b).map((each) => <option key={each} value={each}>the last {span(each)}</option>)}
        </select>{" "}
        since {clock(digest.since, asOf.value)}, as of {clock(digest.until, asOf.value)}
      </label>
      {digest.notes.map((note) => <p key={note.text} class="note">{note.text} (From {clock(note.at, asOf.value)} on.)</p>)}
      {digest.lines.length > 0 && (
        <ul>
          {digest.lines.map((line) => (
            <li key={line.text}>
              {line.text}
              <ul>
                {line.links.map((link) => (
                  <li key={`${link.text} ${link.at}`} class="dated">{link.at !== null && <time>{clock(link.at, asOf.value)}</time>} <a href={address(link)}>{link.text}</a></li>
                ))}
                {line.more > 0 && <li class="note">and {count(line.more)} more</li>}
              </ul>
            </li>
          ))}
        </ul>
      )}
    </details>
  );
}

/** "6 incidents in 6 jobs, 2 restarts" with each count on its own, the figure in bold. */
function counts(summary: string) {
  return summary.split(", ").map((part) => {
    const [, figure, rest] = /^(\d[\d.,]*)( .*)$/.exec(part) ?? [];
    return <Fragment key={part}> <span class="count">{figure ? <><b>{figure}</b>{rest}</> : part}</span></Fragment>;
  });
}

function address({ job, incident, host }: DigestLink): string {
  if (host) return nodeAddress(host);
  return incident ? incidentAddress(job, incident) : jobAddress(job);
}
