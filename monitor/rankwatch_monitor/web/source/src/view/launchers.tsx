// Nodes that run no ranks, each with the reason; empty if all nodes do.

import { useState } from "preact/hooks";
import type { Launcher } from "../api/types";
import { idleLaunchers, figures } from "../logic/launchers";
import { NodeLink } from "./placelinks";

const FEW = 8;

export function Launchers({ launchers }: { launchers: readonly Launcher[] }) {
  const [all, showAll] = useState(false);
  const rows = idleLaunchers(launchers);
  if (rows.length === 0) return null;
  const visible = all ? rows : rows.slice(0, FEW);
  return (
    <section class="launchers">
      <h2>
        Nodes <small>{figures(launchers)}</small>
      </h2>
      <dl>
        {visible.map(({ name, host, what, reason }) => (
          <div key={name}>
            <dt>
              <span class="code"><NodeLink host={host} text={name} /></span> <small>{what}</small>
            </dt>
            <dd>{reason || "no reason given"}</dd>
          </div>
        ))}
      </dl>
      {visible.length < rows.length && (
        <button type="button" class="quiet" onClick={() => showAll(true)}>
          Show all {rows.length}
        </button>
      )}
    </section>
  );
}
