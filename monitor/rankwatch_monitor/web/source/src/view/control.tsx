// The tab "Policy and actions": control token, orders with a confirmation, policy editor.

import { useEffect, useState } from "preact/hooks";
import { order } from "../api/client";
import type { JobSummary, Launcher, Ordered } from "../api/types";
import type { Prepared, Recommended } from "../logic/nextaction";
import { ACTIONS, type ActionName, consequence, isFinal, KINDS, leftOut, nodesOf, rankList, remaining } from "../logic/policy";
import { incidentAddress } from "../logic/route";
import { capital } from "../logic/text";
import { Audit } from "./audit";
import { ControlTokenForm, refusal } from "./control_token";
import { PolicyEditor } from "./policy";
import { Remaining } from "./remaining";
import { prepared } from "./selection";

interface Props {
  job: JobSummary;
  launchers: readonly Launcher[];
  /** The order that the overview proposes; null: none. */
  recommended: Recommended | null;
}

export function Control({ job, launchers, recommended }: Props) {
  const [changes, setChanges] = useState(0);
  const [meanings, explain] = useState<Record<string, string>>({});
  const changed = () => setChanges((count) => count + 1);
  return (
    <div class="control">
      <ControlTokenForm />
      <Actions job={job} launchers={launchers} recommended={recommended} meanings={meanings} onChange={changed} />
      <PolicyEditor job={job} meanings={meanings} explain={explain} onChange={changed} />
      <Audit job={job.id} version={changes} />
    </div>
  );
}

const titleOf = (action: ActionName): string => ACTIONS.find(([name]) => name === action)![1];

/** Enter, also one that was pressed for the form, cancels: an order takes a click or a step to its button. */
const focused = (button: HTMLButtonElement | null) => button?.focus();

/** `meanings`: what each action does. */
function Actions({ job, launchers, recommended, meanings, onChange }: Props & { meanings: Record<string, string>; onChange: () => void }) {
  const [chosen, setAction] = useState<ActionName | null>(null);
  const [reason, setReason] = useState("");
  const [typed, setRanks] = useState<string | null>(null);
  const [picked, setNodes] = useState<readonly string[] | null>(null);
  const [taken, setTaken] = useState<Prepared | null>(null);
  const [confirming, setConfirming] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const [done, setDone] = useState<string | null>(null);
  const over = job.ended_at !== null;
  // What waits for a look, or may cost all steps, is chosen by a person alone.
  const first = recommended === null || (!recommended.condition && job.checkpoint !== null) ? recommended?.action : "capture";
  const action = chosen ?? first ?? null;
  const active = launchers.filter((each) => each.role === "active");
  const proposed = (taken ?? recommended)?.ranks ?? [];
  const known = nodesOf(proposed, active);
  const nodes = picked ?? known ?? [];
  const ranks = typed ?? (picked === null && known === null ? proposed.join(",") : "");
  const excluding = action === "restart_excluding_node";
  const left = leftOut(nodes, ranks, active);
  const title = action === null ? "" : excluding && left && !left.includes(" ") ? `Restart without ${left}` : titleOf(action);

  useEffect(() => {
    const order = prepared.value;
    if (order === null) return;
    prepared.value = null;
    setAction(order.action);
    setReason(order.reason);
    setTaken(order);
    setRanks(null);
    setNodes(null);
    setProblem(null);
    setDone(null);
    setConfirming(!over && (order.action !== "restart_excluding_node" || order.ranks.length > 0));
  }, [prepared.value]);

  const confirm = (event: SubmitEvent) => {
    event.preventDefault();
    if (action === null) return;
    setDone(null);
    if (excluding && rankList(ranks) === null) return setProblem(`Write ranks as in 0,8-11; "${ranks}" is not valid.`);
    if (excluding && left === "") return setProblem("Name nodes to exclude, or ranks on them.");
    setProblem(null);
    // A proposal that changes does not change what is being confirmed.
    setAction(action);
    setRanks(ranks);
    setNodes(nodes);
    setConfirming(true);
  };
  const send = async () => {
    try {
      const chosen = excluding ? { ranks: rankList(ranks), nodes } : {};
      const answer = await order<Ordered>("POST", `/jobs/${encodeURIComponent(job.id)}/actions`, { action, reason, ...chosen });
      setDone(answer.incident_id);
      onChange();
      setReason("");
    } catch (failure) {
      setProblem(refusal(failure));
    } finally {
      setConfirming(false);
    }
  };
  return (
    <section aria-labelledby="actions">
      <h2 id="actions">Actions</h2>
      {over ? <p class="note">This job has ended: no action is possible.</p> : (
        <form onSubmit={confirm}>
          <fieldset class="kinds" disabled={confirming}>
            <legend>What to do</legend>
            {KINDS.map((kind) => (
              <div key={kind.title} class={kind.ends && "ends"}>
                <p>{kind.title}</p>
                {kind.names.includes("restart") && job.restart_loses !== "" && <small class={job.checkpoint === null ? "all-lost" : undefined}>A restart {job.restart_loses}.</small>}
                {kind.names.map((name) => (
                  <span key={name} class="choice">
                    <label>
                      <input type="radio" name="action" aria-describedby={`what-${name}`} checked={action === name} onChange={() => setAction(name)} />
                      {titleOf(name)}
                    </label>
                    <span id={`what-${name}`}>
                      {name === recommended?.action && <span class="tag">proposed{name === "restart_excluding_node" && `: without ${leftOut([], recommended.ranks.join(","), active)}`} {recommended.condition}</span>}
                      {meanings[name] && <small>{capital(meanings[name])}.</small>}
                      {name === "restart_excluding_node" && <Remaining left={remaining(nodes, ranks, launchers)} />}
                      {name === "stop" && job.restart_loses !== "" && <small class={job.checkpoint === null ? "all-lost" : undefined}>Another launch {job.restart_loses}.</small>}
                    </span>
                  </span>
                ))}
              </div>
            ))}
          </fieldset>
          {excluding && (
            <>
              {active.length > 0 && (
                <fieldset class="nodes" disabled={confirming}>
                  <legend>Nodes</legend>
                  {active.map(({ node, host }) => (
                    <label key={node}>
                      <input type="checkbox" checked={nodes.includes(node)} onChange={(event) => setNodes(event.currentTarget.checked ? [...nodes, node] : nodes.filter((each) => each !== node))} />
                      {node}{host !== node && ` (${host})`}
                    </label>
                  ))}
                </fieldset>
              )}
              <label class="line">
                {active.length > 0 ? "or nodes of ranks" : "Nodes of ranks"}
                <input value={ranks} disabled={confirming} placeholder="0,8-11" onInput={(event) => setRanks(event.currentTarget.value)} />
              </label>
            </>
          )}
          <label class="line">
            <span>Reason <small>required</small></span>
            <input
              value={reason} maxLength={500} required disabled={confirming} placeholder="for the incident and the log"
              onInput={(event) => setReason(event.currentTarget.value)}
            />
          </label>
          {!confirming && (action === null ? <p class="note">Choose what to do first; an order is confirmed.</p> : <button type="submit" class={isFinal(action) ? "ending" : action === "capture" ? undefined : "go"}>{title} …</button>)}
          {confirming && action !== null && (
            <div class={isFinal(action) ? "confirm grave" : "confirm"} role="alertdialog" aria-labelledby="confirm-title" aria-describedby="confirm-words" onKeyDown={(event) => event.key === "Escape" && setConfirming(false)}>
              <h3 id="confirm-title">{title}: {job.name}</h3>
              <p id="confirm-words">{consequence(action, job, left)}</p>
              <button type="button" class={isFinal(action) ? "go grave" : "go"} onClick={send}>{title}</button>
              <button type="button" onClick={() => setConfirming(false)} ref={focused}>Cancel</button>
            </div>
          )}
        </form>
      )}
      {problem !== null && <p class="refused" role="alert">{problem}</p>}
      {done !== null && (
        <p class="accepted" role="status">
          Ordered. <a href={incidentAddress(job.id, done)}>Incident {done}</a> shows the progress.
        </p>
      )}
    </section>
  );
}
