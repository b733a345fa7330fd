// What can be copied: a button with its result, and a command.

import { useState } from "preact/hooks";
import { copyText } from "./clipboard";
import { NodeLink } from "./placelinks";

export function Copy({ text, label, name }: { text: string; label: string; name?: string }) {
  const [result, setResult] = useState("");
  const copy = async () => setResult((await copyText(text)) ? "Copied" : "The browser does not allow to copy.");
  return (
    <>
      <button type="button" aria-label={name} onClick={() => void copy()}>{label}</button>
      <small aria-live="polite">{result}</small>
    </>
  );
}

/** A command, to be run on a host; empty: anywhere in the cluster. `note`: what it is about, or shows. */
export function Run({ command, host, note }: { command: string; host: string; note?: string }) {
  return (
    <p class="run">
      {host !== "" && <span>On <NodeLink host={host} />:</span>}<code>{command}</code>
      <Copy text={command} label="Copy" name={`Copy ${command}`} />
      {note && <small>{note}</small>}
    </p>
  );
}
