// The audit log: orders and changes of this job, with the token that made them; readable with a control token.

import { useEffect, useState } from "preact/hooks";
import { get } from "../api/client";
import { now } from "../api/connection";
import { session } from "../api/session";
import { clock } from "../logic/text";

interface Entry {
  id: string;
  at: number;
  action: string;
  subject: string;
  by: string;
  address: string;
  detail: Record<string, unknown>;
}

const KINDS: Record<string, string> = { order: "Order", policy: "Policy" };

export function Audit({ job, version }: { job: string; version: unknown }) {
  const [entries, setEntries] = useState<readonly Entry[] | null>(null);
  const allowed = session.value?.scope === "control";
  useEffect(() => {
    if (!allowed) return setEntries(null);
    const aborted = new AbortController();
    get<{ entries: Entry[] }>("/audit?limit=1000", aborted.signal, { optional: true })
      .then((log) => setEntries(log.entries.filter((each) => each.subject === job)))
      .catch(() => setEntries(null));
    return () => aborted.abort();
  }, [allowed, job, version]);
  if (entries === null) return null;
  return (
    <section aria-labelledby="audit">
      <h2 id="audit">Orders and changes so far</h2>
      {entries.length === 0 ? <p class="note">No order was given to this job, and no setting of it was changed, as far back as the audit log reaches.</p> : (
        <table class="audit">
          <thead><tr><th scope="col">Time</th><th scope="col">What</th><th scope="col">By token</th><th scope="col">From</th></tr></thead>
          <tbody>
            {entries.map((each) => (
              <tr key={each.id}>
                <td>{clock(each.at, now.value)}</td>
                <td>{KINDS[each.action] ?? each.action}: {described(each.detail)}</td>
                <td>{each.by}</td>
                <td>{each.address}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}

function described(detail: Record<string, unknown>): string {
  return Object.entries(detail).map(([name, value]) => `${name} ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");
}
