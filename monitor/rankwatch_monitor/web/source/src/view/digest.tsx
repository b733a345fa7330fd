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
import { clock, count, plural } from "../logic/text";
import { narrow } from "./preferences";

const EVERY_MS = 30_000;

/** Whether the sentences below the summary are shown, also after another page was looked at; null: as the address wants it. */
const opened = signal<boolean | null>(null);

/** `repeated`: nodes that were named more than once. */
export function DigestSection({ hours = HOURS[0], repeated }: { hours?: number | undefined; repeated: number }) {
  const [digest, take] = useState<Digest | null>(null);
  useEffect(() => poll(EVERY_MS, async (ended) => take(await get<Digest>(`/digest?last=${hours * 3600}`, ended, { optional: true }))), [hours]);
  if (digest === null) return null; // not there yet, or an older monitor
  const open = opened.value ?? hours !== HOURS[0];
  const parts = digest.summary.split(", ");
  return (
    <details class="digest" open={open} onToggle={(event) => (opened.value = event.currentTarget.open)}>
      <summary>
        <h2>The last {span(hours)}</h2> <span class="sum">{counts(narrow.value && !open ? brief(parts, repeated) : parts)}</span>
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

/** On a phone the jobs come first: incidents, what they cost, and nodes that repeat. */
function brief([first = "", ...rest]: string[], repeated: number): string[] {
  const lost = rest.filter((part) => part.includes(" lost to ")).concat(repeated > 0 ? `${plural(repeated, "node")} named again` : []);
  return [first, ...lost].map((part) => part.replace(/ in [\d,]+ jobs?$| to incidents.*/, ""));
}

/** "6 incidents in 6 jobs", "2 restarts": each count on its own, the figure in bold. */
function counts(parts: string[]) {
  return parts.map((part) => {
    const [, figure, rest] = /^(\d[\d.,]*)( .*)$/.exec(part) ?? [];
    return <Fragment key={part}> <span class="count">{figure ? <><b>{figure}</b>{rest}</> : part}</span></Fragment>;
  });
}

function address({ job, incident, host }: DigestLink): string {
  if (host) return nodeAddress(host);
  return incident ? incidentAddress(job, incident) : jobAddress(job);
}
