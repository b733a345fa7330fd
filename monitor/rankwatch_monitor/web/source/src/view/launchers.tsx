// Nodes that run no ranks, each with the reason; empty if all nodes do.

import type { Launcher } from "../api/types";
import { idleLaunchers, figures } from "../logic/launchers";
import { NodeLink } from "./placelinks";
import { useFew } from "./table";

const FEW = 8;

export function Launchers({ launchers }: { launchers: readonly Launcher[] }) {
  const [visible, more] = useFew(idleLaunchers(launchers), FEW);
  if (visible.length === 0) return null;
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
      {more}
    </section>
  );
}
