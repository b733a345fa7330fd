// What can be copied: a button with its result, and a command.

import { Fragment } from "preact";
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

/** A command that breaks at its spaces and after each part of it; only a word that is wider than its box breaks inside. */
const words = (command: string) => command.split(" ").map((word, i) => <Fragment key={i}>{i > 0 && " "}<span>{word}</span>{word.endsWith(";") && <br />}</Fragment>);

/** What follows from each answer to a command. */
export const Alternatives = ({ of }: { of: readonly string[] | undefined }) => of?.length ? <ul class="alternatives">{of.map((each) => <li key={each}>{each}</li>)}</ul> : null;

/** A command, to be run on a host; empty: anywhere in the cluster. `note`: what it is about, or shows. */
export function Run({ command, host, note }: { command: string; host: string; note?: string }) {
  return (
    <p class="run">
      {host !== "" && <span>On <NodeLink host={host} />:</span>}<code>{words(command)}</code>
      <Copy text={command} label="Copy" name={`Copy ${command}`} />
      {note && <small>{note}</small>}
    </p>
  );
}
