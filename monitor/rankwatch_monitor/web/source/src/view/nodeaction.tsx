// What to do about a node to which something points: commands to copy, and the order to restart a job without it.

import { useState } from "preact/hooks";
import type { NodeDetail } from "../api/types";
import { orderOf } from "../logic/nextaction";
import { jobAddress } from "../logic/route";
import { copyText } from "./clipboard";
import { prepared } from "./selection";

export function NodeAction({ node: { host, todo = null, exclude = null, verdict = "" } }: { node: NodeDetail }) {
  if (todo === null && exclude === null) return null;
  const leaveOut = () => {
    prepared.value = orderOf({ action: "restart_excluding_node", ranks: exclude!.ranks }, verdict);
    location.hash = jobAddress(exclude!.job, "control");
  };
  return (
    <section class="todo" aria-label="What to do about this node">
      {todo !== null && (
        <>
          <p class="what">{todo.text}</p>
          <Commands commands={todo.here} where={`On ${host}:`} />
          <Commands commands={todo.anywhere} where="Anywhere in the cluster:" />
        </>
      )}
      {exclude !== null && <p class="ways"><button type="button" onClick={leaveOut}>Restart {exclude.name}{exclude.name !== exclude.job && ` (${exclude.job})`} without {host} …</button></p>}
    </section>
  );
}

function Commands({ commands, where }: { commands: readonly string[]; where: string }) {
  if (commands.length === 0) return null;
  return (
    <>
      <p class="where">{where}</p>
      {commands.map((command) => <Command key={command} command={command} />)}
    </>
  );
}

function Command({ command }: { command: string }) {
  const [copied, setCopied] = useState("");
  const copy = async () => setCopied((await copyText(command)) ? "Copied" : "The browser does not allow to copy.");
  return (
    <p class="run">
      <code>{command}</code>
      <button type="button" aria-label={`Copy ${command}`} onClick={() => void copy()}>Copy</button>
      <small aria-live="polite">{copied}</small>
    </p>
  );
}
