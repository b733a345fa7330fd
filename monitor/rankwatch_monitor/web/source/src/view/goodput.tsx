// Goodput: the ratio, a bar of all time by bucket, and the phases of each incident.

import { useState } from "preact/hooks";
import type { Goodput, Incident, JobSummary, LedgerEntry } from "../api/types";
import { asOf } from "../api/connection";
import { COUNTED, goodputNotes, inWords, type Slice, slices, type Spent, type Stage, windowDiffers, windowName } from "../logic/goodput";
import { incidentAddress } from "../logic/route";
import { kindWords, lineOf } from "../logic/incidents";
import { addingUp, costText, LOST, took } from "../logic/phases";
import { clock, count, listed, percent } from "../logic/text";
import { Facts } from "./facts";
import { Fold } from "./fold";

const FEW = 12;

/** `past`: above is an incident that is over. */
export function GoodputSection({ job, goodput, incidents, spent, past }: { job: JobSummary; goodput: Goodput | null; incidents: readonly Incident[]; spent: Spent | null; past: boolean }) {
  if (goodput === null || spent === null) return null;
  const { apart } = spent;
  return (
    <Fold name="goodput" heading={<>Goodput <small>{past && "as of now; "}{COUNTED}</small></>}>
      <Facts
        kind="facts"
        facts={[
          { label: "Whole run", value: percent(job.goodput), note: goodputNotes(job, asOf.value) },
          ...(windowDiffers(goodput) ? [{ label: windowName(goodput.window.seconds), value: percent(goodput.window.ratio) }] : []),
        ]}
      />
      <Bar found={slices(spent.buckets, goodput.waited_for)} open={spent.open} />
      {apart.length > 0 && goodput.incidents.length > 0 && (
        <p class="note">The bar counts each second once and only time without steps, so {listed(apart)} {apart.length === 1 ? "is" : "are"} not the sum of the stages below.</p>
      )}
      {goodput.incidents.length > 0 && <Ledger job={job} entries={goodput.incidents} incidents={incidents} spent={spent} />}
    </Fold>
  );
}

function Bar({ found, open }: { found: Slice[]; open: string | null }) {
  if (found.length === 0) return <p class="note">No time is accounted for yet.</p>;
  return (
    <>
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
            <span>{name}</span> <b>{took(seconds, bucket === open)}</b> <small>{percent(share)}</small>
          </li>
        ))}
      </ul>
    </>
  );
}

interface Entries {
  job: JobSummary;
  entries: readonly LedgerEntry[];
  incidents: readonly Incident[];
  spent: Spent;
}

function Ledger({ job, entries, incidents, spent: { columns, taken } }: Entries) {
  const byId = new Map(incidents.map((incident) => [incident.id, incident]));
  const [all, showAll] = useState(false);
  // With which the job ended.
  const last = job.ended_at === null ? undefined : incidents.find((incident) => incident.closed_at === job.ended_at)?.id;
  const visible = all ? entries : entries.slice(0, FEW);
  const cost = (entry: LedgerEntry) => {
    const incident = byId.get(entry.id);
    return costText(incident === undefined || entry.cost.since === null ? entry : incident, asOf.value);
  };
  return (
    <>
      <h3>Time by incident</h3>
      <div class="scroll" role="region" aria-label="Time by incident" tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th scope="col">Detected</th>
              <th scope="col">What</th>
              {columns.map((name) => <th key={name} scope="col" class="number">{name}</th>)}
              <th scope="col" class="number">Total</th>
              <th scope="col">Outcome</th>
            </tr>
          </thead>
          <tbody>
            {visible.map((entry) => (
              <tr key={entry.id}>
                <th scope="row">
                  <a href={incidentAddress(job.id, entry.id)} title={byId.get(entry.id)?.reason}>{clock(entry.opened_at, asOf.value)}</a>
                </th>
                <td>{byId.has(entry.id) ? lineOf(job, byId.get(entry.id)!) : kindWords(entry)}</td>
                {addingUp(columns.map((name) => taken.get(entry.id)?.[name]?.seconds ?? 0)).map((seconds, i) => (
                  <td key={i} class="number" data-stage={taken.get(entry.id)?.[columns[i]!] && columns[i]}>{stageWords(seconds, taken.get(entry.id)?.[columns[i]!], columns[i] === LOST && entry.id === last ? job.steps_at_risk : null)}</td>
                ))}
                <td class="number force">{cost(entry)}</td>
                <td class="outcome">{entry.outcome || (byId.get(entry.id)?.confirmed === false ? "suspected" : "open")}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {columns.includes(LOST) && <p class="note">Of the steps done again the first counts as Recover.</p>}
      {visible.length < entries.length && (
        <button type="button" class="quiet" onClick={() => showAll(true)}>
          Show all {entries.length}
        </button>
      )}
    </>
  );
}

/** `unsaved`: steps that the end of the job left without a checkpoint. */
function stageWords(seconds: number, stage: Stage | undefined, unsaved: number | null | undefined): string {
  return stage === undefined ? (unsaved ? `${count(unsaved)} unsaved` : "–") : `${took(seconds, stage.open)}${stage.open ? " so far" : ""}`;
}
