// All limits: configured, learned and loaded values, the one in force and its source.

import { useState } from "preact/hooks";
import type { Timeout } from "../api/types";
import { columns, limited, ordered, origin } from "../logic/limits";
import { limitText } from "../logic/text";

const FEW = 14;

export function Limits({ timeouts }: { timeouts: readonly Timeout[] | null }) {
  const [all, showAll] = useState(false);
  if (timeouts === null || timeouts.length === 0) return null;
  const rows = ordered(timeouts);
  const visible = all ? rows : rows.slice(0, FEW);
  const further = columns(timeouts);
  const table = (
    <>
      <div class="scroll" role="region" aria-label="Limits" tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th scope="col">What</th>
              <th scope="col" class="number">Limit</th>
              <th scope="col">Source</th>
              {further.map(([name, title]) => <th key={name} scope="col" class="number">{title}</th>)}
            </tr>
          </thead>
          <tbody>
            {visible.map((timeout) => (
              <tr key={`${timeout.what} ${timeout.section ?? ""}`}>
                <th scope="row" class={timeout.section === null ? undefined : "code"}>{limited(timeout)}</th>
                <td class="number force">{limitText(timeout.in_force)}</td>
                <td class="source">{origin(timeout)}</td>
                {further.map(([name]) => <td key={name} class="number">{limitText(timeout[name])}</td>)}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {visible.length < rows.length && (
        <button type="button" class="quiet" onClick={() => showAll(true)}>
          Show all {rows.length}
        </button>
      )}
    </>
  );
  return (
    <section class="limits">
      <details><summary>Limits in force</summary>{table}</details>
    </section>
  );
}
