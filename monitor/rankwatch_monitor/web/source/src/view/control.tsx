// Orders and the policy: behind the control token, each said in words before it is done.

import { signal } from "@preact/signals";
import { useState } from "preact/hooks";
import { order, Problem } from "../api/client";
import type { JobSummary, Launcher } from "../api/shapes";
import { controlToken, keepControlToken } from "../api/token";
import { ACTIONS, type ActionName, consequence, rankList } from "../logic/policy";
import { incidentAddress } from "../logic/route";
import { PolicyEditor } from "./policy";

/** The monitor's words when it refused an order for want of the right token. */
export const wanted = signal<string | null>(null);

export function Control({ job, launchers }: { job: JobSummary; launchers: readonly Launcher[] }) {
  return (
    <div class="control">
      <TokenLine />
      <Actions job={job} launchers={launchers} />
      <PolicyEditor job={job} />
    </div>
  );
}

/** Say what a failure was: the monitor's own words, and ask for the token when that is what was missing. */
export function refusal(problem: unknown): string {
  if (!(problem instanceof Problem)) return "The monitor does not answer. Look again before you repeat it.";
  if (problem.status === 401 || problem.status === 403) {
    wanted.value = problem.message;
    return `Nothing was done: ${problem.message}.`;
  }
  return problem.message;
}

function TokenLine() {
  const keep = (event: SubmitEvent) => {
    event.preventDefault();
    const value = new FormData(event.currentTarget as HTMLFormElement).get("control");
    if (typeof value !== "string" || value === "") return;
    keepControlToken(value);
    wanted.value = null;
  };
  if (controlToken.value !== null && wanted.value === null) {
    return (
      <p class="note">
        Orders of this tab carry the control token you gave.{" "}
        <button type="button" class="quiet" onClick={() => keepControlToken(null)}>Forget it</button>
      </p>
    );
  }
  return (
    <form class="token" onSubmit={keep}>
      <label>
        Control token{" "}
        <input name="control" type="password" autocomplete="off" spellcheck={false} required aria-describedby="control-token" />
      </label>
      <button type="submit">Use it</button>
      <small id="control-token">
        {wanted.value === null ? "Needed where the monitor has tokens." : `The monitor says: ${wanted.value}.`} It is kept in this tab only.
      </small>
    </form>
  );
}

function Actions({ job, launchers }: { job: JobSummary; launchers: readonly Launcher[] }) {
  const [action, setAction] = useState<ActionName>("capture");
  const [reason, setReason] = useState("");
  const [ranks, setRanks] = useState("");
  const [nodes, setNodes] = useState<readonly string[]>([]);
  const [asking, ask] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const [done, setDone] = useState<string | null>(null);
  const over = job.ended_at !== null;
  const excluding = action === "restart_excluding_node";
  const left = [nodes.join(", "), ranks && `the nodes of ranks ${ranks}`].filter(Boolean).join(" and ");
  const title = ACTIONS.find(([name]) => name === action)![1];

  const confirm = (event: SubmitEvent) => {
    event.preventDefault();
    setDone(null);
    if (excluding && rankList(ranks) === null) return setProblem(`Ranks are written like 0,8-11; not "${ranks}".`);
    if (excluding && left === "") return setProblem("Name nodes to leave out, or ranks on them.");
    setProblem(null);
    ask(true);
  };
  const send = async () => {
    try {
      const chosen = excluding ? { ranks: rankList(ranks), nodes } : {};
      const answer = await order<{ incident_id: string }>("POST", `/jobs/${encodeURIComponent(job.id)}/actions`, { action, reason, ...chosen });
      setDone(answer.incident_id);
      setReason("");
    } catch (failure) {
      setProblem(refusal(failure));
    } finally {
      ask(false);
    }
  };
  return (
    <section aria-labelledby="actions">
      <h2 id="actions">Actions</h2>
      {over ? <p class="note">This job has ended: there is nothing to act on.</p> : (
        <form onSubmit={confirm}>
          <fieldset class="looks" disabled={asking}>
            <legend>Order</legend>
            {ACTIONS.map(([name, words]) => (
              <label key={name}>
                <input type="radio" name="action" checked={action === name} onChange={() => setAction(name)} />
                {words}
              </label>
            ))}
          </fieldset>
          {excluding && (
            <>
              <label class="line">
                Nodes
                <select multiple size={Math.min(6, Math.max(2, launchers.length))} disabled={asking} onChange={(event) => setNodes([...event.currentTarget.selectedOptions].map((option) => option.value))}>
                  {launchers.filter((each) => each.role === "active").map((each) => (
                    <option key={each.node} value={each.node}>{each.node}{each.host !== each.node && ` (${each.host})`}</option>
                  ))}
                </select>
              </label>
              <label class="line">
                or nodes of ranks
                <input value={ranks} disabled={asking} placeholder="0,8-11" onInput={(event) => setRanks(event.currentTarget.value)} />
              </label>
            </>
          )}
          <label class="line">
            Reason
            <input
              value={reason} maxLength={500} required disabled={asking} placeholder="It stands in the incident and in the log"
              onInput={(event) => setReason(event.currentTarget.value)}
            />
          </label>
          {!asking && <button type="submit">{title} …</button>}
          {asking && (
            <div class="confirm" role="alertdialog" aria-labelledby="confirm-title" aria-describedby="confirm-words">
              <h3 id="confirm-title">{title}: {job.name}</h3>
              <p id="confirm-words">{consequence(action, job, left)}</p>
              <button type="button" class={action === "capture" ? "go" : "go grave"} onClick={() => void send()} ref={(button) => button?.focus()}>
                {title}
              </button>
              <button type="button" onClick={() => ask(false)}>Not now</button>
            </div>
          )}
        </form>
      )}
      {problem !== null && <p class="refused" role="alert">{problem}</p>}
      {done !== null && (
        <p class="accepted" role="status">
          Ordered. <a href={incidentAddress(job.id, done)}>Incident {done}</a> tells how it goes.
        </p>
      )}
    </section>
  );
}
